//! Whether a branch has all its subvolumes.
//!
//! A GlusterFS volume may distribute its files over several bricks or sets of them. When one is dead the volume still
//! answers: files on it are reported as missing, and listings lack them. So whenever such a branch reports a name as
//! missing, and before and after a listing, its client is asked whether it reaches all subvolumes. The client knows without asking
//! a server, and shows it in virtual files below `.meta` in the root of its mount.
//!
//! It is asked afterwards: a subvolume lost before the answer is noticed, and one lost between answer and check only
//! turns a good answer into an error.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_sync::atomic::Ordering::{Relaxed, SeqCst};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::mounts::MountInfo;
use fsstack_sys::{self as sys, Call, Errno, OFlags, SysError};

use super::preopened::PreopenedFile;
use super::{LACKING_SUBVOLUME, SUSPECT, UP};
use crate::branch::Branch;
use crate::error::is_branch_fault;
use crate::fs_kind::NFS;

/// Mount type of a volume's client.
const CLIENT: &str = "fuse.glusterfs";
/// Directory that describes the active graph.
const GRAPH: &CStr = c".meta/graphs/active";
/// Name suffix of the layers that distribute files.
const SPREADS: &[u8] = b"-dht";
/// Name suffix of the layer that acknowledges writes before they are stored.
const WRITES_BEHIND: &[u8] = b"-write-behind";

/// The subvolumes of a volume, as its client describes them.
#[derive(Debug)]
pub(crate) struct Subvolumes {
    /// Virtual files with their state, below the root of the mount.
    sources: Vec<PreopenedFile>,
    root: Arc<OwnedFd>,
}

impl Subvolumes {
    /// Finds the subvolumes of the mount `mnt_id`. `None` if the file system cannot lose a part and still answer. A volume whose
    /// client shows no brick states seems to lack none.
    pub(crate) fn of(mnt_id: u64, mounts: &[MountInfo]) -> Option<Arc<Self>> {
        let mount = mounts.iter().find(|mount| mount.id == mnt_id && mount.fs_type == CLIENT)?;
        let root = sys::at::open_root(&mount.mount_point).ok()?;
        let sources = match sys::at::stat_kept(root.as_fd()) {
            Ok(here) if here.mnt_id == mnt_id => layers(root.as_fd(), SPREADS).unwrap_or_default(),
            _ => Vec::new(), // covered by another mount
        };
        if sources.is_empty() {
            tracing::warn!(
                at = %mount.mount_point.display(),
                "GlusterFS client shows no brick states; a dead brick will not be noticed"
            );
        }
        let root = Arc::new(root);
        let sources = sources.into_iter().map(|path| PreopenedFile::new(root.clone(), path)).collect();
        Some(Arc::new(Self { sources, root }))
    }

    /// Returns the names of the unreachable subvolumes.
    ///
    /// # Errors
    ///
    /// The client does not answer.
    pub(crate) fn missing(&self) -> Result<Vec<String>, SysError> {
        let mut missing = Vec::new();
        for layer in &self.sources {
            missing.extend(unreached(&layer.read(|text| unreached(text).is_empty())?));
        }
        Ok(missing)
    }
}

