//! Settling records of changed names: compares a record with the branches, and finishes or undoes it (`journal.rs`).

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_branch::entries::is_dot;
use fsstack_branch::error::is_branch_fault;
use fsstack_identity::index::Index;
use fsstack_pool::BranchId;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::dirents::Dirents;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use crate::pool::Pool;
use crate::recovery::journal::{Act, NameChange, Object, Part};

/// State of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettledRename {
    /// Nothing is left to do.
    Whole,
    /// This is left, for branches that are not here.
    Left(NameChange),
}

/// Progress of a part, as the branch shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartStage {
    Before,
    /// The object has both names.
    Midway,
    After,
    /// Another program has changed it: nothing to do.
    Strange,
    /// The object to remove was written to since: it stays, and its name is not replaced.
    Stays,
}

/// A part whose branch is present, with its directories there.
struct PartAtBranch<'a> {
    part: Part,
    branch: &'a Branch,
    stage: PartStage,
    first: Option<(OwnedFd, CString)>,
    second: Option<(OwnedFd, CString)>,
}

/// Finishes the change of `record`, or undoes it.
///
/// # Errors
/// The branch's error: the record is to stay.
pub(crate) fn settle(pool: &Pool, record: &[u8]) -> Result<SettledRename, SysError> {
    let Some(names) = NameChange::decode(record) else { return Ok(SettledRename::Whole) };
    let mut parts_at = Vec::new();
    let mut missing = Vec::new();
    for part in &names.parts {
        match pool.branches.iter().find(|branch| branch.id == part.branch && branch.is_writable()) {
            Some(branch) => parts_at.push(PartAtBranch::find(branch, *part, &names)?),
            None => missing.push(*part),
        }
    }
    let begun = names.settled
        || parts_at.iter().any(|part_at| matches!(part_at.stage, PartStage::Midway | PartStage::After));
    let Settlement { forward, left } = match begun {
        true => finish(pool, &mut parts_at, &names)?,
        false => Settlement { forward: false, left: Vec::new() },
    };
    if begun {
        let (name, done) =
            (String::from_utf8_lossy(&names.first), if forward { "finished" } else { "taken back" });
        tracing::info!(%name, "interrupted rename {done}");
    }
    let tried = names.tried || !left.is_empty();
    let missing = missing.into_iter().filter_map(|part| if forward { Some(part) } else { part.reversed() });
    let parts: Vec<Part> = missing.chain(left).collect();
    Ok(if parts.is_empty() {
        SettledRename::Whole
    } else {
        SettledRename::Left(NameChange { parts, settled: true, tried, ..names })
    })
}

/// End of a settlement.
struct Settlement {
    /// The change is done, not undone.
    forward: bool,
    /// Parts to try again: a branch refused, or may have made what was undone on the others.
    left: Vec<Part>,
}

