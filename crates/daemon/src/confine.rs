//! Limits the damage of a compromised daemon: drops rights before threads start, and restricts system calls when it
//! serves.

use std::io;

use fsstack_pool::settings::Seccomp;
use fsstack_sys::seccomp::{self, Violation};
use fsstack_sys::{capabilities, fusectl, identity};

use crate::settings::Settings;

/// Drops the capabilities that the daemon does not need. Called at the start, while there is one thread.
///
/// A user's daemon has none, and fusermount3, which it runs, gets its own from being set-uid.
pub(crate) fn give_up_rights() -> io::Result<()> {
    identity::keep_capabilities().map_err(|error| error.errno)?;
    // Under the filter of the program before, which refuses the calls, this one has no more rights than that one had: `no_new_privs`.
    if seccomp::is_confined() {
        return Ok(());
    }
    capabilities::keep_needed().map_err(|error| error.errno)?;
    Ok(())
}

/// Restricts all threads, and programs that the daemon becomes, to the system calls of a serving daemon, as set by
/// `seccomp=`. Irreversible. Returns the list of the filter, if there is one that refuses calls.
///
/// A kernel without such filters serves pools too.
pub(crate) fn keep_to_known_calls(settings: &Settings) -> Option<Vec<String>> {
    let violation = match settings.options.seccomp {
        Seccomp::Off => return None,
        Seccomp::On => Violation::Refuse,
        Seccomp::Log => Violation::Log,
        Seccomp::Kill => Violation::Kill,
    };
    // No mount is among those calls, and a hung branch is aborted by what this mounts.
    if let Err(error) = fusectl::make_available() {
        tracing::debug!(%error, "hung branches cannot be aborted");
    }
    if let Err(error) = seccomp::confine(violation) {
        tracing::warn!("seccomp={}: {error}: the daemon runs without a filter", settings.options.seccomp);
        return None;
    }
    // A call that is only logged is made.
    (violation != Violation::Log).then(seccomp::allowed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use fsstack_sys::capabilities::KEPT;

    /// Words of an option in the systemd unit, from all of its lines.
    fn words(option: &str) -> BTreeSet<String> {
        let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/fsstack@.service");
        let unit = fs::read_to_string(unit).unwrap();
        let lines = unit.lines().filter_map(|line| line.strip_prefix(option)?.strip_prefix('='));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    }

    #[test]
    fn the_unit_has_the_capabilities_that_the_daemon_keeps_and_two_for_its_start() {
        let kept = KEPT.iter().flat_map(|(set, _)| set.iter_names()).map(|(name, _)| format!("CAP_{name}"));
        let for_the_start = ["CAP_SETPCAP", "CAP_SYS_RESOURCE"].map(str::to_owned);
        assert_eq!(words("CapabilityBoundingSet"), kept.chain(for_the_start).collect());
    }

    /// An option that makes a mount namespace would hide the pool's mount from other programs.
    #[test]
    fn the_unit_has_every_restriction_that_needs_no_mount_namespace() {
        for option in ["NoNewPrivileges", "RestrictNamespaces", "RestrictRealtime", "LockPersonality"] {
            assert_eq!(words(option), ["yes".to_owned()].into(), "{option}");
        }
        assert_eq!(words("MemoryDenyWriteExecute"), ["yes".to_owned()].into());
        assert_eq!(words("SystemCallArchitectures"), ["native".to_owned()].into());
        assert_eq!(
            words("RestrictAddressFamilies"),
            ["AF_INET", "AF_INET6", "AF_UNIX"].map(str::to_owned).into()
        );
        assert!(words("SystemCallFilter").contains("@system-service"));
        for option in [
            "ProtectSystem",
            "ProtectHome",
            "ReadWritePaths",
            "PrivateTmp",
            "PrivateDevices",
            "PrivateUsers",
            "ProtectKernelTunables",
            "ProtectKernelModules",
            "ProtectKernelLogs",
            "ProtectControlGroups",
            "ProtectProc",
            "User",
        ] {
            assert_eq!(words(option), BTreeSet::new(), "{option}");
        }
    }
}
