//! Branches that another program has left, opened again.
//!
//! A remote branch is opened by a thread of its own. One that hangs is given up after `branch-timeout`, so that the others are served: it
//! is down until a probe finds that it answers, in the mount that it has, and its thread stays in the call until then.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use fsstack_branch::branch::FsKind;
use fsstack_branch::known_root::KnownRoot;
use fsstack_branch::mount_root::Proof;
use fsstack_branch::thread;
use fsstack_pool::{BranchId, BranchIx, BranchMode, BranchSpec, Floor, Printable};
use fsstack_sync::mpsc;
use fsstack_sync::thread::Builder;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::{self as sys, Call, Errno, Stat, SysError};

use super::{BranchRow, KnownRootRow};
use crate::files::handed::Unusable;
use crate::member::Member;
use crate::pool::{id_attribute, keep_id};
use crate::settings::Settings;

/// Pause between two attempts to open a branch.
const BRANCH_OPEN_PAUSE: Duration = Duration::from_millis(100);
/// Time of the last attempt to open a branch that fails.
const LAST_OPEN_ATTEMPT: Duration = Duration::from_secs(1);

/// A branch, or why it cannot be opened.
pub(super) type OpenedBranch = Result<Arc<Member>, Unopened>;

/// Why a branch cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unopened {
    /// It is away, or answers with an error.
    #[error(transparent)]
    Fails(#[from] SysError),
    /// It has not answered in time.
    #[error("no answer within branch-timeout")]
    Hangs,
}

/// A branch as its row describes it.
#[derive(Clone)]
pub(super) struct LeftBranch {
    ids: (BranchIx, BranchId),
    spec: BranchSpec,
    /// Device and inode number of its root.
    object: (u64, u64),
    known: KnownRoot,
    /// When it joined the pool.
    joined: u64,
    settings: Settings,
}

impl BranchRow {
    pub(super) fn spec(&self) -> Result<BranchSpec, Unusable> {
        let wrong = || format!("branch in slot {}: its row is damaged", self.slot);
        let path = self.path.name().ok_or_else(wrong)?;
        let mode: BranchMode = self.mode.parse().map_err(|_| wrong())?;
        let floor =
            self.floor.as_ref().map(|floor| floor.parse::<Floor>()).transpose().map_err(|_| wrong())?;
        Ok(BranchSpec {
            mode,
            floor,
            min_inodes: self.min_inodes,
            cross_mounts: self.cross_mounts,
            class: self.class.as_deref().map(str::parse).transpose().map_err(|_| wrong())?,
            ..BranchSpec::new(PathBuf::from(OsString::from_vec(path.into_bytes())))
        })
    }

    /// The branch that it describes.
    ///
    /// # Errors
    /// It is damaged.
    pub(super) fn left(&self, settings: &Settings) -> Result<LeftBranch, Unusable> {
        let id = BranchId::new(self.id).ok_or("a branch has no id")?;
        Ok(LeftBranch {
            ids: (BranchIx(self.slot), id),
            spec: self.spec()?,
            object: self.object,
            known: self.known_root(settings.privileged),
            joined: self.known.joined,
            settings: settings.clone(),
        })
    }

    fn known_root(&self, privileged: bool) -> KnownRoot {
        let KnownRootRow { f_type, fsid, proof, was_listed, level, subvolume, joined: _ } = self.known;
        let (dev, ino) = self.object;
        let proof = proof.map(|value| Proof { attribute: id_attribute(privileged), value });
        KnownRoot { dev, ino, f_type, fsid, proof, was_listed, level, subvolume }
    }
}

impl LeftBranch {
    /// Calls into it may hang.
    fn is_remote(&self) -> bool {
        !FsKind::of(self.known.f_type).is_local()
    }

    /// Whether `stat`, of the directory that was handed over, is of its root, in a mount that is still there.
    fn is_root(&self, stat: &Stat) -> bool {
        (stat.dev, stat.ino) == self.object && !self.known.has_left(stat)
    }

