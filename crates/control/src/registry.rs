//! Registry of live pools: the branches of each running daemon, so that no second pool uses them.
//!
//! Each daemon claims a name when it mounts, and releases it when it ends: `<id>.json` describes the pool, and `<id>.sock`
//! is its control socket. A killed daemon leaves both behind. An entry counts only while its process runs (its start time
//! distinguishes it from a later process of the same number), or a process listens at its socket. Claiming a name and
//! listing the pools remove dead entries. `.lock` is locked meanwhile, so that a name claimed a moment ago is not
//! removed. A second daemon on the same mount point (the first was unmounted lazily, and is in use) gets `<id>-2`. Two pools
//! that are mounted in the same moment may both miss the other's branches when they look: the second one sees them when it claims its name.

use crate::{Client, dead_mounts};
use fsstack_sys::process::start_time;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Directory of the registry for root's daemons.
pub const REGISTRY: &str = "/run/fsstack";

/// Directory of the registry for this user's daemons, in the user's runtime directory (XDG_RUNTIME_DIR).
pub fn own() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from(REGISTRY));
    }
    let run = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    run.is_absolute().then(|| run.join("fsstack"))
}

/// Identity of a directory, whatever path leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DirectoryId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl DirectoryId {
    /// Returns the identity of the directory at the absolute `path`, from the server of its file system. The kernel's
    /// cached number may be wrong: when the root of a mounted subdirectory changes, GlusterFS's client replies with
    /// another number, which is cached for a second.
    ///
    /// # Errors
    /// The directory is missing, not a directory, or unreachable.
    pub fn at(path: &Path) -> io::Result<Self> {
        let dir = fsstack_sys::at::open_root(path).map_err(|error| error.errno)?;
        let stat = fsstack_sys::at::stat_now(dir.as_fd()).map_err(|error| error.errno)?;
        Ok(Self { device: stat.dev, inode: stat.ino })
    }
}

/// A branch of a live pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryBranch {
    /// Identity of the directory.
    pub id: DirectoryId,
    path: Vec<u8>,
}

impl RegistryBranch {
    /// A branch at its canonical path.
    pub fn new(id: DirectoryId, path: &Path) -> Self {
        Self { id, path: path.as_os_str().as_bytes().to_vec() }
    }

    /// Returns its path.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.path.clone()))
    }
}

/// Entry of a live pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryEntry {
    /// The pool's name, which names the file; empty until it is claimed.
    #[serde(skip)]
    pub id: String,
    /// The daemon's process id.
    pub pid: u32,
    /// The daemon's start time, in clock ticks since boot.
    pub started: u64,
    mount_point: Vec<u8>,
    /// Branches of the pool.
    pub branches: Vec<RegistryBranch>,
    /// The daemon's PID namespace; 0 in entries of versions that do not know it.
    #[serde(default)]
    pid_namespace: u64,
}

/// How long a daemon of another PID namespace may take from its claim of a name to its socket. Nothing else tells that it lives.
const BEGINS_WITHIN: Duration = Duration::from_secs(600);

impl RegistryEntry {
    /// The entry of the calling process.
    pub fn of_this_process(mount_point: &Path, branches: Vec<RegistryBranch>) -> io::Result<Self> {
        Self::of_process(std::process::id(), mount_point, branches)
    }

    /// The entry of process `pid`, which lives as long as the pool.
    pub fn of_process(pid: u32, mount_point: &Path, branches: Vec<RegistryBranch>) -> io::Result<Self> {
        let started =
            start_of(pid).ok_or_else(|| io::Error::other("/proc does not tell when the process started"))?;
        Ok(Self {
            id: String::new(),
            pid,
            started,
            mount_point: mount_point.as_os_str().as_bytes().to_vec(),
            branches,
            pid_namespace: own_pid_namespace(),
        })
    }

    /// Returns the mount point.
    pub fn mount_point(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.mount_point.clone()))
    }

    /// True if its process id is that of its daemon here: it runs, and not in another PID namespace.
    pub fn is_visible(&self) -> bool {
        start_of(self.pid) == Some(self.started)
    }

    /// True if its daemon runs: a visible process, or one of another PID namespace that listens (a container that
    /// shares this registry).
    fn is_live(&self, registry: &Path) -> bool {
        self.is_visible()
            || Client::new(socket_of(registry, &self.id)).is_answered()
            || self.may_be_beginning(registry)
    }

    /// True if it may be of a daemon in another PID namespace that has no socket yet.
    fn may_be_beginning(&self, registry: &Path) -> bool {
        if [0, own_pid_namespace()].contains(&self.pid_namespace) || socket_of(registry, &self.id).exists() {
            return false;
        }
        let written = fs::metadata(file_of(registry, &self.id)).and_then(|file| file.modified());
        written.is_ok_and(|then| then.elapsed().is_ok_and(|age| age < BEGINS_WITHIN))
    }
}

