//! Whether a branch has all its parts.
//!
//! A GlusterFS volume may spread its files over several bricks, or sets of them. When one is dead the volume answers on:
//! files that are there are "not there", and listings are without them. So whenever such a branch says that something
//! is not there, and when it has been listed, its client is asked whether it reaches all parts. It knows that by
//! itself, and tells it in files below `.meta` in the root of its mount: no server is asked.
//!
//! Asked afterwards: a part that was lost in between makes the answer unknown, which costs an error, while one that was
//! lost before it was given is seen.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use fsstack_sys::dirents::Dirents;
use fsstack_sys::mounts::MountInfo;
use fsstack_sys::{self as sys, Call, Errno, OFlags, SysError};

use super::{DOUBTED, LACKING, UP};
use crate::branch::Branch;

/// The type of the mount of a volume's client.
const CLIENT: &str = "fuse.glusterfs";
/// Where the client tells of the volume as it uses it now.
const GRAPH: &CStr = c".meta/graphs/active";
/// What the names of those of its layers end with that spread files.
const SPREADS: &[u8] = b"-dht";
/// What a layer tells of itself is no longer than this.
const LONGEST: usize = 256 << 10;

/// The parts of a volume, as its client tells of them.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The root of the mount.
    root: OwnedFd,
    /// What tells how they are, below the root.
    told_by: Vec<CString>,
}

impl Parts {
    /// The parts of what is mounted as `mnt_id`. None: it cannot lack one and answer all the same.
    pub(crate) fn of(mnt_id: u64, mounts: &[MountInfo]) -> Option<Arc<Self>> {
        let mount = mounts.iter().find(|mount| mount.id == mnt_id && mount.fs_type == CLIENT)?;
        let root = sys::at::open_root(&mount.mount_point).ok()?;
        let told_by = match sys::at::stat_kept(root.as_fd()) {
            Ok(here) if here.mnt_id == mnt_id => layers(root.as_fd()).unwrap_or_default(),
            _ => Vec::new(), // another mount lies on it
        };
        if told_by.is_empty() {
            tracing::warn!(
                at = %mount.mount_point.display(),
                "the volume's client does not tell of its bricks: a dead one will not be noticed"
            );
            return None;
        }
        Some(Arc::new(Self { root, told_by }))
    }

    /// The names of those that cannot be reached.
    ///
    /// # Errors
    /// The client does not answer.
    pub(crate) fn missing(&self) -> Result<Vec<String>, SysError> {
        let mut missing = Vec::new();
        for path in &self.told_by {
            missing.extend(unreached(&read(self.root.as_fd(), path)?));
        }
        Ok(missing)
    }
}

/// The layers of the volume that spread files.
fn layers(root: BorrowedFd<'_>) -> Result<Vec<CString>, SysError> {
    let graph = sys::at::open_follow(root, GRAPH, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut entries = Dirents::new(graph, 16 << 10);
    let mut layers = Vec::new();
    while let Some(entry) = entries.next()? {
        let name = entry.name.to_bytes();
        if name.ends_with(SPREADS) {
            layers.extend(CString::new([GRAPH.to_bytes(), b"/", name, b"/private"].concat()));
        }
    }
    Ok(layers)
}

fn read(root: BorrowedFd<'_>, path: &CStr) -> Result<String, SysError> {
    let file = sys::at::open_follow(root, path, OFlags::RDONLY)?;
    let mut text = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let read = sys::file::read_at(file.as_fd(), &mut piece, text.len() as u64)?;
        text.extend_from_slice(&piece[..read]);
        // Less than was asked for is the end: another question would cost as much as this one.
        if read < piece.len() || LONGEST < text.len() {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The parts that `text` says are not up.
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
    /// # Errors
    /// A part of the branch is out of reach, or that cannot be told: what is not found there may be there.
    pub(crate) fn check_parts(&self) -> Result<(), SysError> {
        let Some(parts) = self.parts() else { return Ok(()) };
        let missing = parts.missing()?;
        if missing.is_empty() {
            return Ok(());
        }
        let state = &self.health.state;
        let was = [UP, DOUBTED];
        if was.iter().any(|was| state.compare_exchange(*was, LACKING, SeqCst, Relaxed).is_ok()) {
            self.tell_missing(&missing);
            self.wake_keeper();
        }
        Err(SysError { call: Call::Read, errno: Errno::IO })
    }

    /// Its examination found that it lacks these.
    pub(super) fn lacks(&self, missing: &[String]) {
        if self.health.state.swap(LACKING, SeqCst) != LACKING {
            self.tell_missing(missing);
        }
    }

    fn tell_missing(&self, missing: &[String]) {
        let (branch, missing) = (self.path.display(), missing.join(", "));
        tracing::warn!(
            %branch, %missing,
            "the branch lacks a part: whether a name that it does not find is there is not known"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::unreached;

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
