//! Listings that the kernel keeps: used as long as nothing has changed, and never beyond that.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;

use fsstack_lab::{self as lab, Builder, MiB, Pool, Requests, needs, until};
use fsstack_sys::dirents::Dirents;

use crate::command as operator;
use crate::handles_listings::listed;
use crate::hung_branches::FrozenDaemon;
use crate::script::sh;

/// Two branches that are served by other daemons, and of which nobody else knows.
fn remote() -> Builder {
    lab::pool().served_branch("a").served_branch("b").option("create=ff").option("out-of-band=never")
}

/// Two local branches.
fn local() -> Builder {
    lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff")
}

/// The names in `d`, after the listing had time to be kept.
fn kept(pool: &Pool) -> Vec<OsString> {
    // Local branches: a change in the clock tick of the listing could be missed, so that it is not kept.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let _fills = pool.list("d");
    pool.list("d")
}

/// Requests for names that a listing of `d` costs.
fn read(pool: &Pool, requests: &Requests) -> usize {
    let _before = requests.counted();
    let _names = pool.list("d");
    let counted = requests.counted();
    ["READDIR", "READDIRPLUS"].iter().filter_map(|name| counted.get(*name)).sum()
}

#[test]
fn a_listing_is_read_once_where_every_change_would_be_known() {
    needs!(mounting(), counted_requests());
    let cases = [
        (local(), true),
        (local().option("out-of-band=watch"), true),
        (remote(), true),
        (remote().option("out-of-band=timeout"), false),
        (remote().option("degraded=read"), false),
    ];
    for (n, (builder, is_kept)) in cases.into_iter().enumerate() {
        let pool = builder.mount();
        sh(pool.path(), "mkdir d; cd d; seq 300 | xargs touch");
        assert_eq!(kept(&pool).len(), 300, "case {n}");
        let requests = Requests::to(pool.path());
        assert_eq!(read(&pool, &requests) == 0, is_kept, "case {n}");
    }
}

#[test]
fn changes_through_the_pool_show_in_a_kept_listing() {
    needs!(mounting());
    for builder in [local(), local().option("out-of-band=watch"), remote()] {
        let pool = builder.mount();
        sh(pool.path(), "mkdir d e; touch d/old");
        assert_eq!(kept(&pool), ["old"]);
        for (change, names) in [
            ("touch d/made", &["made", "old"][..]),
            ("mkdir d/dir", &["dir", "made", "old"]),
            ("mv d/made e/away", &["dir", "old"]),
            ("mv e/away d/back", &["back", "dir", "old"]),
            ("ln d/old d/linked; ln -s old d/symlink", &["back", "dir", "linked", "old", "symlink"]),
            ("rmdir d/dir; rm d/back d/linked d/symlink", &["old"]),
            ("mknod d/pipe p", &["old", "pipe"]),
            ("mv d/pipe d/old", &["old"]),
        ] {
            sh(pool.path(), change);
            assert_eq!(pool.list("d"), names, "after {change}");
            assert_eq!(kept(&pool), names, "after {change}");
        }
        // By the operator's copy, whose names the kernel did not ask for.
        let source = tempfile::tempdir().unwrap();
        let file = source.path().join("copied");
        fs::write(&file, "content").unwrap();
        operator::output_of(&["copy", file.to_str().unwrap(), pool.at("d").to_str().unwrap()]);
        assert_eq!(pool.list("d"), ["copied", "old"]);
    }
}

#[test]
fn out_of_band_changes_show_at_the_next_opening() {
    needs!(mounting());
    for builder in [local(), local().option("out-of-band=watch")] {
        let pool = builder.mount();
        sh(pool.path(), "mkdir d; touch d/old d/more");
        assert_eq!(kept(&pool), ["more", "old"]);
        let dir = pool.branch("a").path().join("d");
        fs::write(dir.join("past"), "").unwrap();
        assert_eq!(pool.list("d"), ["more", "old", "past"]);
        assert_eq!(kept(&pool), ["more", "old", "past"]);
        fs::rename(dir.join("old"), dir.join("other")).unwrap();
        assert_eq!(pool.list("d"), ["more", "other", "past"]);
        assert_eq!(kept(&pool), ["more", "other", "past"]);
        fs::remove_file(dir.join("more")).unwrap();
        assert_eq!(pool.list("d"), ["other", "past"]);
    }
}

/// With a kept listing each name would be a request, as soon as attributes have expired.
#[test]
fn attributes_that_are_asked_for_again_and_again_come_with_the_listing() {
    needs!(mounting(), counted_requests());
    let pool = local().option("attr-timeout=0.2").option("entry-timeout=0.2").mount();
    sh(pool.path(), "mkdir d; cd d; seq 300 | xargs touch");
    let requests = Requests::to(pool.path());
    let read = || {
        // Longer than the timeouts, and than the tick of a change.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let _before = requests.counted();
        sh(pool.path(), "find d -printf '%s\\n'");
        let counted = requests.counted();
        ["READDIRPLUS", "LOOKUP"].map(|name| counted.get(name).copied().unwrap_or(0))
    };
    let [listed, _] = read();
    assert!(0 < listed, "the first listing is read from the daemon");
    let _kept = read();
    let mut later = [(); 6].map(|()| read());
    assert!(later.iter().all(|[listed, _]| 0 < *listed), "{later:?} requests for listings and names");
    // In a `find` that pauses for longer than the timeouts they expire between listing and name.
    later.sort_by_key(|[_, looked_up]| *looked_up);
    assert!(later[2][1] < 30, "{later:?} requests for listings and names");
}