    /// Its root: `left` that was handed over; if another descriptor has that number by now, or its mount is gone, the directory at its
    /// path, provided that this is the branch.
    fn root(&self, left: Option<&OwnedFd>) -> Result<OwnedFd, SysError> {
        // Asked when it is known to be this branch's: another one's may hang.
        let is_it = |root: &&OwnedFd| {
            sys::at::stat_kept(root.as_fd()).is_ok_and(|stat| self.is_root(&stat))
                && sys::at::stat_fd(root.as_fd()).is_ok()
        };
        if let Some(root) = left.filter(is_it).and_then(|root| root.try_clone().ok()) {
            return Ok(root);
        }
        let root = sys::at::open_root(&self.spec.path)?;
        match self.known.stat_of(root.as_fd())? {
            Some(_) => Ok(root),
            // The bare directory below, or another file system.
            None => Err(SysError { call: Call::Open, errno: Errno::NODEV }),
        }
    }

    /// The branch. May block for as long as it hangs.
    fn open(&self, left: Option<&OwnedFd>) -> OpenedBranch {
        let root = self.root(left)?;
        let (proof, _) = keep_id(root.as_fd(), self.settings.privileged, self.ids.1)?;
        Ok(Member::open(self.ids, &self.spec, root, proof, &self.settings)?)
    }

    /// The branch, tried again until `deadline`.
    fn open_until(&self, left: Option<&OwnedFd>, deadline: Instant) -> OpenedBranch {
        loop {
            match self.open(left) {
                Err(_) if Instant::now() < deadline => fsstack_sync::thread::sleep(BRANCH_OPEN_PAUSE),
                opened => return opened,
            }
        }
    }

    /// The branch, which is down because of `why`. One that hangs may answer again in the mount of its root, `left`.
    ///
    /// # Errors
    /// It cannot be one that is down, of which `why` is a part.
    pub(super) fn down(&self, why: Unopened, left: Option<&OwnedFd>) -> Result<Arc<Member>, Unusable> {
        let hangs = left.filter(|_| why == Unopened::Hangs);
        // The kernel knows this much of it by itself.
        let root = hangs.and_then(|root| sys::at::stat_kept(root.as_fd()).ok());
        let silent = root.filter(|root| self.is_root(root)).map(|root| root.mnt_id);
        let away =
            Member::away(self.ids, &self.spec, (&self.known, silent), &self.settings, &why.to_string());
        let away = away.map_err(|error| self.fails(&error.into()))?;
        away.set_joined(self.joined);
        Ok(away)
    }

    /// The line that says so.
    pub(super) fn fails(&self, why: &Unopened) -> Unusable {
        format!("branch {}: {why}", Printable::path(&self.spec.path))
    }
}

/// Opens `branches`, each with its root as it was handed over, in their order. One that fails is tried again for `retry`; a remote one
/// that has not answered within `timeout`, or `retry` if that is longer, is given up, unless `timeout` is zero.
pub(super) fn open_within<'a>(
    retry: Duration,
    timeout: Duration,
    branches: impl Iterator<Item = (&'a LeftBranch, &'a Option<Arc<OwnedFd>>)>,
) -> Vec<OpenedBranch> {
    let began = Instant::now();
    let until = began + retry;
    let (told, answers) = mpsc::channel();
    let mut opened = Vec::new();
    let mut here = Vec::new();
    for (at, (branch, root)) in branches.enumerate() {
        opened.push(Err(Unopened::Hangs));
        if !branch.is_remote() || !open_aside(at, branch.clone(), root.clone(), until, told.clone()) {
            here.push((at, branch, root));
        }
    }
    drop(told);
    for (at, branch, root) in here {
        opened[at] = branch.open_until(root.as_deref(), until);
    }
    let limit = timeout.max(retry + LAST_OPEN_ATTEMPT);
    loop {
        let answer = match timeout.is_zero() {
            true => answers.recv().ok(),
            false => answers.recv_timeout(limit.saturating_sub(began.elapsed())).ok(),
        };
        let Some((at, branch)) = answer else { return opened };
        opened[at] = branch;
    }
}

/// Opens the branch in a thread that tells `at` with the result; false if there is no thread.
fn open_aside(
    at: usize,
    branch: LeftBranch,
    root: Option<Arc<OwnedFd>>,
    until: Instant,
    told: mpsc::Sender<(usize, OpenedBranch)>,
) -> bool {
    let opening = Builder::new().name("open-branch".into());
    let work = move || {
        // Nobody waits for it if it was given up.
        let _given_up = told.send((at, branch.open_until(root.as_deref(), until)));
    };
    let started = thread::start(opening, work);
    started
        .inspect_err(
            |error| tracing::warn!(%error, "no thread to open a branch: one that hangs holds up the others"),
        )
        .is_ok()
}
