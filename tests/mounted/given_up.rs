//! Callers that are interrupted or killed while their requests are in a branch that hangs: each is answered once, and the
//! pool goes on. On both doors.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fsstack_lab::pool::Builder;
use fsstack_lab::{self as lab, Pool, needs};
use rustix::process::{Pid, Signal, kill_process};

use crate::hung_branches::Frozen;

const CALLERS: usize = 24;

#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: waited in vain");
        sleep(Duration::from_millis(5));
    }
}

/// A program at work on a file of the branch that hangs.
fn caller(pool: &Pool, n: usize) -> Child {
    let file = pool.at(format!("a{n}")).display().to_string();
    let words = match n % 3 {
        0 => format!("exec cat {file}"),
        1 => format!("exec dd if=/dev/zero of={file} bs=64K count=1 conv=notrunc"),
        _ => format!("exec rm {file}"),
    };
    let mut command = Command::new("sh");
    command.args(["-c", &words]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Whether it waits for an answer of the pool.
fn waits(child: &Child) -> bool {
    fs::read_to_string(format!("/proc/{}/wchan", child.id()))
        .is_ok_and(|at| at.contains("request_wait_answer"))
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
    for signal in [Signal::INT, Signal::KILL, Signal::KILL] {
        let kept: Vec<usize> =
            (0..CALLERS).filter(|n| pool.branch("a").path().join(format!("a{n}")).exists()).collect();
        let frozen = Frozen::new(pool.branch("a").daemon());
        let mut callers: Vec<Child> = kept.iter().map(|n| caller(&pool, *n)).collect();
        // Some are inside the branch, others find no thread or no place in it.
        until("a caller waits", || callers.iter().any(waits));
        sleep(Duration::from_millis(200));
        for child in &callers {
            let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
            // One that was refused has ended already.
            let _ended = kill_process(pid, signal);
        }
        until("all callers end", || callers.iter_mut().all(|child| child.try_wait().unwrap().is_some()));
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
    // An answer that the kernel has no use for, a second one above all, is an error in the log.
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
