//! Listings by raw cookies, as read by NFS servers: each request with a new handle.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;

use fsstack_lab::{self as lab, MiB, needs};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::{Errno, SysError};

use crate::script::sh;

/// A name, and the cookie of the position after it.
pub(crate) type Entry = (String, u64);

/// The first `most` entries after `cookie`, with a new handle; and the error that ends them, if any.
pub(crate) fn listed(dir: &Path, cookie: u64, most: usize) -> (Vec<Entry>, Option<Errno>) {
    let mut entries = Dirents::new(OwnedFd::from(File::open(dir).unwrap()), 1 << 10);
    let mut all = Vec::new();
    let mut read = || -> Result<(), SysError> {
        entries.seek(cookie)?;
        while all.len() < most
            && let Some(entry) = entries.next()?
        {
            let name = entry.name.to_str().unwrap().to_owned();
            if !name.starts_with('.') {
                all.push((name, entry.off));
            }
        }
        Ok(())
    };
    let end = read().err().map(|error| error.errno);
    (all, end)
}

fn names(entries: &[Entry]) -> BTreeSet<&str> {
    entries.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_listing_without_a_branch_has_the_rest_and_ends_with_an_error() {
    needs!(mounting(), loops(), program("xfs_io"));
    for order in [["x", "e"], ["e", "x"]] {
        let pool = lab::pool().xfs_branch("x", MiB(300)).ext4_branch("e", MiB(100)).option("create=ff");
        let mut pool = pool.option("nfs-export").unmounted();
        pool.remount_of(&order);
        fs::create_dir(pool.branch("x").path().join("d")).unwrap();
        sh(pool.branch("e").path(), "mkdir d; cd d; touch $(seq 300)");
        assert_eq!(listed(&pool.at("d"), 0, usize::MAX).0.len(), 300);
        rustix::fs::sync();
        sh("/", &format!("xfs_io -x -c shutdown '{}'", pool.branch("x").path().display()));
        let (all, end) = listed(&pool.at("d"), 0, usize::MAX);
        assert_eq!((all.len(), names(&all).len(), end), (300, 300, Some(Errno::IO)), "{order:?}");
        // Other handles cannot continue from there, not even when the branch is back.
        for (name, cookie) in all.iter().step_by(50).chain(all.last()) {
            assert_eq!(listed(&pool.at("d"), *cookie, usize::MAX).1, Some(Errno::IO), "{order:?} {name}");
        }
        pool.reboot();
        let cookies: Vec<_> = all.iter().map(|(_, cookie)| *cookie).collect();
        let after = listed(&pool.at("d"), cookies[100], usize::MAX);
        assert!(after.1 == Some(Errno::IO) || names(&after.0).len() == 199, "{order:?} {after:?}");
        assert_eq!(listed(&pool.at("d"), 0, usize::MAX).0.len(), 300);
    }
}

/// The branch is another pool that looks like a volume: its positions have more bits than a cookie.
#[test]
fn a_listing_that_goes_on_at_a_removed_entry_leaves_none_out() {
    needs!(mounting());
    let below = lab::pool().tmp_branch("brick").option("subtype=glusterfs").no_others().mount();
    let pool = lab::pool().tmp_branch("b").over(&[below.path().to_str().unwrap()]);
    let pool = pool.option("create=ff").option("attr-timeout=0").option("entry-timeout=0").mount();
    let branch = below.path().join("d");
    fs::create_dir(&branch).unwrap();
    sh(&branch, "touch $(seq 200)");
    let mut seen = BTreeSet::new();
    let (mut cookie, mut rounds) = (0, 0);
    // Like rm -r over NFS: listed names are removed, and the listing continues.
    loop {
        let (some, end) = listed(&pool.at("d"), cookie, 17);
        assert_eq!(end, None);
        let Some((_, last)) = some.last() else { break };
        cookie = *last;
        for (name, _) in &some {
            fs::remove_file(branch.join(name)).unwrap();
            seen.insert(name.clone());
        }
        rounds += 1;
        assert!(rounds <= 200);
    }
    assert_eq!(seen.len(), 200);
    assert!(pool.list("d").is_empty());
}
