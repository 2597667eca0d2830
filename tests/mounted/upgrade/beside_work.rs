//! Upgrades beside files that are moved because their branch is full, and beside a bulk copy.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use fsstack_lab::daemon::Process;
use fsstack_lab::{self as lab, MiB, Pool, needs, until};
use rustix::process::Signal;

use super::{pool, upgrade};
use crate::command::{at, binary, refused, run};
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

/// The copy is stopped in its middle, so that it is under way for as long as the test likes.
#[test]
fn a_bulk_copy_refuses_it_and_goes_on() {
    needs!(mounting());
    let pool = pool(&[]);
    let source = tempfile::tempdir().unwrap();
    let tree = source.path().join("tree");
    fs::create_dir(&tree).unwrap();
    (0..4000).for_each(|n| fs::write(tree.join(n.to_string()), n.to_string()).unwrap());
    let pid = source.path().join("pid");
    let copy = format!(
        "echo $$ > {0}.new; mv {0}.new {0}; exec {1} copy {2} {3}",
        pid.display(),
        binary().display(),
        tree.display(),
        at(&pool)
    );
    std::thread::scope(|scope| {
        let copies = scope.spawn(|| sh("/", &copy));
        let names = || fs::read_dir(pool.at("tree")).is_ok_and(|mut names| names.next().is_some());
        until("it has begun", || pid.exists() && names());
        let copying = Process::of(fs::read_to_string(&pid).unwrap().trim().parse().unwrap()).unwrap();
        copying.signal(Signal::STOP).unwrap();
        let (code, line) = refused(&["upgrade", &at(&pool)]);
        copying.signal(Signal::CONT).unwrap();
        assert!(code == 1 && line.contains("bulk copy") && line.contains("fsstack copy"), "{code}: {line}");
        copies.join().unwrap();
    });
    for n in 0..4000 {
        assert_eq!(pool.read(format!("tree/{n}")), n.to_string().as_bytes());
    }
    upgrade(&pool);
    assert_eq!(fs::read_dir(pool.at("tree")).unwrap().count(), 4000);
}
