//! Start of a pool: settings become an engine, served over a transport until it is unmounted.

use crate::background::Ready;
use crate::branches::{is_any_taken, shares};
use crate::confine::give_up_rights;
use crate::keeper;
use crate::log::{self, LogTarget};
use crate::problem::Failure;
use crate::serve::serve;
use crate::settings::Settings;
use crate::signals::hold_signals;
use fsstack_control::registry::{self, Claim, Registration, RegistryBranch, RegistryEntry};
use fsstack_pool::Printable;

/// Why a pool is not served: the line that the helper prints, and what its exit code says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct LaunchError {
    /// Kind of failure, for the exit code.
    pub failure: Failure,
    /// Subject, reason and remedy.
    pub text: String,
}

impl LaunchError {
    /// It could not be mounted.
    pub fn mount(text: impl Into<String>) -> Self {
        Self { failure: Failure::Mount, text: text.into() }
    }

    /// The system could not do what any program may ask of it.
    pub fn system(text: impl Into<String>) -> Self {
        Self { failure: Failure::System, text: text.into() }
    }
}

/// Mounts and serves in this process until the pool is unmounted; reports to `ready` when the mount answers.
pub fn launch(settings: Settings, ready: Ready) -> Result<(), LaunchError> {
    // Before any thread: all of them leave the signals to the one that waits for them.
    let signals = hold_signals().map_err(|error| LaunchError::system(format!("signals: {error}")))?;
    give_up_rights().map_err(|error| LaunchError::system(format!("capabilities: {error}")))?;
    let kept = keeper::begin(&settings)?;
    let log = log::start(&settings.options.log)
        .map_err(|error| LaunchError::system(format!("log: cannot be opened: {error}")))?;
    // Where the log is the helper's own stderr, its lines say these things already.
    let helper_prints = settings.options.log.target == LogTarget::Stderr;
    for notice in settings.notices.iter().filter(|_| !helper_prints) {
        tracing::warn!("{notice}");
    }
    settings.remarks.iter().for_each(|remark| tracing::info!("{remark}"));
    let mount_point = Printable::path(&settings.mount_point).to_string();
    let listed = list(&settings, keeper::known_by(kept.as_ref()));
    let served = listed
        .as_ref()
        .map_err(LaunchError::clone)
        .and_then(|listed| serve(&settings, &ready, signals, &log, (listed.as_ref(), kept)));
    match &served {
        Ok(()) => tracing::info!("{mount_point}: unmounted"),
        Err(error) if !helper_prints => tracing::error!("{error}"),
        Err(_) => {}
    }
    drop(listed);
    log.flush();
    served
}

/// A pool that cannot be listed is served all the same: the list guards against mistakes only.
///
/// # Errors
/// Another pool took a branch of this one since the branches were looked at.
fn list(settings: &Settings, pid: u32) -> Result<Option<Registration>, LaunchError> {
    let Some(place) = settings.registry.as_deref() else { return Ok(None) };
    let branches =
        settings.branches.iter().map(|branch| RegistryBranch::new(branch.id, &branch.spec.path)).collect();
    // Whether a branch has left another pool is asked of the file system, which may hang: not while the registry is locked. An entry
    // that comes after this is of a pool that was mounted just now.
    let before = registry::read(place);
    if let Some(pool) = before.iter().find(|pool| is_any_taken(&settings.branches, pool)) {
        return Err(taken(pool));
    }
    let is_new = |pool: &RegistryEntry| !before.contains(pool) && shares(&settings.branches, pool);
    let claimed = RegistryEntry::of_process(pid, &settings.mount_point, branches)
        .and_then(|entry| registry::write(place, &entry, is_new));
    match claimed {
        Ok(Claim::Made(registration)) => Ok(Some(registration)),
        Ok(Claim::Refused(pool)) => Err(taken(&pool)),
        Err(error) => {
            tracing::warn!("{}: cannot be written: {error}", Printable::path(place));
            Ok(None)
        }
    }
}

fn taken(pool: &RegistryEntry) -> LaunchError {
    LaunchError::mount(format!(
        "a branch is one of the pool of {}, which was mounted at the same time (its daemon is process {}); mount it once",
        Printable::path(&pool.mount_point()),
        pool.pid
    ))
}
