//! A daemon that is taken over shall be good for little: what it gives up before it has threads, and when it serves.

use std::io;

use fsstack_sys::seccomp::{self, Violation};
use fsstack_sys::{capabilities, identity};

use crate::settings::Settings;
use fsstack_pool::settings::Seccomp;

/// Gives up the capabilities that the daemon has no use for. For the start, while there is one thread.
///
/// The daemon of a user has none, and fusermount3, which it calls, has its own from being set-uid.
pub(crate) fn give_up_rights() -> io::Result<()> {
    identity::keep_capabilities().map_err(|error| error.errno)?;
    capabilities::keep_needed().map_err(|error| error.errno)?;
    Ok(())
}

/// Leaves the daemon the system calls that it needs to serve, as `seccomp=` says. All its threads, for good.
///
/// A kernel that has no such filter serves pools all the same.
pub(crate) fn keep_to_known_calls(settings: &Settings) {
    let violation = match settings.options.seccomp {
        Seccomp::Off => return,
        Seccomp::On => Violation::Refuse,
        Seccomp::Log => Violation::Log,
        Seccomp::Kill => Violation::Kill,
    };
    if let Err(error) = seccomp::confine(violation) {
        tracing::warn!("seccomp={}: {error}: the daemon runs without a filter", settings.options.seccomp);
    }
}