/// A claimed name, released on drop.
#[derive(Debug)]
#[must_use = "the entry leaves the registry when this drops"]
pub struct Registration {
    registry: PathBuf,
    id: String,
}

impl Registration {
    /// The name that another program of this process has claimed; its entry names the process, and stays right.
    pub fn adopt(registry: PathBuf, id: String) -> Self {
        Self { registry, id }
    }

    /// The pool's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Path of the control socket.
    pub fn socket(&self) -> PathBuf {
        socket_of(&self.registry, &self.id)
    }

    /// Directory of the registry.
    pub fn registry(&self) -> &Path {
        &self.registry
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // An entry that cannot be removed names a process that is gone; the next daemon or command removes it.
        let _ = fs::remove_file(file_of(&self.registry, &self.id));
    }
}

/// Answer to a daemon that claims a name.
#[derive(Debug)]
pub enum Claim {
    /// The name is its own.
    Made(Registration),
    /// A live pool stands against it.
    Refused(RegistryEntry),
}

/// Claims a name and writes the entry atomically, unless a live pool `stands_against` it: of two that are mounted at the same time one
/// sees the other here.
///
/// # Errors
/// The registry cannot be written.
pub fn write(
    registry: &Path,
    entry: &RegistryEntry,
    stands_against: impl Fn(&RegistryEntry) -> bool,
) -> io::Result<Claim> {
    // The daemon's umask is 0, so modes are given explicitly.
    fs::DirBuilder::new().recursive(true).mode(0o755).create(registry)?;
    let _locked = lock(registry)?;
    sweep_locked(registry);
    if let Some(against) = read(registry).into_iter().find(stands_against) {
        return Ok(Claim::Refused(against));
    }
    let name = pool_id(&entry.mount_point());
    let names = std::iter::once(name.clone()).chain((2..).map(|count: u32| format!("{name}-{count}")));
    let id = names.into_iter().find(|id| !file_of(registry, id).exists()).unwrap_or(name);
    put(registry, &id, entry)?;
    Ok(Claim::Made(Registration { registry: registry.to_owned(), id }))
}

/// Rewrites the entry of a claimed name. Of concurrent writers, the one that read its entry last writes last.
///
/// # Errors
///
/// Those of `entry`; or the registry cannot be written.
pub fn rewrite(
    registry: &Path,
    id: &str,
    entry: impl FnOnce() -> io::Result<RegistryEntry>,
) -> io::Result<()> {
    let _locked = lock(registry)?;
    put(registry, id, &entry()?)
}

/// Replaces an entry's file atomically. Called under the lock, because writers of one name share a temporary file.
fn put(registry: &Path, id: &str, entry: &RegistryEntry) -> io::Result<()> {
    let draft = registry.join(format!("{id}.new"));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&draft)?;
    file.write_all(&serde_json::to_vec(entry)?)?;
    fs::rename(&draft, file_of(registry, id))
}

/// Lists the pools whose daemons still run. A missing registry is empty; unreadable entries are skipped.
pub fn read(registry: &Path) -> Vec<RegistryEntry> {
    let mut live: Vec<RegistryEntry> = entries(registry)
        .into_iter()
        .filter_map(|(_, entry)| entry)
        .filter(|entry| entry.is_live(registry))
        .collect();
    live.sort_by_key(|entry| (entry.mount_point.clone(), entry.pid));
    live
}

/// Removes the leftovers of killed daemons and returns their names.
///
/// # Errors
///
/// The registry cannot be locked, because it belongs to another user.
pub fn sweep(registry: &Path) -> io::Result<Vec<String>> {
    let _locked = lock(registry)?;
    Ok(sweep_locked(registry))
}

/// Path of the control socket of the pool `id`.
pub fn socket_of(registry: &Path, id: &str) -> PathBuf {
    registry.join(format!("{id}.sock"))
}

fn file_of(registry: &Path, id: &str) -> PathBuf {
    registry.join(format!("{id}.json"))
}