/// Makes the remaining changes. If a branch refuses one, all are undone, unless the record is settled: then the other branches have
/// shown the change done.
///
/// # Errors
/// A branch's error: the record is to stay.
fn finish(
    pool: &Pool,
    parts_at: &mut [PartAtBranch<'_>],
    names: &NameChange,
) -> Result<Settlement, SysError> {
    let settled = names.settled;
    pass_over(pool, parts_at, names)?;
    if let Some(stays) = parts_at.iter().find(|part_at| part_at.stage == PartStage::Stays) {
        let branch = stays.branch.path.display();
        tracing::warn!(%branch, "interrupted rename: its target was written since; the rename is undone");
        take_back(parts_at)?;
        return Ok(Settlement { forward: false, left: Vec::new() });
    }
    // Removals first: these objects would hide or forbid their replacements.
    parts_at.sort_by_key(|part_at| part_at.part.act != Act::Remove);
    let mut left = Vec::new();
    for at in 0..parts_at.len() {
        let part_at = &mut parts_at[at];
        let done = match part_at.stage {
            PartStage::Before | PartStage::Midway => part_at.act(),
            PartStage::After | PartStage::Strange | PartStage::Stays => continue,
        };
        match done {
            Ok(()) => part_at.stage = PartStage::After,
            Err(error) if settled && !is_taken(error) && !is_gone(error) => {
                let (branch, part) = (parts_at[at].branch.path.display(), parts_at[at].part);
                tracing::warn!(%error, %branch, "interrupted rename: the branch refuses it; the next mount tries again");
                left.push(part);
            }
            Err(error) if settled || parts_at.iter().any(PartAtBranch::cannot_go_back) => {
                if !is_taken(error) && !settled {
                    return Err(error);
                }
                let branch = parts_at[at].branch.path.display();
                tracing::warn!(%branch, "interrupted rename: another file has its new name, or its new directory is gone; the old name stays");
                parts_at[at].stage = PartStage::Strange;
            }
            // It may have gone. The change is done then.
            Err(error) if parts_at[at].part.act == Act::Remove && is_branch_fault(error.errno) => {
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(%error, branch = %parts_at[at].branch.path.display(), "interrupted rename cannot be finished; it is undone");
                take_back(parts_at)?;
                let may_be_done = is_branch_fault(error.errno).then_some(parts_at[at].part);
                let left = may_be_done.and_then(Part::reversed).into_iter().collect();
                return Ok(Settlement { forward: false, left });
            }
        }
    }
    parts_at.iter().try_for_each(PartAtBranch::sync).map(|()| Settlement { forward: true, left })
}

/// Marks parts as [`PartStage::Strange`] whose names were given to other objects since: they are left as they are.
fn pass_over(pool: &Pool, parts_at: &mut [PartAtBranch<'_>], names: &NameChange) -> Result<(), SysError> {
    let is_shown: Vec<bool> = parts_at.iter().map(|part_at| part_at.is_behind(pool, parts_at)).collect();
    for (part_at, _) in parts_at.iter_mut().zip(is_shown).filter(|(_, is_shown)| *is_shown || names.settled) {
        match part_at.stage {
            // Its name has meant the new directory since: new entries are in that.
            PartStage::Before if part_at.part.act == Act::Remove && part_at.removes_filled()? => {
                part_at.stage = PartStage::Strange
            }
            PartStage::Stays => {
                let branch = part_at.branch.path.display();
                tracing::warn!(%branch, "interrupted rename: the replaced file was written since; it stays, hidden");
                part_at.stage = PartStage::Strange;
            }
            _ => {}
        }
    }
    for part_at in parts_at.iter_mut().filter(|part_at| names.tried && part_at.stage == PartStage::Before) {
        if part_at.is_merged(pool, names) {
            let branch = part_at.branch.path.display();
            tracing::info!(%branch, "interrupted rename: its old name is in use on other branches again; it stays");
            part_at.stage = PartStage::Strange;
        }
    }
    Ok(())
}

fn take_back(parts_at: &[PartAtBranch<'_>]) -> Result<(), SysError> {
    for done in
        parts_at.iter().filter(|part_at| matches!(part_at.stage, PartStage::Midway | PartStage::After))
    {
        match done.undo() {
            Err(error) if is_taken(error) => {
                let branch = done.branch.path.display();
                tracing::warn!(%branch, "interrupted rename: another file has its old name; the new name stays");
            }
            undone => undone?,
        }
        done.sync()?;
    }
    Ok(())
}

/// Whether the name to give means something else by now: waiting for the next mount does not help.
fn is_taken(error: SysError) -> bool {
    matches!(error.errno, Errno::EXIST | Errno::NOTEMPTY)
}

/// Whether the name to give cannot be given any more: its directory has gone, or is none.
fn is_gone(error: SysError) -> bool {
    matches!(error.errno, Errno::NOENT | Errno::NOTDIR | Errno::ISDIR)
}

impl<'a> PartAtBranch<'a> {
    fn find(branch: &'a Branch, part: Part, names: &NameChange) -> Result<Self, SysError> {
        let (first, second) = (walk(branch, &names.first)?, walk(branch, &names.second)?);
        let has = |at: &Option<(OwnedFd, CString)>| match at {
            None => Ok(None),
            Some((dir, name)) => match sys::at::stat(dir.as_fd(), name) {
                Ok(stat) => Ok(Some(stat)),
                Err(error) if error.errno == Errno::NOENT => Ok(None),
                Err(error) => Err(error),
            },
        };
        let (at_first, at_second) = (has(&first)?, has(&second)?);
        let has = |stat: Option<Stat>, object: Object| stat.is_some_and(|stat| object.is(&stat));
        let moves = |old, new| match (has(old, part.object), has(new, part.object)) {
            (true, true) => PartStage::Midway,
            (true, false) => PartStage::Before,
            (false, true) => PartStage::After,
            (false, false) => PartStage::Strange,
        };
        let stage = match part.act {
            Act::There => moves(at_first, at_second),
            Act::StepBack => moves(at_second, at_first),
            Act::Swap { other } if has(at_first, part.object) && has(at_second, other) => PartStage::Before,
            Act::Swap { other } if has(at_first, other) && has(at_second, part.object) => PartStage::After,
            Act::Swap { .. } => PartStage::Strange,
            Act::Remove => match at_second.filter(|stat| part.object.is(stat)) {
                Some(stat) if part.object.is_changed(&stat) => PartStage::Stays,
                Some(_) => PartStage::Before,
                None => PartStage::After,
            },
        };
        Ok(Self { part, branch, stage, first, second })
    }

    fn act(&self) -> Result<(), SysError> {
        match self.part.act {
            Act::There => self.rename(&self.first, &self.second),
            Act::StepBack => self.rename(&self.second, &self.first),
            Act::Swap { .. } => self.swap(),
            Act::Remove => {
                let Some((dir, name)) = &self.second else { return Ok(()) };
                match sys::at::unlink(dir.as_fd(), name) {
                    Err(error) if error.errno == Errno::ISDIR => sys::at::rmdir(dir.as_fd(), name),
                    removed => removed,
                }
            }
        }
    }

    fn undo(&self) -> Result<(), SysError> {
        match self.part.act {
            Act::There => self.rename(&self.second, &self.first),
            Act::StepBack => self.rename(&self.first, &self.second),
            Act::Swap { .. } => self.swap(),
            Act::Remove => Ok(()),
        }
    }

    /// Removes an object that hides nothing: its name has meant the replacement for as long as the record lies here. That is not
    /// undone.
    fn is_behind(&self, pool: &Pool, all: &[Self]) -> bool {
        let mut moved = all.iter().filter(|part_at| part_at.part.act != Act::Remove).peekable();
        let is_later =
            moved.peek().is_some_and(|first| pool.turn(first.branch.ix) < pool.turn(self.branch.ix));
        let is_dir = self.part.object.is_no_file();
        self.part.act == Act::Remove
            && (is_dir || is_later)
            && moved.all(|part_at| part_at.stage == PartStage::After)
    }

    /// Whether another branch has a directory or file of the name under which the object is found: the pool shows both as one.
    fn is_merged(&self, pool: &Pool, names: &NameChange) -> bool {
        let now = match self.part.act {
            Act::There => &names.first,
            Act::StepBack => &names.second,
            Act::Swap { .. } | Act::Remove => return false,
        };
        let has = |other: &Branch| {
            let found = walk(other, now)?.map(|(dir, name)| sys::at::stat(dir.as_fd(), &name));
            Ok::<_, SysError>(found.is_some_and(|stat| stat.is_ok()))
        };
        let mut others = pool.branches.iter().filter(|other| other.id != self.branch.id && other.is_open());
        others.any(|other| has(other).unwrap_or(false))
    }

    /// Whether it is a directory to be removed that has entries.
    fn removes_filled(&self) -> Result<bool, SysError> {
        let Some((dir, name)) = &self.second else { return Ok(false) };
        let how = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut entries = match sys::at::open(dir.as_fd(), name, how, 0, self.branch.mounts) {
            Err(error) if matches!(error.errno, Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            opened => Dirents::new(opened?, 1024),
        };
        while let Some(entry) = entries.next()? {
            if !is_dot(entry.name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A file that was removed does not come back.
    fn cannot_go_back(&self) -> bool {
        self.part.act == Act::Remove && self.stage == PartStage::After
    }

    fn rename(
        &self,
        from: &Option<(OwnedFd, CString)>,
        to: &Option<(OwnedFd, CString)>,
    ) -> Result<(), SysError> {
        let (Some((from_dir, from)), Some((to_dir, to))) = (from, to) else {
            return Err(SysError { call: sys::Call::Rename, errno: Errno::NOENT });
        };
        if self.stage == PartStage::Midway {
            return sys::at::unlink(from_dir.as_fd(), from); // the second name is there already
        }
        // A directory may replace an empty one; a file replaces nothing that came meanwhile.
        let is_dir = sys::at::stat(from_dir.as_fd(), from)?.is_dir();
        let how = if is_dir { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        sys::at::rename(from_dir.as_fd(), from, to_dir.as_fd(), to, how)
    }

    fn swap(&self) -> Result<(), SysError> {
        let (Some((a_dir, a)), Some((b_dir, b))) = (&self.first, &self.second) else { return Ok(()) };
        sys::at::rename(a_dir.as_fd(), a, b_dir.as_fd(), b, RenameFlags::EXCHANGE)
    }

    fn sync(&self) -> Result<(), SysError> {
        for (dir, _) in [&self.first, &self.second].into_iter().flatten() {
            sync_dir(dir.as_fd()).inspect_err(|_| self.branch.distrust_space())?;
        }
        Ok(())
    }
}

/// Occasion on which the hidden folder of a branch is cleared.
#[derive(Clone, Copy)]
pub(crate) struct Occasion<'a> {
    pub(crate) index: &'a Index,
    /// A branch that takes no requests yet, while the others are at work.
    pub(crate) joining: Option<BranchId>,
    /// Branches of the pool that are left alone: they are away, or lack parts.
    pub(crate) lacking: &'a [BranchId],
}

impl<'a> Occasion<'a> {
    pub(crate) fn joins(index: &'a Index, joining: BranchId) -> Self {
        Self { index, joining: Some(joining), lacking: &[] }
    }
}

/// The parent of `path` on `branch`, and the last name. None if it is not there.
pub(crate) fn walk(branch: &Branch, path: &[u8]) -> Result<Option<(OwnedFd, CString)>, SysError> {
    let bad = || SysError { call: sys::Call::Open, errno: Errno::INVAL };
    let mut dir = sys::at::reopen(branch.root().as_fd(), OFlags::PATH | OFlags::DIRECTORY)?;
    let mut names = path.split(|byte| *byte == b'/').peekable();
    while let Some(raw) = names.next() {
        let name = CString::new(raw).map_err(|_| bad())?;
        if raw.is_empty() || is_dot(&name) {
            return Err(bad());
        }
        if names.peek().is_none() {
            return Ok(Some((dir, name)));
        }
        dir = match sys::at::open_dir(dir.as_fd(), &name, branch.mounts) {
            // A symbolic link or another mount by now: the object is gone.
            Err(error) if matches!(error.errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
                return Ok(None);
            }
            opened => opened?,
        };
    }
    Ok(None)
}
