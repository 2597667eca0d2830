//! Behaviour of all jobs: their threads give way to programs, and they outlive the command that began them.

use std::fs;

use fsstack_lab::{self as lab, MiB, needs, until};

use super::drain::job;
use super::top::Terminal;
use super::*;
use crate::relocate::{assert_clean, mib};
use crate::script::sh;

const FILES: u64 = 8;

fn filled() -> Pool {
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    (0..FILES).for_each(|n| pool.write(n.to_string(), &mib(n)));
    pool
}

fn moved(pool: &Pool) -> u64 {
    job(pool)["moved_files"].as_u64().unwrap_or_default()
}

#[test]
fn ctrl_c_ends_the_display_and_the_job_goes_on() {
    needs!(mounting(), loops(), program("tmux"));
    let pool = filled();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let terminal = Terminal::running(&["branch", "drain", &at, &a, "--rate", "1M"]);
    terminal.with("moving: ");
    until("a file has moved", || moved(&pool) > 0);
    terminal.tmux("send-keys C-c");
    // By SIGINT.
    terminal.with("ended with 130");
    let after = job(&pool);
    assert_eq!((&after["over"], &after["state"]), (&false.into(), &"moving".into()), "{after}");
    until("it has ended", || job(&pool)["over"] == true);
    assert_eq!((job(&pool)["state"].as_str(), moved(&pool)), (Some("done"), FILES));
    (0..FILES).for_each(|n| assert!(pool.read(n.to_string()) == mib(n), "{n}"));
    output_of(&["branch", "remove", &at, &a]);
    assert_clean(&pool);
}

/// The I/O class and the CPU policy of each thread of the daemon that has this name.
fn classes(pool: &Pool, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pool.daemon().pid)).unwrap();
    let is_named =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
    let class = |task: PathBuf| sh("/", &format!("ionice -p {}", task.file_name().unwrap().display()));
    tasks.map(|task| task.unwrap().path()).filter(is_named).map(class).collect()
}

#[test]
fn files_are_moved_in_the_idle_class_of_io() {
    needs!(mounting(), loops(), program("ionice"));
    let pool = filled();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    std::thread::scope(|scope| {
        let drains = scope.spawn(|| run(&["branch", "drain", &at, &a, "--rate", "2M"]));
        until("a file has moved", || moved(&pool) > 0);
        let movers = classes(&pool, "mover");
        assert!(!movers.is_empty() && movers.iter().all(|class| class.contains("idle")), "{movers:?}");
        let main = sh("/", &format!("ionice -p {}", pool.daemon().pid));
        assert!(!main.contains("idle"), "{main}");
        assert_eq!(drains.join().unwrap().code, 0);
    });
    assert_clean(&pool);
}
