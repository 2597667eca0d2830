//! Callers that are interrupted or killed while their requests are in a hung branch: each is answered once, and the
//! pool works on. On both transports.

use std::fs;
use std::path::Path;
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use fsstack_lab::pool::Builder;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Pool, needs, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::hung_branches::FrozenDaemon;

const CALLERS: usize = 24;

/// A program working on a file of the hung branch.
struct Caller {
    pid: i32,
    end: JoinHandle<()>,
}

impl Caller {
    /// The `n`-th one; it writes its process id to a file in `place`.
    fn new(pool: &Pool, place: &Path, n: usize) -> Self {
        let (file, note) = (pool.at(format!("a{n}")), place.join(n.to_string()));
        let work = match n % 3 {
            0 => format!("cat {}", file.display()),
            1 => format!("dd if=/dev/zero of={} bs=64K count=1 conv=notrunc", file.display()),
            _ => format!("rm {}", file.display()),
        };
        let _of_the_round_before = fs::remove_file(&note);
        let scenario = format!("echo $$ > {0}.new; mv {0}.new {0}; exec {work}", note.display());
        let run = command("sh").args(["-c", &scenario]).limit(Duration::from_secs(100));
        let end = thread::spawn(move || drop(run.output().unwrap()));
        until("a caller begins", || note.exists());
        Self { pid: fs::read_to_string(&note).unwrap().trim().parse().unwrap(), end }
    }

    /// True if it waits for a reply of the pool.
    fn waits(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/wchan", self.pid))
            .is_ok_and(|at| at.contains("request_wait_answer"))
    }
}

fn callers_give_up(builder: Builder) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = builder.option("max-threads=4").option(&format!("log={}", log.path().display()));
    let mut pool = pool.tmp_branch("b").served_branch("a").option("branch-timeout=2").unmounted();
    for n in 0..CALLERS {
        fs::write(pool.branch("a").path().join(format!("a{n}")), "bytes").unwrap();
    }
    pool.remount();
    pool.write("file", b"elsewhere");
    let notes = tempfile::tempdir().unwrap();
    for signal in [Signal::INT, Signal::KILL, Signal::KILL] {
        let kept: Vec<usize> =
            (0..CALLERS).filter(|n| pool.branch("a").path().join(format!("a{n}")).exists()).collect();
        let frozen = FrozenDaemon::new(pool.branch("a").daemon());
        let callers: Vec<Caller> = kept.iter().map(|n| Caller::new(&pool, notes.path(), *n)).collect();
        // Some are inside the branch, others have no thread or no permit.
        let answered = || callers.iter().all(|caller| caller.end.is_finished());
        until("a caller waits", || callers.iter().any(Caller::waits) || answered());
        sleep(Duration::from_millis(200));
        // One that was refused has ended, and its process id may be reused.
        for caller in callers.iter().filter(|caller| !caller.end.is_finished()) {
            let pid = Pid::from_raw(caller.pid).unwrap();
            let _ended = kill_process(pid, signal);
        }
        until("all callers end", || callers.iter().all(|caller| caller.end.is_finished()));
        drop(frozen);
        until("the branch answers again", || fs::write(pool.at("b0"), "more").is_ok());
        assert_eq!(pool.read("file"), b"elsewhere");
        pool.write("file", b"elsewhere");
        for n in 0..CALLERS {
            fs::write(pool.at(format!("b{n}")), "more").unwrap();
            fs::remove_file(pool.at(format!("b{n}"))).unwrap();
        }
    }
    pool.unmount();
    // A reply that the kernel does not expect, such as a second one, is an error in the log.
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(!said.contains(" ERROR "), "{said}");
}

#[test]
fn callers_give_up_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    callers_give_up(lab::pool().option("transport=dev").option("create=ff").option("write-path=stacked"));
}

#[test]
fn callers_give_up_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    callers_give_up(lab::pool().option("transport=ring").option("create=ff").option("write-path=stacked"));
}
