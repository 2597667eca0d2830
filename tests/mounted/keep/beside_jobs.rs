//! Programs change names while jobs move files, after the daemon was killed: each call ends as on a local disk.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fsstack_lab::{self as lab, MiB, Pool, needs};

use super::crash_and_serve;
use crate::command::{at, branch, output_of, run};
use crate::stress::Dice;

/// Threads that work, each below a directory of its own.
const WORKERS: usize = 3;

/// Files of each directory.
const NAMES: u64 = 10;

/// A name below a worker's directory.
fn any_name(dice: &mut Dice) -> String {
    let dir = ["", "a/", "b/"][usize::try_from(dice.below(3)).unwrap()];
    format!("{dir}f{}", dice.below(NAMES))
}

/// Does something below `top`; the answer is what shows of it.
fn act(top: &Path, which: u64, from: &str, to: &str) -> io::Result<Vec<String>> {
    let (from, to) = (top.join(from), top.join(to));
    let (a, c) = (top.join("a"), top.join("c"));
    match which {
        0..=4 => fs::rename(from, to)?,
        5 | 6 => fs::hard_link(from, to)?,
        7 => drop(fs::File::create_new(from)?),
        8 => fs::write(from, b"content")?,
        9 => fs::remove_file(from)?,
        10 => fs::rename(&a, &c).and_then(|()| fs::rename(c, a))?,
        11 => {
            let stat = fs::metadata(from)?;
            return Ok(vec![format!("{} bytes, {} links", stat.len(), stat.nlink())]);
        }
        _ => {
            let names = fs::read_dir(from.parent().unwrap())?;
            let mut names: Vec<String> =
                names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            return Ok(names);
        }
    }
    Ok(Vec::new())
}

/// Does the same in the pool and on the local disk until `ended`. Returns the first difference, if there is one.
fn works(pool: &Path, local: &Path, seed: u64, ended: &AtomicBool) -> Option<String> {
    for top in [pool, local] {
        ["a", "b"].iter().for_each(|dir| fs::create_dir_all(top.join(dir)).unwrap());
    }
    let mut dice = Dice(seed);
    let mut step = 0;
    while !ended.load(SeqCst) {
        step += 1;
        let (which, from, to) = (dice.below(14), any_name(&mut dice), any_name(&mut dice));
        let answers = [local, pool].map(|top| act(top, which, &from, &to).map_err(|error| error.kind()));
        if answers[0] != answers[1] {
            return Some(format!("step {step}, call {which} of {from} and {to}: {answers:?}"));
        }
    }
    None
}

/// Drains and gathers files, whatever comes of it: names that were just changed may stay.
fn moves_files(pool: &Pool) {
    for name in ["a", "b", "c"] {
        run(&["branch", "drain", &at(pool), &branch(pool, name)]);
        output_of(&["branch", "mode", &at(pool), &branch(pool, name), "RW"]);
        run(&["consolidate", &at(pool), &pool.at("0").display().to_string(), "--to", &branch(pool, name)]);
    }
}

/// The kernel knows of each file more than the daemon that follows, which forgot files while a job moved them.
#[test]
fn names_change_beside_jobs_after_a_death_as_on_a_local_disk() {
    needs!(mounting(), loops());
    let pool = ["a", "b", "c"].iter().fold(lab::pool(), |pool, name| pool.xfs_branch(name, MiB(300)));
    let pool = pool.option("minfreespace=8M").option("transport=dev").option("restart=keep").mount();
    let local = tempfile::tempdir().unwrap();
    let ended = AtomicBool::new(false);
    let wrong: Vec<Option<String>> = std::thread::scope(|scope| {
        let (pool, local, ended) = (&pool, local.path(), &ended);
        let work = move |worker: usize| {
            let (pool, local) = (pool.at(worker.to_string()), local.join(worker.to_string()));
            works(&pool, &local, 0x9e37_79b9 + u64::try_from(worker).unwrap(), ended)
        };
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        for _ in 0..2 {
            moves_files(pool);
            crash_and_serve(pool);
            moves_files(pool);
        }
        ended.store(true, SeqCst);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(wrong.iter().all(Option::is_none), "{wrong:?}");
}
