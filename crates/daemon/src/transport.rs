//! Options beside which requests must come by /dev/fuse: locks on branches, and a pool that outlives its daemon.

use fsstack_fuse::Transport;
use fsstack_pool::settings::{Locks, Restart};

use crate::problem::Problems;
use crate::raw::RawOptions;
use crate::settings::Privilege;
use crate::world::World;

/// First kernel that sends requests of a dead daemon again (FUSE_NOTIFY_RESEND).
const RESENDS: (u32, u32) = (6, 9);

/// Settles `auto`, and refuses `keep` beside what a daemon that died takes along.
pub(crate) fn settle_restart(raw: &mut RawOptions, world: &World, problems: &mut Problems) {
    let restart = raw.spelled("restart").to_owned();
    let obstacles = restart_obstacles(raw, world);
    match raw.options.restart {
        Restart::Off => {}
        Restart::Keep => {
            for (option, reason) in obstacles {
                let with = option.map(|option| format!("{option} and ")).unwrap_or_default();
                problems.usage(format!("{with}{restart}: {reason}"));
            }
        }
        Restart::Auto => match obstacles.into_iter().next() {
            None => raw.options.restart = Restart::Keep,
            Some((option, reason)) => {
                let with = option.map(|option| format!("{option}: ")).unwrap_or_default();
                raw.options.restart = Restart::Off;
                raw.notice(format!("{restart}: the pool ends if the daemon dies: {with}{reason}"));
            }
        },
    }
}

/// Reasons why a daemon that died could not be replaced, each with the option that causes it, as it was spelled.
fn restart_obstacles(raw: &RawOptions, world: &World) -> Vec<(Option<String>, &'static str)> {
    let mut obstacles = Vec::new();
    if raw.options.transport == Transport::Ring {
        let why = "the kernel does not give requests in a ring to another daemon; use transport=dev";
        obstacles.push((Some(raw.spelled("transport").to_owned()), why));
    }
    if raw.options.engine.locks == Locks::Branch {
        let why = "who has which lock on a branch is forgotten with the daemon; use locks=local";
        obstacles.push((Some(raw.spelled("locks").to_owned()), why));
    }
    if world.privilege == Privilege::User {
        obstacles
            .push((None, "finding files again by their numbers needs root; leave it out, or mount as root"));
    }
    if world.kernel < RESENDS {
        obstacles.push((None, "this kernel does not send requests again (Linux 6.9 and later do)"));
    }
    obstacles
}

/// A wait for a lock keeps its request's resource: a ring entry, of which there are few.
pub(crate) fn check_locks(raw: &RawOptions, problems: &mut Problems) {
    if (raw.options.transport, raw.options.engine.locks) == (Transport::Ring, Locks::Branch) {
        problems.usage(format!(
            "{} and {}: waits for locks would use up the ring; use transport=dev",
            raw.spelled("transport"),
            raw.spelled("locks")
        ));
    }
}
