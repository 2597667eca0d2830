//! Upgrades beside files that are moved because their branch is full, and beside a bulk copy.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use fsstack_lab::daemon::Process;
use fsstack_lab::{self as lab, MiB, Pool, needs, until};
use rustix::process::Signal;

use super::refused::{refuses, stand_in};
use super::{pool, upgrade};
use crate::command::{at, binary, output_of, run};
use crate::keep;
use crate::script::sh;

/// Moves that are seen at least.
const MOVES: u64 = 6;

fn block(n: u64) -> Vec<u8> {
    vec![u8::try_from(n % 251).unwrap(); 1 << 20]
}

/// Writes files that outgrow their branch until `over`; no call fails, and each byte is where it was written.
fn outgrows(pool: &Pool, over: &AtomicBool, moved: &AtomicU64) {
    let mut round = 0;
    while !over.load(SeqCst) {
        round += 1;
        let name = format!("file{round}");
        let file = File::options().read(true).write(true).create_new(true).open(pool.at(&name)).unwrap();
        for n in 0..12 {
            file.write_all_at(&block(round + n), n << 20)
                .unwrap_or_else(|error| panic!("block {n}: {error}"));
        }
        for n in 0..12 {
            let mut read = block(0);
            file.read_exact_at(&mut read, n << 20).unwrap();
            assert!(read == block(round + n), "round {round}, block {n}");
        }
        moved.fetch_add(u64::from(pool.holders(&name) == ["b"]), SeqCst);
        fs::remove_file(pool.at(&name)).unwrap();
    }
}

#[test]
fn files_move_from_a_full_branch_beside_upgrades() {
    needs!(mounting());
    for restart in ["restart=off", "restart=keep"] {
        let pool = lab::pool().tmpfs_branch("a", MiB(8)).tmpfs_branch("b", MiB(64)).option(restart);
        let pool =
            pool.option("transport=dev,create=ff,minfreespace=1M,write-path=stacked,relocate-speed=40M");
        let pool = pool.mount();
        let (over, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let works = scope.spawn(|| outgrows(&pool, &over, &moved));
            let mut upgrades = 0;
            while moved.load(SeqCst) < MOVES || upgrades < MOVES {
                let told = run(&["upgrade", &at(&pool)]);
                // A move that takes longer than requests may refuses it.
                assert!(told.code == 0 || told.code == 1, "{restart}: {}", told.stderr);
                upgrades += u64::from(told.code == 0);
                assert!(!works.is_finished(), "{restart}: a call has failed");
            }
            over.store(true, SeqCst);
        });
    }
}

/// Copies a tree into the pool, stopped in its middle while `event` runs, three times. Nothing is lost, and nothing left over.
fn copies_beside(pool: &Pool, event: impl Fn(&Pool)) {
    const FILES: usize = 6000;
    let source = tempfile::tempdir().unwrap();
    let tree = source.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..FILES {
        fs::write(tree.join(n.to_string()), n.to_string()).unwrap();
        if n % 10 == 0 {
            fs::hard_link(tree.join(n.to_string()), tree.join(format!("{n}-too"))).unwrap();
        }
    }
    let pid = source.path().join("pid");
    let copy = format!(
        "echo $$ > {0}.new; mv {0}.new {0}; exec {1} copy --verify {2} {3}",
        pid.display(),
        binary().display(),
        tree.display(),
        at(pool)
    );
    std::thread::scope(|scope| {
        let copies = scope.spawn(|| sh("/", &copy));
        let names = || fs::read_dir(pool.at("tree")).map_or(0, Iterator::count);
        until("it has begun", || pid.exists() && names() > 0);
        let copying = Process::of(fs::read_to_string(&pid).unwrap().trim().parse().unwrap()).unwrap();
        for _ in 0..3 {
            copying.signal(Signal::STOP).unwrap();
            event(pool);
            let before = names();
            copying.signal(Signal::CONT).unwrap();
            until("it goes on", || names() > before || copies.is_finished());
        }
        copies.join().unwrap();
    });
    for n in 0..FILES {
        assert_eq!(pool.read(format!("tree/{n}")), n.to_string().as_bytes());
    }
    let number = |name: String| fs::metadata(pool.at("tree").join(name)).unwrap().ino();
    (0..FILES).step_by(10).for_each(|n| assert_eq!(number(n.to_string()), number(format!("{n}-too"))));
    assert_eq!(fs::read_dir(pool.at("tree")).unwrap().count(), FILES + FILES / 10);
    for branch in ["a", "b"] {
        let hidden = pool.branch(branch).path().join(".fsstack.moving");
        let left = sh("/", &format!("find {0} -type f 2>/dev/null || true", hidden.display()));
        assert!(left.is_empty(), "{branch}: {left}");
    }
}

#[test]
fn a_bulk_copy_goes_on_beneath_upgrades() {
    needs!(mounting());
    let pool = pool(&[]);
    copies_beside(&pool, |pool| _ = upgrade(pool));
}

#[test]
fn a_bulk_copy_goes_on_where_the_next_program_fails() {
    needs!(mounting());
    let pool = pool(&[]);
    let program = stand_in(&pool, "stand-in");
    copies_beside(&pool, |pool| refuses(pool, &program, "the stand-in says no"));
}

#[test]
fn a_bulk_copy_goes_on_after_deaths_with_a_keeper() {
    needs!(mounting());
    let pool = keep::pool(&[]);
    let crashes = AtomicU64::new(0);
    // At a third death within a minute the pool would end.
    copies_beside(&pool, |pool| match crashes.fetch_add(1, SeqCst) {
        2 => _ = output_of(&["upgrade", &at(pool)]),
        _ => keep::crash_and_serve(pool),
    });
}
