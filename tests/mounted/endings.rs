//! Every kind of end of a pool, under load or a thousand times: no caller hangs, and nothing is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Pool, Skip, daemon, mounts, needs};
use rustix::process::Signal;

use crate::script::{files_held, sh};

const SOON: Duration = Duration::from_secs(60);

fn pool() -> Pool {
    lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount()
}

/// Programs that make, write, rename, read, list and remove, until something fails, or a file `stop` exists.
struct Load(Vec<JoinHandle<i32>>);

impl Load {
    fn on(pool: &Pool) -> Self {
        let work = "mkdir $0; cd $0; while [ ! -e stop ]; do
              for i in 1 2 3; do echo $i > f$i; mv f$i g$i; cat g$i > /dev/null; done; ls -l > /dev/null
              head -c 300K /dev/zero > large; dd if=large of=copy bs=64K conv=fsync status=none; rm g* large copy
            done; exit 3";
        let start = |n: usize| {
            let dir = pool.path().to_owned();
            let run = move || {
                let run = command("bash").args(["-euc", work, &format!("d{n}")]).dir(dir);
                run.limit(Duration::from_secs(60)).output().unwrap().code
            };
            std::thread::spawn(run)
        };
        let load = Self((0..4).map(start).collect());
        // All of them are working.
        let began = Instant::now();
        while !(0..4).all(|n| pool.at(format!("d{n}/g1")).exists()) {
            assert!(began.elapsed() < SOON, "the load does not begin");
        }
        load
    }

    /// Waits until all have ended.
    fn has_ended(self) {
        for worker in self.0 {
            assert_ne!(worker.join().unwrap(), 0);
        }
    }
}

/// Checks that every file is complete and on one branch.
fn nothing_is_twice(pool: &Pool) {
    let twice = "cd branches; (cd a; find . -type f ! -name stop; cd ../b; find . -type f ! -name stop) | sort | uniq -d";
    assert_eq!(sh(pool.path().parent().unwrap(), twice), "");
}

#[test]
fn a_signal_under_load_unmounts() {
    needs!(mounting());
    for signal in [Signal::TERM, Signal::INT] {
        let mut pool = pool();
        let (load, daemon) = (Load::on(&pool), pool.daemon());
        daemon.signal(signal).unwrap();
        daemon.wait(SOON).unwrap();
        load.has_ended();
        assert_eq!(mounts::at(pool.path()).unwrap(), None);
        nothing_is_twice(&pool);
        pool.remount();
        sh(pool.path(), "rm -rf d*; [ -z \"$(ls -A)\" ]");
    }
}

#[test]
fn a_lazy_unmount_under_load_ends_with_its_last_user() {
    needs!(mounting());
    let pool = pool();
    let (load, daemon) = (Load::on(&pool), pool.daemon());
    sh("/", &format!("! umount {0} 2> /dev/null; umount -l {0}", pool.path().display()));
    // A program in the pool continues.
    assert!(daemon.lives());
    sh("/", "sleep 0.2");
    assert!(daemon.lives());
    for branch in pool.branches() {
        sh(branch.path(), "for d in d*; do [ ! -d $d ] || touch $d/stop; done");
    }
    load.has_ended();
    daemon.wait(SOON).unwrap();
    nothing_is_twice(&pool);
}

#[test]
fn an_aborted_connection_ends_the_daemon_and_frees_all_callers() {
    needs!(mounting());
    let mut pool = pool();
    for _ in 0..3 {
        let (load, daemon) = (Load::on(&pool), pool.daemon());
        mounts::abort(mounts::at(pool.path()).unwrap().unwrap().connection()).unwrap();
        load.has_ended();
        daemon.wait(SOON).unwrap();
        nothing_is_twice(&pool);
        pool.remount();
        sh(pool.path(), "rm -rf d*; [ -z \"$(ls -A)\" ]");
    }
}

#[test]
fn a_killed_daemon_frees_all_callers() {
    needs!(mounting());
    let mut pool = pool();
    for _ in 0..3 {
        let load = Load::on(&pool);
        pool.kill_daemon();
        load.has_ended();
        nothing_is_twice(&pool);
        pool.remount();
        sh(pool.path(), "rm -rf d*; [ -z \"$(ls -A)\" ]");
    }
}