/// Locks a file that other users cannot open. The directory is readable, so any user could hold a lock of it.
fn lock(registry: &Path) -> io::Result<fs::File> {
    let of = registry.join(".lock");
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(of)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn sweep_locked(registry: &Path) -> Vec<String> {
    // An unreadable entry may be another version's.
    let is_live = |id: &str, entry: &Option<RegistryEntry>| match entry {
        Some(entry) => entry.is_live(registry),
        None => Client::new(socket_of(registry, id)).is_answered(),
    };
    let dead = entries(registry).into_iter().filter(|(id, entry)| !is_live(id, entry));
    let swept = dead
        .filter(|(id, entry)| {
            entry.iter().for_each(|entry| dead_mounts::note(registry, id, &entry.mount_point()));
            let _ = fs::remove_file(socket_of(registry, id));
            fs::remove_file(file_of(registry, id)).is_ok()
        })
        .map(|(id, _)| id)
        .collect();
    dead_mounts::sweep(registry);
    // A name is claimed before its socket is made, and released after the socket is removed.
    for id in names(registry, ".sock").into_iter().filter(|id| !file_of(registry, id).exists()) {
        let _ = fs::remove_file(socket_of(registry, &id));
    }
    swept
}

/// File names with that suffix, without it.
fn names(registry: &Path, suffix: &str) -> Vec<String> {
    let Ok(files) = fs::read_dir(registry) else { return Vec::new() };
    files.filter_map(|file| Some(file.ok()?.file_name().to_str()?.strip_suffix(suffix)?.to_owned())).collect()
}

/// All names, each with its entry if it can be read.
fn entries(registry: &Path) -> Vec<(String, Option<RegistryEntry>)> {
    let ids = names(registry, ".json").into_iter();
    ids.map(|id| {
        let text = fs::read(file_of(registry, &id)).ok();
        let entry = text.and_then(|text| serde_json::from_slice::<RegistryEntry>(&text).ok());
        let entry = entry.map(|entry| RegistryEntry { id: id.clone(), ..entry });
        (id, entry)
    })
    .collect()
}

/// Longest name: the socket's address has 107 bytes, for the folder and suffixes too.
const LONGEST_NAME: usize = 64;

/// Returns a pool's name in `/run/fsstack`: its mount point with `-` for `/`, truncated to fit a socket's address.
pub fn pool_id(mount_point: &Path) -> String {
    let bytes = mount_point.as_os_str().as_bytes();
    let plain: String = bytes
        .strip_prefix(b"/")
        .unwrap_or(bytes)
        .iter()
        .map(|byte| match byte {
            b'/' => "-".to_owned(),
            plain if plain.is_ascii_alphanumeric() || b"._".contains(plain) => char::from(*plain).to_string(),
            other => format!("\\x{other:02x}"),
        })
        .collect();
    match plain.len() {
        0 => "-".to_owned(),
        1..=LONGEST_NAME => plain,
        // A truncated name ends in a hash (FNV-1a) of the whole, so that two pools differ.
        _ => {
            let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            format!("{}-{hash:016x}", &plain[..LONGEST_NAME - 17])
        }
    }
}

/// Number of this process's PID namespace; 0 if /proc does not tell.
fn own_pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

fn start_of(pid: u32) -> Option<u64> {
    start_time(i32::try_from(pid).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(mount_point: &str) -> RegistryEntry {
        let id = DirectoryId { device: 1, inode: 2 };
        let branches = vec![RegistryBranch::new(id, Path::new("/srv/a"))];
        RegistryEntry::of_this_process(Path::new(mount_point), branches).unwrap()
    }

    fn claim(registry: &Path, entry: &RegistryEntry) -> Registration {
        let Claim::Made(registration) = write(registry, entry, |_| false).unwrap() else {
            panic!("nobody stands against it")
        };
        registration
    }

    /// A lock of the directory, which every user may open, is no matter.
    #[test]
    fn other_users_cannot_hold_the_registry() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = fs::File::open(dir.path()).unwrap();
        flock(&theirs, FlockOperation::LockExclusive).unwrap();
        let _listed = claim(dir.path(), &entry("/mnt/pool"));
        let mode = fs::metadata(dir.path().join(".lock")).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    }

    #[test]
    fn an_entry_is_read_while_it_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let registry = dir.path().join("run");
        assert_eq!(read(&registry), []);
        let entry = entry("/mnt/pool");
        let listed = claim(&registry, &entry);
        assert_eq!(read(&registry), [RegistryEntry { id: "mnt-pool".into(), ..entry }]);
        drop(listed);
        assert_eq!(read(&registry), []);
    }

    #[test]
    fn two_daemons_of_one_mount_point_have_a_name_each() {
        let dir = tempfile::tempdir().unwrap();
        let first = claim(dir.path(), &entry("/mnt/pool"));
        let second = claim(dir.path(), &entry("/mnt/pool"));
        assert_eq!((first.id(), second.id()), ("mnt-pool", "mnt-pool-2"));
        drop(first);
        let left: Vec<String> = read(dir.path()).into_iter().map(|entry| entry.id).collect();
        assert_eq!(left, ["mnt-pool-2"]);
    }

    #[test]
    fn leftovers_of_a_killed_daemon_are_swept_away() {
        let dir = tempfile::tempdir().unwrap();
        let mut stale = entry("/mnt/pool");
        stale.started += 1;
        let dead = claim(dir.path(), &stale);
        fs::write(dead.socket(), b"").unwrap();
        std::mem::forget(dead);
        fs::write(socket_of(dir.path(), "of-nobody"), b"").unwrap();
        assert_eq!(sweep(dir.path()).unwrap(), ["mnt-pool"]);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, [".lock"]);
        let _again = claim(dir.path(), &stale);
        let claimed = claim(dir.path(), &entry("/mnt/pool"));
        assert_eq!(claimed.id(), "mnt-pool", "a dead daemon keeps no name");
    }

    #[test]
    fn a_daemon_of_another_pid_namespace_lives_while_it_listens() {
        let dir = tempfile::tempdir().unwrap();
        let mut foreign = entry("/mnt/pool");
        foreign.started += 1;
        let listed = claim(dir.path(), &foreign);
        let listening = std::os::unix::net::UnixListener::bind(listed.socket()).unwrap();
        assert_eq!(read(dir.path()).len(), 1);
        assert!(sweep(dir.path()).unwrap().is_empty() && listed.socket().exists());
        drop(listening);
        assert_eq!((read(dir.path()).len(), sweep(dir.path()).unwrap().len()), (0, 1));
    }

    /// A host and its containers may share /run/fsstack.
    #[test]
    fn a_daemon_of_another_pid_namespace_that_begins_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut foreign = entry("/mnt/pool");
        (foreign.started, foreign.pid_namespace) = (foreign.started + 1, foreign.pid_namespace + 1);
        let listed = claim(dir.path(), &foreign);
        assert_eq!((read(dir.path()).len(), sweep(dir.path()).unwrap().len()), (1, 0));
        let file = fs::File::open(file_of(dir.path(), listed.id())).unwrap();
        file.set_modified(fsstack_sync::time::SystemTime::now() - 2 * BEGINS_WITHIN).unwrap();
        assert_eq!((read(dir.path()).len(), sweep(dir.path()).unwrap().len()), (0, 1));
    }

    #[test]
    fn a_dead_process_and_a_later_one_of_its_number_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let mut stale = entry("/mnt/pool");
        stale.started += 1;
        let _listed = claim(dir.path(), &stale);
        fs::write(dir.path().join("torn.json"), b"{").unwrap();
        assert_eq!(read(dir.path()), []);
    }

    /// Concurrent changes of branches each rewrite the entry.
    #[test]
    fn an_entry_is_there_whole_while_several_threads_write_it() {
        let dir = tempfile::tempdir().unwrap();
        let listed = claim(dir.path(), &entry("/mnt/pool"));
        fsstack_sync::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        rewrite(dir.path(), listed.id(), || Ok(entry("/mnt/pool"))).unwrap();
                    }
                });
            }
            for _ in 0..200 {
                assert_eq!(sweep(dir.path()).unwrap(), [""; 0]);
                assert_eq!(read(dir.path()).len(), 1);
            }
        });
    }

    /// Possibly written by a daemon of another version.
    #[test]
    fn an_entry_that_cannot_be_read_stays_while_its_daemon_listens() {
        let dir = tempfile::tempdir().unwrap();
        let listed = claim(dir.path(), &entry("/mnt/pool"));
        fs::write(file_of(dir.path(), listed.id()), b"{}").unwrap();
        let listening = std::os::unix::net::UnixListener::bind(listed.socket()).unwrap();
        assert_eq!(sweep(dir.path()).unwrap(), [""; 0]);
        drop(listening);
        assert_eq!(sweep(dir.path()).unwrap(), [listed.id()]);
    }

    #[test]
    fn names_of_pools_are_plain_and_differ() {
        assert_eq!(pool_id(Path::new("/srv/storage01")), "srv-storage01");
        assert_eq!(pool_id(Path::new("/srv/a-b")), r"srv-a\x2db");
        assert_eq!(pool_id(Path::new("/")), "-");
        let long = |last: &str| pool_id(Path::new(&format!("/{}/{last}", "d".repeat(300))));
        assert_eq!(long("a").len(), LONGEST_NAME);
        assert_ne!(long("a"), long("b"));
    }
}
