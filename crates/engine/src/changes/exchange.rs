//! Exchanging two names, whatever they mean and wherever that is.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::BranchIx;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{self as sys, Stat};

use crate::changes::names::{
    End, Half, begin_durably, check_exchangeable, finish_durably, has_no_links, note,
};
use crate::files::check_not_given_up;
use crate::inode::{Inode, InodeName};
use crate::opened::followed::FollowedMove;
use crate::opened::tables::Files;
use crate::pool::Pool;
use crate::recovery::journal::{Act, Object};
use crate::tree::Tree;
use crate::tree::resolve::DirStats;
use crate::tree::unsynced_dirs::NameEvent;

/// Has listings among `files` follow both names, if they mean files on different branches: each is a name of the other branch
/// from now on, for listings as if its file had moved there.
fn follow<'a>(
    tree: &Tree,
    pool: &Pool,
    files: &'a Files,
    (a, b): ((End<'_>, &DirStats), (End<'_>, &DirStats)),
) -> Option<[FollowedMove<'a>; 2]> {
    let pair = two_files(a, b)?;
    Some(pair.map(|(end, at, stat)| {
        files.listings_follow(tree, pool, &InodeName::new(end.dir, end.name), (at, stat.ino))
    }))
}

/// Returns the two names, each with the only branch that has it, if they mean files on different branches.
fn two_files<'a>(
    (a, in_a): (End<'a>, &DirStats),
    (b, in_b): (End<'a>, &DirStats),
) -> Option<[(End<'a>, BranchIx, Stat); 2]> {
    match (&**in_a, &**in_b) {
        ([(at_a, of_a)], [(at_b, of_b)]) if at_a != at_b && !of_a.is_dir() && !of_b.is_dir() => {
            Some([(a, *at_a, *of_a), (b, *at_b, *of_b)])
        }
        _ => None,
    }
}

impl Tree {
    /// Each of the two names gets what the other had, branch by branch. Listings among `files` show both once.
    pub(crate) fn exchange(&self, pool: &Pool, files: &Files, a: End<'_>, b: End<'_>) -> Result<()> {
        let _tree_lock = self.tree_lock.write(pool)?;
        let (in_a, in_b) =
            (self.find_all(pool, a.dir, a.name, None)?, self.find_all(pool, b.dir, b.name, None)?);
        if in_a.is_empty() || in_b.is_empty() {
            return Err(OpError::MISSING);
        }
        self.check_writable(pool, &in_a)?;
        self.check_writable(pool, &in_b)?;
        let (known_a, known_b) = (self.known_as(pool, a, &in_a), self.known_as(pool, b, &in_b));
        let holds = |holders: &DirStats, at: BranchIx| holders.iter().any(|(holder, _)| *holder == at);
        let at: Vec<BranchIx> = pool
            .branches
            .iter()
            .map(|branch| branch.ix)
            .filter(|at| holds(&in_a, *at) || holds(&in_b, *at))
            .collect();
        for at in &at {
            self.skeleton_under_tree_lock(pool, a.dir, *at).map_err(OpError::of_a_new_parent)?;
            self.skeleton_under_tree_lock(pool, b.dir, *at).map_err(OpError::of_a_new_parent)?;
        }
        check_exchangeable(self, pool, (a, &in_a), (b, &in_b), &at)?;
        let of = |holders: &DirStats, at: BranchIx| {
            holders.iter().find(|(holder, _)| *holder == at).map(|(_, stat)| Object::of(stat))
        };
        let part = |at: BranchIx| match (of(&in_a, at), of(&in_b, at)) {
            (Some(object), Some(other)) => (at, object, Act::Swap { other }),
            (Some(object), None) => (at, object, Act::There),
            (None, object) => (at, object.unwrap_or_default(), Act::StepBack),
        };
        let parts: Vec<_> = at.iter().map(|at| part(*at)).collect();
        check_not_given_up()?;
        let record = begin_durably(self, pool, (a, b), None, &parts)?;
        let _changing =
            (parts.len() > 1).then(|| self.changing_names.begin([(a.dir, a.name), (b.dir, b.name)]));
        let followed = follow(self, pool, files, ((a, &in_a), (b, &in_b)));
        let done =
            self.exchange_step_by_step(pool, (a, &in_a), (b, &in_b), &parts).and_then(|()| match record {
                Some(_) => self
                    .sync_names(pool, a.dir, &parts)
                    .and_then(|()| self.sync_names(pool, b.dir, &parts))
                    // Done, but not surely on disk: the next mount looks at it again.
                    .map_err(Half::done),
                None => Ok(()),
            });
        drop(followed);
        let done = finish_durably(self, pool, (a, b), (&parts, record), done);
        match done {
            Err(half) if !half.done => {
                for (known, holders) in [(known_a, &in_a), (known_b, &in_b)] {
                    if let Some(inode) = known.filter(|_| !half.stuck) {
                        inode.keeps_copies(holders);
                    }
                }
                Err(half.error)
            }
            _ => {
                self.exchanged(pool, (known_a, a, &in_a), (known_b, b, &in_b));
                Ok(())
            }
        }
    }

    fn exchange_step_by_step(
        &self,
        pool: &Pool,
        (a, in_a): (End<'_>, &DirStats),
        (b, in_b): (End<'_>, &DirStats),
        parts: &[(BranchIx, Object, Act)],
    ) -> Result<(), Half> {
        if let Some(pair) = two_files((a, in_a), (b, in_b)) {
            let mut pair = pair.map(|(end, at, _)| (end, at));
            pair.sort_by_key(|(_, at)| pool.turn(*at));
            return self.exchange_files(pool, pair[0], pair[1]);
        }
        let swap = |(at, _, act): (BranchIx, Object, Act), undo: bool| {
            let (from, to) = if (act == Act::StepBack) == undo { (a, b) } else { (b, a) };
            let both = matches!(act, Act::Swap { .. });
            let how = if both { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
            self.rename_copy(pool, from, to, at, how)
        };
        for (done, now) in parts.iter().enumerate() {
            let Err(error) = swap(*now, false) else { continue };
            let mut half = Half::from(error);
            for undone in parts[..done].iter().rev() {
                if let Err(stuck) = swap(*undone, true) {
                    tracing::error!(%stuck, name = ?a.name, "exchange of two names: rollback failed; they stay exchanged on this branch only");
                    half.stuck = true;
                }
            }
            return Err(half);
        }
        Ok(())
    }

    /// Two files on two branches: the later one is put behind the earlier one, whose rename then shows both in
    /// one step.
    fn exchange_files(
        &self,
        pool: &Pool,
        earlier: (End<'_>, BranchIx),
        later: (End<'_>, BranchIx),
    ) -> Result<(), Half> {
        let ((x, at_x), (y, at_y)) = (earlier, later);
        let (x_fd, y_fd) = (self.dirfd(pool, x.dir, at_y)?, self.dirfd(pool, y.dir, at_y)?);
        let branch = pool.branch(at_y);
        let linked = branch.ask(|| sys::at::link(y_fd.as_fd(), y.name, x_fd.as_fd(), x.name));
        if let Err(error) = linked {
            if !has_no_links(error) {
                return Err(error.into());
            }
            self.rename_copy(pool, y, x, at_y, RenameFlags::NOREPLACE)?;
        }
        if let Err(error) = self.rename_copy(pool, x, y, at_x, RenameFlags::NOREPLACE) {
            let back = RenameFlags::NOREPLACE;
            // In a permit: a branch that hangs meanwhile refuses, and the record stays.
            let undone = branch.ask(|| match linked {
                Ok(()) => sys::at::unlink(x_fd.as_fd(), x.name),
                Err(_) => sys::at::rename_if_free(x_fd.as_fd(), x.name, y_fd.as_fd(), y.name, back),
            });
            return Err(Half::left(error, note(undone, x.name)));
        }
        if linked.is_err() {
            return Ok(());
        }
        let unlinked = branch.ask(|| sys::at::unlink(y_fd.as_fd(), y.name));
        self.changed(pool, at_y, (y.dir, y.name), NameEvent::Renamed);
        self.changed(pool, at_y, (x.dir, x.name), NameEvent::Came);
        unlinked.or_else(|error| {
            self.rename_copy(pool, y, x, at_x, RenameFlags::empty()).map_err(Half::stuck)?;
            let stuck = note(branch.ask(|| sys::at::unlink(x_fd.as_fd(), x.name)), x.name);
            Err(Half::left(error, stuck))
        })
    }

    /// Each of two inodes has the other's name.
    fn exchanged(
        &self,
        pool: &Pool,
        (of_a, a, in_a): (Option<Arc<Inode>>, End<'_>, &DirStats),
        (of_b, b, in_b): (Option<Arc<Inode>>, End<'_>, &DirStats),
    ) {
        for (inode, from, to, holders) in [(of_a, a, b, in_a), (of_b, b, a, in_b)] {
            if let Some(inode) = inode {
                inode.renamed((from.dir, from.name), (to.dir, to.name));
                self.seen.set(to.dir.id.ino, to.name.to_bytes(), inode.id.ino);
                inode.keeps_copies(holders);
                self.tell_index(pool, &inode);
            }
            if let Some((at, stat)) = holders.first()
                && !stat.is_dir()
            {
                self.tell_index_of_file(pool, to, *at);
            }
        }
    }
}