/// An NFS server reads each part of a listing with a handle of its own, from a cookie on.
#[test]
fn cookies_of_a_kept_listing_are_good_in_any_handle() {
    needs!(mounting());
    for builder in [local(), remote()] {
        let mut pool = builder.unmounted();
        for (n, branch) in pool.branches().iter().enumerate() {
            fs::create_dir(branch.path().join("d")).unwrap();
            for name in (n..400).step_by(2) {
                fs::write(branch.path().join(format!("d/entry-{name}")), "").unwrap();
            }
        }
        pool.remount();
        assert_eq!(kept(&pool).len(), 400);
        let (all, end) = listed(&pool.at("d"), 0, usize::MAX);
        assert_eq!((all.len(), end), (400, None));
        for (at, (name, cookie)) in all.iter().enumerate().step_by(40) {
            assert_eq!(listed(&pool.at("d"), *cookie, usize::MAX).0, all[at + 1..], "after {name}");
        }
        // Names go; the kernel reads anew, and earlier cookies mean the same.
        for (name, _) in all[100..200].iter().chain(&all[300..320]) {
            fs::remove_file(pool.at("d").join(name)).unwrap();
        }
        let left: Vec<_> = all[200..300].iter().chain(&all[320..]).map(|(name, _)| name.as_str()).collect();
        let same = |pool: &Pool| {
            let (rest, end) = listed(&pool.at("d"), all[150].1, usize::MAX);
            assert_eq!(rest.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), left);
            assert_eq!(end, None);
        };
        for _ in 0..2 {
            same(&pool);
            assert_eq!(kept(&pool).len(), 280);
        }
        // The same in a mount that has kept nothing.
        pool.remount();
        same(&pool);
    }
}

#[test]
fn a_file_that_has_moved_is_listed_once() {
    needs!(mounting(), counted_requests());
    let mut pool = remote().unmounted();
    for branch in pool.branches() {
        fs::create_dir(branch.path().join("d")).unwrap();
    }
    pool.remount();
    sh(pool.path(), "cd d; seq 200 | xargs touch");
    let names: BTreeSet<_> = kept(&pool).into_iter().collect();
    assert_eq!(pool.holders("d/1"), ["a"]);
    operator::output_of(&["branch", "drain", &operator::at(&pool), &operator::branch(&pool, "a")]);
    until("the branch is drained", || {
        fs::read_dir(pool.branch("a").path().join("d")).map_or(true, |mut left| left.next().is_none())
    });
    // The kept places are those on the other branch.
    let requests = Requests::to(pool.path());
    assert_ne!(read(&pool, &requests), 0);
    let (all, end) = listed(&pool.at("d"), 0, usize::MAX);
    assert_eq!((all.len(), end), (200, None));
    assert_eq!(all.iter().map(|(name, _)| OsString::from(name)).collect::<BTreeSet<_>>(), names);
}

/// A program reads a listing that the kernel keeps. Names that it has still to come to move to where it has been, and the kernel
/// drops that listing: it asks for the rest by a handle by which it has asked for nothing before. Which of them it had already is
/// not known; those come again.
#[test]
fn a_kept_listing_that_the_kernel_drops_beside_a_drain_leaves_out_no_name() {
    needs!(mounting(), loops(), drop_caches(), counted_requests());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let mut pool = pool.option("create=ff,minfreespace=4M").unmounted();
    for (n, branch) in pool.branches().iter().enumerate() {
        fs::create_dir(branch.path().join("d")).unwrap();
        (0..300).for_each(|name| fs::write(branch.path().join(format!("d/{n}-{name}")), "").unwrap());
    }
    pool.remount();
    assert_eq!(kept(&pool).len(), 600);
    let requests = Requests::to(pool.path());
    let mut entries = Dirents::new(fs::File::open(pool.at("d")).unwrap().into(), 512);
    let mut names = BTreeSet::new();
    let mut read = |most: usize| {
        let next = || entries.next().unwrap().map(|entry| entry.name.to_owned());
        names.extend(std::iter::from_fn(next).take(most));
        names.len()
    };
    assert_eq!(read(400), 400);
    let counted = requests.counted();
    assert!(!counted.keys().any(|name| name.contains("READDIR")), "{counted:?}");
    operator::output_of(&["branch", "drain", &operator::at(&pool), &operator::branch(&pool, "b")]);
    sh("/", "echo 1 > /proc/sys/vm/drop_caches");
    assert_eq!(read(usize::MAX), 602);
    let counted = requests.counted();
    assert!(counted.keys().any(|name| name.contains("READDIR")), "the kernel has kept it: {counted:?}");
}

#[test]
fn a_removal_that_failed_and_happens_later_shows() {
    needs!(mounting());
    let pool = remote().option("branch-timeout=1").option("write-path=stacked").mount();
    sh(pool.path(), "mkdir d; touch d/old d/gone");
    assert_eq!(kept(&pool), ["gone", "old"]);
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    assert_eq!(fs::remove_file(pool.at("d/gone")).unwrap_err().raw_os_error(), Some(5));
    drop(frozen);
    let below = pool.branch("a").below().join("d/gone");
    until("the branch is back", || fs::symlink_metadata(pool.at("d/old")).is_ok());
    // The branch may have dropped the request, too: then nothing has changed.
    until("the removal is done", || !below.exists() || fs::remove_file(pool.at("d/gone")).is_ok());
    until("the listing is of what there is", || fs::read_dir(pool.at("d")).is_ok());
    assert_eq!(pool.list("d"), ["old"]);
}