#[test]
fn a_storm_of_processes_leaves_nothing_behind() {
    needs!(mounting());
    let pool = pool();
    pool.write("file", b"x");
    let storm = "for round in 1 2 3; do
          for i in $(seq 200); do (cat file; echo $i > new$i; mv new$i old$i; stat old$i; exec rm old$i) > /dev/null & done
          wait; done; ls";
    assert_eq!(sh(pool.path(), storm), "file");
    let held = files_held(&pool);
    sh(pool.path(), storm);
    assert!(files_held(&pool) <= held, "{held} descriptors became {}", files_held(&pool));
    // Added threads are gone, or few.
    let threads = || fs::read_dir(format!("/proc/{}/task", pool.daemon().pid)).unwrap().count();
    let began = Instant::now();
    while 64 < threads() {
        assert!(began.elapsed() < SOON, "{} threads", threads());
    }
}

/// Mounts, works and unmounts that many times.
fn cycles(count: usize) {
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let _mount = lab::cleanup::Entry::mount(pool.path()).unwrap();
    let (mount, target) = (pool.mount_command().unwrap().line(), pool.path().to_owned());
    let before = left(&target);
    for _ in 0..count.div_ceil(25) {
        let work =
            format!("for i in $(seq 25); do {mount}; echo $i > file; umount {0}; done", target.display());
        // `file` is in the current directory, the helper's own, which must not keep the mount busy.
        command("bash")
            .args(["-euc", &work])
            .dir(pool.branch("a").path())
            .limit(Duration::from_secs(120))
            .run()
            .unwrap();
    }
    let began = Instant::now();
    while left(&target) != before {
        assert!(began.elapsed() < SOON, "{before:?} became {:?}", left(&target));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Daemons of the pool, mounts at its path, and the daemons' files at run time.
fn left(target: &Path) -> (usize, usize, Vec<PathBuf>) {
    let noted = fs::read_dir("/run/fsstack").into_iter().flatten().map(|entry| entry.unwrap().path());
    let ours = |path: &PathBuf| {
        fs::read(path).is_ok_and(|text| String::from_utf8_lossy(&text).contains(target.to_str().unwrap()))
    };
    (
        daemon::serving(target).unwrap().len(),
        mounts::below(target).unwrap().len(),
        noted.filter(ours).collect(),
    )
}

#[test]
fn a_hundred_mounts_leave_nothing_behind() {
    needs!(mounting());
    cycles(100);
}

#[test]
#[ignore = "a minute or more: cargo xtask test --tier long"]
fn a_thousand_mounts_leave_nothing_behind() {
    needs!(mounting());
    cycles(1000);
}

/// A CPU switched off by a test, switched on again on drop.
struct Switched(&'static Path);

impl Switched {
    fn to(&self, state: &str) -> std::io::Result<()> {
        fs::write(self.0, state)
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        if let Err(error) = self.to("1") {
            eprintln!("{} stays as it is: {error}", self.0.display());
        }
    }
}

#[test]
#[ignore = "takes a CPU away from all of the machine: cargo xtask test --tier long"]
fn a_cpu_goes_and_comes_back_under_load() {
    needs!(mounting());
    let switch = Path::new("/sys/devices/system/cpu/cpu1/online");
    if !switch.exists() {
        return Skip::because("needs a CPU that can be switched off").announce();
    }
    let mut pool = pool();
    let (load, daemon) = (Load::on(&pool), pool.daemon());
    let switch = Switched(switch);
    for state in ["0", "1", "0", "1"] {
        if let Err(error) = switch.to(state) {
            daemon.kill().unwrap();
            load.has_ended();
            return Skip::because(format!("needs a CPU that can be switched off: {error}")).announce();
        }
        sh(pool.path(), "mkdir -p more; for i in $(seq 50); do echo > more/$i; done; rm -r more");
    }
    // Mounted while one is off, too.
    let other = lab::pool().tmp_branch("a").unmounted();
    switch.to("0").unwrap();
    let mut other = other;
    other.remount();
    other.write("file", b"x");
    switch.to("1").unwrap();
    assert_eq!(other.read("file"), b"x");
    other.unmount();
    daemon.signal(Signal::TERM).unwrap();
    daemon.wait(SOON).unwrap();
    load.has_ended();
    pool.remount();
}
