//! Aborts a FUSE mount that exceeds its time.
//!
//! A test that waits for a daemon that never answers cannot be killed, because the kernel waits for the reply. Aborting
//! the connection makes the call fail, so the test fails and cleans up.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use anyhow::Result;

use crate::mounts;

/// Watches one mount until dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    _lives: Sender<()>,
}

impl Watchdog {
    /// Aborts the mount at `target` after `limit`.
    pub(crate) fn over(target: &Path, limit: Duration) -> Result<Self> {
        let (lives, dropped) = channel::<()>();
        let target = target.to_owned();
        Builder::new().name("lab-watchdog".into()).spawn(move || {
            if dropped.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let result = match mounts::at(&target) {
                Ok(Some(mounted)) if mounted.is_fuse() => mounts::abort(mounted.connection()),
                found => found.map(drop),
            };
            let _nobody_listens = writeln!(
                std::io::stderr(),
                "lab: {} was aborted, mounted for longer than {limit:?} {result:?}",
                target.display()
            );
        })?;
        Ok(Self { _lives: lives })
    }
}
