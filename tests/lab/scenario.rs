//! Shared parts of scenarios with broken servers: a lab that is repaired afterwards, and checks of errors.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fsstack_lab::gluster::{self, Gluster, KINDS, Volume};
use fsstack_lab::{self as lab, Pool};

pub(crate) const EIO: Option<i32> = Some(5);

/// Errno of the branch itself, for passthrough reads and writes.
const ENOTCONN: Option<i32> = Some(107);

/// Longer than twice a client's timeout for a silent server.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A lab for causing faults; repaired on drop. Made after the pool, so that it is dropped first.
pub(crate) struct Breakable(Gluster);

impl Breakable {
    pub(crate) fn new() -> Self {
        Self(gluster::lab_of_tests().unwrap())
    }

    /// Ends all faults, and waits until every volume is complete.
    #[track_caller]
    pub(crate) fn mend(&self) {
        self.0.thaw().unwrap();
        self.0.heal(Duration::from_secs(90)).unwrap();
    }
}

impl std::ops::Deref for Breakable {
    type Target = Gluster;

    fn deref(&self) -> &Gluster {
        &self.0
    }
}

impl Drop for Breakable {
    fn drop(&mut self) {
        let mended = self.0.thaw().and_then(|()| self.0.heal(Duration::from_secs(90)));
        assert!(mended.is_ok() || std::thread::panicking(), "{mended:?}");
    }
}

pub(crate) fn volume(name: &str) -> Volume {
    name.parse().unwrap()
}

/// A pool whose branch `a` is on `volume` and `b` on the machine itself, without the kernel's caches.
pub(crate) fn beside_a_local_branch(volume: &str, options: &[&str]) -> Pool {
    let pool = lab::pool().gluster_branch("a", volume).tmp_branch("b").option("create=ff");
    let caches = ["attr-timeout=0", "entry-timeout=0"];
    caches.iter().chain(options).fold(pool, |pool, option| pool.option(option)).mount()
}

/// A pool with a branch on each kind of volume, named after the volume.
pub(crate) fn over_all_kinds(options: &[&str]) -> Pool {
    let pool = KINDS.iter().fold(lab::pool(), |pool, kind| pool.gluster_branch(kind, kind));
    options.iter().fold(pool, |pool, option| pool.option(option)).mount()
}

pub(crate) fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// True if reading a whole file fails as unreachable: with the pool's errno at the open, or the branch's at the read,
/// if its client answered the open from memory.
pub(crate) fn is_out_of_reach<T>(result: io::Result<T>) -> bool {
    let errno = errno(result);
    errno == EIO || errno == ENOTCONN
}

/// True if creating an existing file fails correctly: the branch cannot be asked, or the client remembers that the file
/// exists.
pub(crate) fn is_not_made<T>(result: io::Result<T>) -> bool {
    const EEXIST: Option<i32> = Some(17);
    let errno = errno(result);
    errno == EIO || errno == EEXIST
}

/// Names in a directory, or the error of an incomplete listing.
pub(crate) fn listing(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names =
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Waits until `holds`, with a limit that only a failure reaches.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(50));
    }
}
