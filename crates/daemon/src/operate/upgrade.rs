//! Upgrades, as the operator asks for them.

use super::Served;
use crate::handover::VERSION;
use fsstack_control::Refusal;
use fsstack_control::api::{Upgrade, UpgradeRequest};
use fsstack_pool::Printable;
use std::sync::Arc;
use std::time::Duration;

impl Served {
    pub(super) fn step_of_upgrade(self: Arc<Self>, request: &UpgradeRequest) -> Result<Upgrade, Refusal> {
        match request {
            UpgradeRequest::Show => Ok(self.handover.report.lock().told.clone()),
            UpgradeRequest::Prepare { program } => self
                .prepare_upgrade(program.as_deref())
                .map_err(|why| Refusal::busy(format!("{}: {why}", self.shown()))),
            UpgradeRequest::Begin { ticket, answer } => {
                let told = self
                    .handover
                    .report
                    .lock()
                    .checked(*ticket, answer)
                    .map_err(|why| Refusal::busy(format!("{}: {why}", self.shown())))?;
                let (served, ticket) = (self, *ticket);
                // An ordinary thread: the program that it becomes inherits how it is scheduled.
                let thread = fsstack_sync::thread::Builder::new().name("upgrade".into());
                let begun = fsstack_branch::thread::start(thread, move || served.hand_over(ticket));
                begun.map_err(|error| Refusal::failed(format!("thread: {error}")))?;
                Ok(told)
            }
        }
    }

    /// Requests were not served for `paused`, and are now.
    pub(crate) fn is_taken_over(&self, paused: Duration) {
        let mut report = self.handover.report.lock();
        report.told.pause_ms = Some(paused.as_secs_f64() * 1e3);
        let (shown, from) = (self.shown(), &report.told.from);
        let pause = paused.as_millis();
        match &report.told.reason {
            None => {
                tracing::info!("{shown}: version {VERSION} took over from version {from}, pause {pause} ms")
            }
            Some(why) => {
                tracing::warn!(
                    "{shown}: upgrade failed: {why}; version {VERSION} serves on, pause {pause} ms"
                );
            }
        }
    }

    fn shown(&self) -> String {
        Printable::path(&self.settings.lock().mount_point).to_string()
    }
}
