//! A change of names that takes several steps: its two ends, what it replaces, its record, and what is left when a step fails.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::BranchIx;
use fsstack_sys::{self as sys, Call, Errno, Kind, Stat, SysError};

use crate::files::check_not_given_up;
use crate::inode::Inode;
use crate::pool::Pool;
use crate::recovery::journal::{Act, NameChange, Object, Part};
use crate::recovery::record::Written;
use crate::tree::Tree;
use crate::tree::place::ancestors;
use crate::tree::resolve::DirStats;

/// One end of a rename.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) dir: &'a Arc<Inode>,
    pub(crate) name: &'a CStr,
}

/// The file system has no hard links, or not one more of this file.
pub(crate) fn has_no_links(error: OpError) -> bool {
    matches!(error.errno(), Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::NOSYS)
}

/// Logs a failed rollback of half a rename; true if it failed.
pub(crate) fn note(undone: Result<(), impl std::fmt::Display>, name: &CStr) -> bool {
    if let Err(stuck) = &undone {
        tracing::error!(%stuck, ?name, "rename: rollback failed; the name is changed on some branches only");
    }
    undone.is_err()
}

/// Why a change of names failed, and whether what was done of it could not be undone: then its record stays, and
/// it is settled when the branch is back, or by the next mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half {
    pub(crate) error: OpError,
    pub(crate) stuck: bool,
    /// All of it was done, and only not surely on disk.
    pub(crate) done: bool,
}

impl Half {
    pub(crate) fn stuck(error: OpError) -> Self {
        Self { error, stuck: true, done: false }
    }

    /// All was done, and only not surely on disk: the next mount looks at it again.
    pub(crate) fn done(error: OpError) -> Self {
        Self { done: true, ..Self::stuck(error) }
    }

    /// An error after which the change was undone, or is `stuck`.
    pub(crate) fn left(error: OpError, stuck: bool) -> Self {
        Self { stuck: stuck || error.is_fault(), ..Self::from(error) }
    }
}

impl From<OpError> for Half {
    /// A branch that went out of reach in the middle may have done it, and not come to say so.
    fn from(error: OpError) -> Self {
        Self { error, stuck: error.is_fault(), done: false }
    }
}

/// Checks that the directory `dir` takes a name on the branch `at` and, if it `gives`, that the name can be taken out again should
/// the change have to be undone.
///
/// # Errors
/// EPERM if it is immutable, or append-only and `gives`.
fn check_takes(tree: &Tree, pool: &Pool, dir: &Arc<Inode>, at: BranchIx, gives: bool) -> Result<()> {
    let (branch, fd) = (pool.branch(at), tree.dirfd(pool, dir, at)?);
    let stat = branch.ask(|| sys::at::stat_fd(fd.as_fd()))?;
    match stat.is_immutable() || gives && stat.is_append_only() {
        true => Err(branch.said(SysError { call: Call::Rename, errno: Errno::PERM })),
        false => Ok(()),
    }
}

