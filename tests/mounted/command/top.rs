//! The screen of `fsstack top`, in a real terminal of tmux, and its figures as JSON.

use std::time::{Duration, Instant};

use fsstack_lab::{MiB, needs};

use super::*;
use crate::relocate::mib;
use crate::script::sh;

/// A terminal in which the command runs.
pub(super) struct Terminal {
    dir: tempfile::TempDir,
}

impl Terminal {
    fn of_top(pool: &Pool) -> Self {
        Self::running(&["top", &at(pool)])
    }

    /// Ctrl-C ends the command; the screen then has its exit code.
    pub(super) fn running(arguments: &[&str]) -> Self {
        let terminal = Self { dir: tempfile::tempdir().unwrap() };
        let line = format!("trap : INT; {} {}", binary().display(), arguments.join(" "));
        terminal.tmux(&format!("new-session -d -x 140 -y 40 '{line}; echo ended with $?; sleep 60'"));
        terminal
    }

    pub(super) fn tmux(&self, command: &str) -> String {
        sh("/", &format!("tmux -S {}/tmux {command}", self.dir.path().display()))
    }

    /// Waits until the screen has `expected`, and returns all of it.
    #[track_caller]
    pub(super) fn with(&self, expected: &str) -> String {
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let shown = self.tmux("capture-pane -p");
            if shown.contains(expected) {
                return shown;
            }
            assert!(Instant::now() < limit, "no {expected:?} on the screen:\n{shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let ended = command("tmux").arg("-S").arg(self.dir.path().join("tmux")).arg("kill-server").output();
        assert!(std::thread::panicking() || ended.is_ok_and(|ended| ended.code == 0));
    }
}

#[test]
fn top_shows_the_pool_in_a_terminal_and_quits_at_q() {
    needs!(mounting(), program("tmux"));
    let pool = pool();
    let terminal = Terminal::of_top(&pool);
    let shown = terminal.with("processes in the stack");
    assert!(shown.contains(&at(&pool)) && shown.contains("create=ff") && shown.contains("daemon"), "{shown}");
    assert!(shown.contains("BRANCH") && shown.contains("WRITTEN/s") && shown.contains("q: quit"), "{shown}");
    // It is redrawn in another size, and restores the terminal.
    terminal.tmux("resize-window -x 80 -y 20");
    terminal.with("q: quit");
    terminal.tmux("send-keys q");
    terminal.with("ended with 0");
}

#[test]
fn jobs_at_work_and_tiers_are_on_the_screen() {
    needs!(mounting(), loops(), program("tmux"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).mode("RW,class=fast");
    let pool = pool.xfs_branch("b", MiB(300)).mode("RW,class=slow").option("create=ff").mount();
    (0..20_u64).for_each(|n| pool.write(n.to_string(), &mib(n)));
    let (at, a) = (at(&pool), branch(&pool, "a"));
    output_of(&["tier", "set", &at, "fast", "slow"]);
    std::thread::scope(|scope| {
        let drains = scope.spawn(|| run(&["branch", "drain", &at, &a, "--rate", "1M"]));
        let terminal = Terminal::of_top(&pool);
        let shown = terminal.with(&format!("job 1: drain of {a}: moving, "));
        assert!(shown.contains(" of 20 files") && shown.contains("tier fast>slow: "), "{shown}");
        output_of(&["job", "cancel", &at, "1"]);
        // The next screen has no job.
        let limit = Instant::now() + Duration::from_secs(20);
        while terminal.with("q: quit").contains("job 1") {
            assert!(Instant::now() < limit, "the cancelled job stays on the screen");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(drains.join().unwrap().code, 1);
    });
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
