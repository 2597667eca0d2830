//! A job that empties a branch is killed before each call: every object is on one branch afterwards.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_pool::Ino;
use rustix::process::Signal;

use crate::engine::{Engine, settings};
use crate::kill;
use crate::scenario::{
    DRAIN, DRAIN_FILES, DRAIN_LINKED_FILES, DRAIN_LINKS, FILES, LINKED_FILES, LINKS, Scenario,
};

/// More calls than the process makes.
const MOST: u64 = 20_000;

#[test]
fn a_link_and_a_fifo_are_on_one_branch_wherever_a_drain_is_killed() {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let reset = || DRAIN.prepare_anew(&paths);
    reset();
    let (mounting, _) = kill::child(&DRAIN, &paths, None).unwrap();
    assert_eq!(pool.holders("d/link").len(), 1);
    assert!(!paths[0].join("d").exists(), "the job did not empty the branch");
    let (mut wrong, mut both) = (Vec::new(), 0);
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        reset();
        if kill::child(&DRAIN, &paths, Some(nth)).is_some() {
            break;
        }
        both += usize::from(["d/link", "d/fifo"].iter().any(|path| pool.holders(path).len() > 1));
        drop(Engine::over(paths.into_iter(), settings("ff")));
        let kind = |path: &str| {
            let holders = pool.holders(path);
            let [holder] = holders.as_slice() else { return Err(holders) };
            Ok(pool.branch(holder).path().join(path).symlink_metadata().unwrap().file_type())
        };
        match (kind("d/link"), kind("d/fifo")) {
            (Ok(link), Ok(fifo)) if link.is_symlink() && fifo.is_fifo() => {}
            kinds => wrong.push(format!("killed at {nth}: {kinds:?}")),
        }
        if let Some(path) =
            paths.iter().map(|path| path.join(".fsstack.moving")).find(|path| Path::exists(path))
        {
            wrong.push(format!("killed at {nth}: {} is left", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(both > 0, "the process was never killed between the two names");
}

/// State of the files with these names, as a mount of all branches leaves it.
fn links(pool: &Pool, files: &[&[&str]], numbers: &[Ino]) -> Result<(), String> {
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let engine = Engine::over(paths.into_iter(), settings("ff"));
    let all =
        files.iter().zip(numbers).flat_map(|(names, ino)| names.iter().map(move |name| (names, name, ino)));
    for (names, name, number) in all {
        let entry = engine.find(Path::new(name)).map_err(|error| format!("{name}: {error}"))?;
        let links = entry.attr.stat.nlink;
        if (entry.ino, links as usize) != (*number, names.len()) {
            return Err(format!("{name}: {} with {links} links, was {number}", entry.ino));
        }
        if engine.read(Path::new(name)).unwrap() != names[0].as_bytes() {
            return Err(format!("{name}: another content"));
        }
    }
    drop(engine);
    let on = |name: &str| {
        let holders = pool.holders(name);
        let [holder] = holders.as_slice() else { return Err(format!("{name} is on {holders:?}")) };
        Ok((holder.to_string(), pool.branch(holder).path().join(name).metadata().unwrap().ino()))
    };
    for names in files {
        let all: Vec<_> = names.iter().map(|name| on(name)).collect::<Result<_, _>>()?;
        if all.iter().any(|other| *other != all[0]) {
            return Err(format!("several files: {all:?}"));
        }
    }
    let left = pool.holders(".fsstack.moving");
    if left.is_empty() { Ok(()) } else { Err(format!("a hidden folder is left on {left:?}")) }
}

/// Empties the branches, prepares the scenario there and mounts them: the numbers of the files with these names.
fn prepared(scenario: &Scenario, paths: &[&Path; 3], files: &[&[&str]]) -> Vec<Ino> {
    scenario.prepare_anew(paths);
    let engine = Engine::over(paths.iter().copied(), settings("ff"));
    files.iter().map(|names| engine.find(Path::new(names[0])).unwrap().ino).collect()
}

/// With `first` only those branches are mounted after the kill; then all.
fn killed_with_links(scenario: &Scenario, files: &[&[&str]], first: &[&str]) {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let reset = || prepared(scenario, &paths, files);
    let numbers = reset();
    let (mounting, calls) = kill::child(scenario, &paths, None).unwrap();
    assert!(pool.holders(files[0][0]) != ["a"], "the job did not empty the branch");
    assert_eq!(links(&pool, files, &numbers), Ok(()), "after {calls} calls");
    let linked = || files.iter().filter(|names| names.len() > 1);
    let (mut wrong, mut together) = (Vec::new(), 0);
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        let numbers = reset();
        if kill::child(scenario, &paths, Some(nth)).is_some() {
            break;
        }
        // Files that move by themselves are settled one after another.
        together += usize::from(linked().all(|names| names.iter().any(|path| pool.holders(path).len() > 1)));
        if !first.is_empty() {
            let paths = first.iter().map(|name| pool.branch(name).path());
            let engine = Engine::over(paths, settings("ff"));
            let links = |name: &&str| engine.find(Path::new(name)).map(|entry| entry.attr.stat.nlink);
            for names in linked() {
                let seen: Vec<_> = names.iter().map(links).collect();
                // All names are there, or none; of those that the target shows.
                if !first.contains(&"a") && seen.iter().any(|links| *links != seen[0]) {
                    wrong.push(format!("killed at {nth}: without the source {seen:?}"));
                }
            }
        }
        if let Err(why) = links(&pool, files, &numbers) {
            wrong.push(format!("killed at {nth}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(together > 0, "the process was never killed between the names");
}

#[test]
fn a_file_with_several_links_is_one_wherever_a_drain_is_killed() {
    killed_with_links(&DRAIN_LINKS, LINKS, &[]);
}

#[test]
fn a_file_with_several_links_is_one_after_a_mount_without_the_branch_that_it_left() {
    killed_with_links(&DRAIN_LINKS, LINKS, &["b", "c"]);
}

#[test]
fn a_file_with_several_links_is_one_after_a_mount_without_the_branch_that_it_goes_to() {
    killed_with_links(&DRAIN_LINKS, LINKS, &["a"]);
}

#[test]
fn a_file_with_several_links_is_one_wherever_a_directory_of_it_becomes_append_only() {
    beside_an_append_only_directory(&DRAIN_LINKS, LINKS);
}

#[test]
fn linked_files_of_a_batch_are_whole_wherever_a_directory_of_them_becomes_append_only() {
    beside_an_append_only_directory(&DRAIN_LINKED_FILES, LINKED_FILES);
}

/// At each call of a drain, names in one directory cannot be removed any more.
#[track_caller]
fn beside_an_append_only_directory(scenario: &Scenario, files: &[&[&str]]) {
    needs!(root(), program("chattr"));
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let frozen = paths[0].join("d");
    let reset = || prepared(scenario, &paths, files);
    reset();
    let (mounting, _) = kill::child(scenario, &paths, None).unwrap();
    let (mut wrong, mut stays) = (Vec::new(), 0);
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        let numbers = reset();
        let chattr = |how: &str| command("chattr").arg(how).arg(&frozen).run();
        let freeze = || drop(chattr("+a"));
        if !kill::while_stopped(scenario, &paths, (nth, Signal::CONT), freeze) {
            break;
        }
        // Before a mount settles anything: if no old name could be removed, no new one is left.
        for names in files {
            let holders: Vec<_> = names.iter().map(|name| pool.holders(name)).collect();
            stays += usize::from(holders.iter().all(|holders| *holders == ["a"]));
            if holders.iter().all(|holders| holders.len() == 2) {
                wrong.push(format!("at {nth}: both copies of {} have all names", names[0]));
            }
        }
        let _gone = chattr("-a");
        if let Err(why) = links(&pool, files, &numbers) {
            wrong.push(format!("at {nth}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(stays > 0, "the files left each time");
}

#[test]
fn linked_files_of_a_batch_are_whole_wherever_it_is_killed() {
    killed_with_links(&DRAIN_LINKED_FILES, LINKED_FILES, &[]);
}

#[test]
fn linked_files_of_a_batch_are_whole_after_a_mount_without_the_branch_that_they_left() {
    killed_with_links(&DRAIN_LINKED_FILES, LINKED_FILES, &["b", "c"]);
}

#[test]
fn linked_files_of_a_batch_are_whole_after_a_mount_without_the_branch_that_they_go_to() {
    killed_with_links(&DRAIN_LINKED_FILES, LINKED_FILES, &["a"]);
}

/// The numbers of the files, as a mount of all branches shows them, if each is whole and on one branch.
fn files(pool: &Pool) -> Result<[Ino; 3], String> {
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let engine = Engine::over(paths.into_iter(), settings("ff"));
    let numbers = FILES.map(|name| {
        let entry = engine.find(Path::new(name)).map_err(|error| format!("{name}: {error}"))?;
        let content = engine.read(Path::new(name)).map_err(|error| format!("{name}: {error}"))?;
        if content == name.as_bytes() { Ok(entry.ino) } else { Err(format!("{name}: another content")) }
    });
    drop(engine);
    for name in FILES {
        let holders = pool.holders(name);
        if holders.len() != 1 {
            return Err(format!("{name} is on {holders:?}"));
        }
        let stat = pool.branch(holders[0]).path().join(name).metadata().unwrap();
        if stat.mode() & 0o7777 != 0o640 {
            return Err(format!("{name} has mode {:o}", stat.mode()));
        }
    }
    let left = pool.holders(".fsstack.moving");
    if !left.is_empty() {
        return Err(format!("a hidden folder is left on {left:?}"));
    }
    let [one, two, three] = numbers;
    Ok([one?, two?, three?])
}

/// Small files that move as one batch, killed before each call. With `first` only those branches are mounted after the kill; then
/// all.
fn killed_in_a_batch(first: &[&str]) {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let reset = || {
        DRAIN_FILES.prepare_anew(&paths);
        files(&pool).unwrap()
    };
    let numbers = reset();
    let (mounting, calls) = kill::child(&DRAIN_FILES, &paths, None).unwrap();
    assert!(!paths[0].join("d").exists(), "the job did not empty the branch");
    assert_eq!(files(&pool), Ok(numbers), "after {calls} calls");
    let (mut wrong, mut together) = (Vec::new(), 0);
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        let numbers = reset();
        if kill::child(&DRAIN_FILES, &paths, Some(nth)).is_some() {
            break;
        }
        // A record for each file would have been settled for the first one by the time that the second one has its new name.
        together += usize::from(FILES.iter().all(|path| pool.holders(path).len() > 1));
        if !first.is_empty() {
            let paths = first.iter().map(|name| pool.branch(name).path());
            let engine = Engine::over(paths, settings("ff"));
            let other = |name: &&str| engine.read(Path::new(name)).is_ok_and(|text| text != name.as_bytes());
            if FILES.iter().any(other) {
                wrong.push(format!("killed at {nth}: another content with {first:?}"));
            }
        }
        match files(&pool) {
            Ok(now) if now == numbers => {}
            other => wrong.push(format!("killed at {nth}: {other:?}, was {numbers:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(together > 0, "the files did not move together");
}

#[test]
fn small_files_are_whole_on_one_branch_wherever_their_batch_is_killed() {
    killed_in_a_batch(&[]);
}

#[test]
fn small_files_of_a_batch_are_whole_after_a_mount_without_the_branch_that_they_left() {
    killed_in_a_batch(&["b", "c"]);
}

#[test]
fn small_files_of_a_batch_are_whole_after_a_mount_without_the_branch_that_they_go_to() {
    killed_in_a_batch(&["a"]);
}
