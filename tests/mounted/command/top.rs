//! The screen of `fsstack top`, in a real terminal of tmux, and its figures as JSON.

use std::time::{Duration, Instant};

use fsstack_lab::needs;

use super::*;
use crate::script::sh;

#[test]
fn top_shows_the_pool_in_a_terminal_and_quits_at_q() {
    needs!(mounting(), program("tmux"));
    let pool = pool();
    let dir = tempfile::tempdir().unwrap();
    let tmux = format!("tmux -S {}/tmux", dir.path().display());
    let line = format!("{} top {}", binary().display(), at(&pool));
    sh("/", &format!("{tmux} new-session -d -x 140 -y 40 '{line}; echo ended with $?; sleep 60'"));
    let screen = |expected: &str| {
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let shown = sh("/", &format!("{tmux} capture-pane -p"));
            if shown.contains(expected) {
                return shown;
            }
            assert!(Instant::now() < limit, "no {expected:?} on the screen:\n{shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let shown = screen("processes in the stack");
    assert!(shown.contains(&at(&pool)) && shown.contains("create=ff") && shown.contains("daemon"), "{shown}");
    assert!(shown.contains("BRANCH") && shown.contains("WRITTEN/s") && shown.contains("q: quit"), "{shown}");
    // It is redrawn in another size, and restores the terminal.
    sh("/", &format!("{tmux} resize-window -x 80 -y 20"));
    screen("q: quit");
    sh("/", &format!("{tmux} send-keys q"));
    screen("ended with 0");
    sh("/", &format!("{tmux} kill-server"));
}

#[test]
fn the_figures_of_a_second_as_json() {
    needs!(mounting());
    let pool = pool();
    let moment = json("top", &["top", &at(&pool)]);
    assert_eq!(moment["branches"].as_array().unwrap().len(), 2);
    // Other processes on this machine do not serve directories on a disk.
    let processes = moment["processes"].as_array().unwrap();
    assert_eq!((processes.len(), &processes[0]["role"]), (1, &"daemon".into()), "{moment:#}");
    assert_eq!(processes[0]["pid"], pool.daemon().pid);
}

/// The number of the daemon is that of another process there, or of none.
#[test]
fn another_pid_namespace_shows_no_stranger_as_the_daemon() {
    needs!(mounting(), root(), program("unshare"));
    let pool = pool();
    // A process of the new namespace has the daemon's number.
    let script = format!(
        "echo {} > /proc/sys/kernel/ns_last_pid; sleep 20 & {} top {} --json; kill $!",
        pool.daemon().pid - 1,
        binary().display(),
        at(&pool)
    );
    let unshare = ["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c"];
    let ended = command("unshare").args(unshare).arg(&script).output().unwrap();
    let moment = checked("top", &ended.stdout);
    assert_eq!(moment["processes"], Value::Array(Vec::new()), "{moment:#}");
}

#[test]
fn the_pools_daemon_is_listed_first_then_those_of_its_branches() {
    needs!(mounting());
    let (below, stranger) = (lab::pool().tmp_branch("a").mount(), lab::pool().tmp_branch("a").mount());
    let pool = lab::pool().over(&[at(&below)]).mount();
    let moment = json("top", &["top", &at(&pool)]);
    let shown: Vec<_> =
        moment["processes"].as_array().unwrap().iter().map(|one| (&one["pid"], &one["role"])).collect();
    let wanted = [(pool.daemon().pid, "daemon"), (below.daemon().pid, "fuse")]
        .map(|(pid, role)| (pid.into(), role.into()));
    assert_eq!(shown, wanted.iter().map(|(pid, role): &(Value, Value)| (pid, role)).collect::<Vec<_>>());
    assert!(!shown.iter().any(|(pid, _)| **pid == stranger.daemon().pid));
}