/// Checks that a rename of the file `from` on the branch `at` that takes several steps is not refused after one of them: files of
/// its name are `hidden`, or `targets` have the new one on other branches.
///
/// # Errors
/// EPERM if one, or a directory with one, is immutable or append-only.
pub(crate) fn check_replaceable(
    tree: &Tree,
    pool: &Pool,
    (from, at): (End<'_>, BranchIx),
    to: End<'_>,
    (hidden, targets): (&DirStats, &DirStats),
) -> Result<()> {
    let replaces_elsewhere = targets.iter().any(|(other, _)| *other != at);
    if hidden.is_empty() && !replaces_elsewhere {
        return Ok(());
    }
    let mut sources = hidden.clone();
    sources.push((at, tree.stat_in(pool, from.dir, at, from.name)?));
    tree.check_not_fixed(pool, from.dir, &sources)?;
    tree.check_not_fixed(pool, to.dir, targets)?;
    check_takes(tree, pool, to.dir, at, replaces_elsewhere)
}

/// Like [`check_replaceable`], of a directory that has copies on the branches of `sources`.
///
/// # Errors
/// EPERM if a directory with one is immutable or append-only.
pub(crate) fn check_dir_replaceable(
    tree: &Tree,
    pool: &Pool,
    (from, sources): (End<'_>, &DirStats),
    (to, targets): (End<'_>, &DirStats),
) -> Result<()> {
    let replaces_elsewhere = targets.iter().any(|(at, _)| sources.iter().all(|(source, _)| source != at));
    if sources.len() == 1 && !replaces_elsewhere {
        return Ok(());
    }
    tree.check_not_fixed(pool, from.dir, sources)?;
    tree.check_not_fixed(pool, to.dir, targets)?;
    sources.iter().try_for_each(|(at, _)| check_takes(tree, pool, to.dir, *at, replaces_elsewhere))
}

/// Like [`check_replaceable`], of an exchange of what `a` and `b` mean on the branches `at`.
///
/// # Errors
/// EPERM if one, or a directory with one, is immutable or append-only.
pub(crate) fn check_exchangeable(
    tree: &Tree,
    pool: &Pool,
    (a, in_a): (End<'_>, &DirStats),
    (b, in_b): (End<'_>, &DirStats),
    at: &[BranchIx],
) -> Result<()> {
    if at.len() == 1 {
        return Ok(());
    }
    tree.check_not_fixed(pool, a.dir, in_a)?;
    tree.check_not_fixed(pool, b.dir, in_b)?;
    at.iter().try_for_each(|at| {
        check_takes(tree, pool, a.dir, *at, true)?;
        check_takes(tree, pool, b.dir, *at, true)
    })
}

/// A record of a change of names, and the branch that has it, if one took it.
pub(crate) type Record = Option<(BranchIx, Written)>;

/// Puts a record of the change on a branch.
pub(crate) fn begin(
    pool: &Pool,
    first: End<'_>,
    second: End<'_>,
    parts: &[(BranchIx, Object, Act)],
) -> Record {
    let part = |(at, object, act): &(BranchIx, Object, Act)| Part {
        branch: pool.branch(*at).id,
        object: *object,
        act: *act,
    };
    let names = NameChange {
        first: NameChange::path(first.dir, first.name)?,
        second: NameChange::path(second.dir, second.name)?,
        parts: parts.iter().map(part).collect(),
        settled: false,
        tried: false,
    };
    names.begin(pool)
}

/// Like [`begin`], for a change that a mount without some of the branches may decide for them. What it finds there must be on their
/// disks first, or the change could not be made: the ways to both names, of which copies may just have been made, that no object has
/// the new name any more, and that the directory `replaced` is empty. A change on one branch has no record.
///
/// # Errors
/// EIO if a branch is at fault, or the caller was given up meanwhile: nothing is changed.
pub(crate) fn begin_durably(
    tree: &Tree,
    pool: &Pool,
    (first, second): (End<'_>, End<'_>),
    replaced: Option<&Arc<Inode>>,
    parts: &[(BranchIx, Object, Act)],
) -> Result<Record> {
    if parts.len() == 1 {
        return Ok(None);
    }
    let above = [first.dir, second.dir].into_iter().flat_map(ancestors);
    for dir in replaced.cloned().into_iter().chain(above) {
        for (at, ..) in parts.iter().filter(|(at, ..)| dir.has_change(*at)) {
            // Other errors: it has gone out of band, or a user's mount may not read it.
            tree.sync_copy(pool, &dir, *at)
                .or_else(|error| if error.is_fault() { Err(error) } else { Ok(()) })?;
        }
    }
    check_not_given_up()?;
    Ok(begin(pool, first, second, parts))
}

/// The change is over, and its record goes, unless it was left half done.
pub(crate) fn finish(pool: &Pool, record: Record, done: &Result<(), Half>) {
    if let Some((at, written)) = record
        && !matches!(done, Err(half) if half.stuck)
    {
        written.done(pool.branch(at));
    }
}

/// Like [`finish`]; a change that was undone is on disk first, or else its record stays. Returns `done` with that.
pub(crate) fn finish_durably(
    tree: &Tree,
    pool: &Pool,
    (first, second): (End<'_>, End<'_>),
    (parts, record): (&[(BranchIx, Object, Act)], Record),
    done: Result<(), Half>,
) -> Result<(), Half> {
    let done = done.map_err(|half| {
        let is_undone = record.is_some() && !half.stuck && !half.done;
        let is_lost = |dir: &Arc<Inode>| {
            parts.iter().any(|(at, ..)| {
                dir.has_change(*at) && tree.sync_copy(pool, dir, *at).is_err_and(OpError::is_fault)
            })
        };
        let stuck = half.stuck || is_undone && [first.dir, second.dir].into_iter().any(is_lost);
        Half { stuck, ..half }
    });
    finish(pool, record, &done);
    done
}

/// Objects that a renamed directory, or a renamed file of whatever `kind`, replaces: directories, or files. Objects of the
/// other sort that they hide stay hidden.
///
/// # Errors
/// EISDIR or ENOTDIR if the name is of the other sort, or one of that sort would come to light or is in the way, being on a
/// branch that counts `before` the renamed.
pub(crate) fn own_kind(
    mut targets: DirStats,
    kind: Kind,
    before: impl Fn(BranchIx) -> bool,
) -> Result<DirStats> {
    let first = targets.first().map(|(at, _)| *at);
    let other_kind = |stat: &Stat| stat.is_dir() != (kind == Kind::Dir);
    if targets.iter().any(|(at, stat)| other_kind(stat) && (Some(*at) == first || before(*at))) {
        return Err(if kind == Kind::Dir { Errno::NOTDIR } else { Errno::ISDIR }.into());
    }
    targets.retain(|(_, stat)| !other_kind(stat));
    Ok(targets)
}