/// Layers of the volume whose names end in `suffix`.
fn layers(root: BorrowedFd<'_>, suffix: &[u8]) -> Result<Vec<CString>, SysError> {
    let graph = sys::at::open_follow(root, GRAPH, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut entries = Dirents::new(graph, 16 << 10);
    let mut layers = Vec::new();
    while let Some(entry) = entries.next()? {
        let name = entry.name.to_bytes();
        if name.ends_with(suffix) {
            layers.extend(CString::new([GRAPH.to_bytes(), b"/", name, b"/private"].concat()));
        }
    }
    Ok(layers)
}

/// Names of the subvolumes that `text` reports as not up.
fn unreached(text: &str) -> Vec<String> {
    let values = |key: &str| {
        let key = format!("{key}[");
        let lines = text.lines().filter_map(move |line| line.trim().strip_prefix(&*key)?.split_once(']'));
        lines
            .filter_map(|(number, rest)| Some((number, rest.trim_start().strip_prefix('=')?.trim())))
            .collect()
    };
    let (names, states): (Vec<_>, Vec<_>) = (values("subvolumes"), values("subvolume_status"));
    let name = |number: &str| names.iter().find(|(other, _)| *other == number).map(|(_, name)| *name);
    let down = states.iter().filter(|(_, state)| *state == "0");
    down.map(|(number, _)| name(number).unwrap_or(number).to_owned()).collect()
}

impl Branch {
    /// True if it acknowledges writes before they are stored and may report a failure only at a later write: NFS, and a
    /// volume with default settings. Other file systems report it at fsync.
    pub fn tells_at_writes(&self) -> bool {
        let behind = |subvolumes: &Subvolumes| {
            let layers = self.ask(|| layers(subvolumes.root.as_fd(), WRITES_BEHIND));
            layers.map_or(true, |layers| !layers.is_empty()) // unknown, so assume it
        };
        self.mount_root.f_type == NFS || self.subvolumes().is_some_and(|subvolumes| behind(&subvolumes))
    }

    /// # Errors
    ///
    /// A subvolume is unreachable, or that is unknown: a missing name may be there.
    pub fn check_subvolumes(&self) -> Result<(), SysError> {
        let Some(subvolumes) = self.subvolumes() else { return Ok(()) };
        let unknown = |call| SysError { call, errno: Errno::IO };
        let missing = subvolumes
            .missing()
            .map_err(|error| if is_branch_fault(error.errno) { error } else { unknown(error.call) })?;
        if missing.is_empty() {
            return Ok(());
        }
        let state = &self.health.state;
        let was = [UP, SUSPECT];
        if was.iter().any(|was| state.compare_exchange(*was, LACKING_SUBVOLUME, SeqCst, Relaxed).is_ok()) {
            self.tell_missing(&missing);
            self.wake_monitor();
        }
        Err(unknown(Call::Read))
    }

    /// Notes the missing subvolumes that a probe found.
    pub(super) fn lacks(&self, missing: &[String]) {
        if self.health.state.swap(LACKING_SUBVOLUME, SeqCst) != LACKING_SUBVOLUME {
            self.tell_missing(missing);
        }
    }

    fn tell_missing(&self, missing: &[String]) {
        let (branch, missing) = (self.path.display(), missing.join(", "));
        tracing::warn!(
            %branch, %missing,
            "GlusterFS volume lacks bricks; names that it does not find fail with EIO"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use fsstack_sys::mounts::MountInfo;

    use super::{Subvolumes, unreached};

    /// Its calls may have been done where it answers ENOTCONN, and it may acknowledge writes before they are stored.
    #[test]
    fn a_volume_that_shows_no_brick_states_is_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        let root = fsstack_sys::at::open_root(dir.path()).unwrap();
        let id = fsstack_sys::at::stat_kept(std::os::fd::AsFd::as_fd(&root)).unwrap().mnt_id;
        let mount = |fs_type: &str| MountInfo {
            id,
            parent: 0,
            dev: (0, 0),
            root: "/".into(),
            mount_point: dir.path().to_owned(),
            fs_type: fs_type.into(),
            source: OsString::new(),
            options: String::new(),
            super_options: String::new(),
        };
        let volume = Subvolumes::of(id, &[mount("fuse.glusterfs")]).unwrap();
        assert_eq!(volume.missing().unwrap(), Vec::<String>::new());
        assert!(Subvolumes::of(id, &[mount("fuse.sshfs")]).is_none());
    }

    #[test]
    fn parts_that_are_not_up_are_named() {
        let text = "[xlator.cluster.dht.dt4-dht.priv]\nsubvol_cnt = 3\nsubvolumes[0] = protocol/client.dt4-client-0\n\
                    subvolumes[1] = protocol/client.dt4-client-1\nsubvolume_status[0] = 1\n\
                    subvolume_status[1] = 0\nsubvolume_status[2] = 0\nlast_stat_fetch = 0\n";
        assert_eq!(unreached(text), ["protocol/client.dt4-client-1", "2"]);
        assert_eq!(unreached(""), Vec::<String>::new());
        assert_eq!(
            unreached("subvolume_status[0] = 1\nsubvolume_status[1\nsubvolume_status[]"),
            Vec::<String>::new()
        );
    }
}
