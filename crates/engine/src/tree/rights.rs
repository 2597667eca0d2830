//! Copies of a directory that let in others than the first one does.
//!
//! A change of owner or mode is made on all copies, but a power cut or an end of the daemon in the middle leaves some as
//! they were, and so does an out-of-band change. The pool shows the first copy's rights; the others show when its
//! branch is out of reach or leaves. So a difference is logged once, and a later copy is given the first one's rights where
//! no user gains by that. A change that would let a user in is for an operator to decide.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::Result;
use fsstack_identity::number::mix;
use fsstack_pool::BranchIx;
use fsstack_sync::time::{SystemTime, UNIX_EPOCH};
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, Stat, SysError};

use crate::files::capability::has_xattr;
use crate::inode::{AttributeGuard, Inode};
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::clashes::ClashReport;
use crate::tree::resolve::DirStats;

/// A recent change may be half done: by another host's pool, or by a script on the branches.
const SETTLED_AFTER: i64 = 2;

/// Rights on a directory, without ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Rights {
    fn of(stat: &Stat) -> Self {
        Self { uid: stat.uid, gid: stat.gid, mode: stat.mode & 0o7777 }
    }

    /// True if `self` gives no user more rights than `old`. Root may do anything.
    fn narrows(self, old: Self) -> bool {
        let special = |rights: Self| rights.mode & 0o7000;
        let class = |rights: Self, shift: u32| rights.mode >> shift & 0o7;
        let [user, group, other] = [6, 3, 0].map(|shift| class(self, shift));
        let [old_user, old_group, old_other] = [6, 3, 0].map(|shift| class(old, shift));
        let within = |new: u32, old: u32| new & !old == 0;
        // Of these bits only "sticky" takes rights away.
        let same_kind =
            special(self) & !0o1000 == special(old) & !0o1000 && within(special(old), special(self));
        let users = if self.uid == old.uid {
            within(user, old_user)
        } else {
            // The old owner is one of the group or the others now.
            self.uid == 0 && within(group | other, old_user)
        };
        let groups = if self.gid == old.gid {
            within(group, old_group)
        } else {
            within(group | other, old_user & old_group & old_other)
        };
        same_kind && users && groups && within(other, old_other)
    }

    fn put_on(self, fd: BorrowedFd<'_>, old: Self) -> Result<(), SysError> {
        if (self.uid, self.gid) != (old.uid, old.gid) {
            // No user gains rights between the two changes either.
            sys::at::chmod_fd(fd, self.mode & 0o7000)?;
            sys::at::chown_fd(fd, Some(self.uid), Some(self.gid))?;
        }
        sys::at::chmod_fd(fd, self.mode)
    }
}

impl std::fmt::Display for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04o} of {}:{}", self.mode, self.uid, self.gid)
    }
}

impl Tree {
    /// Looks whether the copies of `dir`, which a lookup found as `stats`, have the first one's rights; see above.
    pub(crate) fn compare_rights(&self, pool: &Pool, dir: &Arc<Inode>, stats: &DirStats) {
        let Some(((first_at, first), later)) = stats.split_first() else { return };
        if dir.is_unsure() {
            return; // the first copy may be on a branch that could not be asked
        }
        for (at, stat) in later {
            let (shown, own) = (Rights::of(first), Rights::of(stat));
            if shown == own || is_recent(first) || is_recent(stat) {
                continue;
            }
            let reported = [dir.id.ino.0, u64::from(at.0), seed(shown), seed(own)];
            let reported = reported.into_iter().fold(0, |all, part| mix(all ^ part));
            if self.unlike.knows(reported) {
                continue;
            }
            let copy = |at: BranchIx| self.dirfd(pool, dir, at).map(|fd| (at, fd));
            let (Ok(first), Ok(later)) = (copy(*first_at), copy(*at)) else { return };
            // A change or a new copy that is under way is the reason, or may be. (With this in hand no way is walked: that
            // may wait for the tree lock.)
            let Some(_changes) = dir.change().filter(AttributeGuard::has_all) else { return };
            if self.unlike.tell(reported) != ClashReport::Before {
                self.settle_rights(pool, dir, &first, &later);
            }
        }
    }

    fn settle_rights(&self, pool: &Pool, dir: &Arc<Inode>, first: &OneCopy, later: &OneCopy) {
        let given = give_rights(pool, dir, first, later);
        let path = dir.path().unwrap_or_default();
        let path = String::from_utf8_lossy(&path);
        let (shown, branch) = (pool.branch(first.0).path.display(), pool.branch(later.0).path.display());
        match given {
            Ok(RightsOutcome::Same) => {}
            Ok(RightsOutcome::Given(rights, was)) => tracing::warn!(
                ?path, %shown, %branch, "directory: its copy on the branch had {was}; it now has {rights}, as shown, which gives no user more rights"
            ),
            Ok(RightsOutcome::Reported(rights, was)) => tracing::warn!(
                ?path, %shown, %branch, "directory: its copy on the branch has {was}, shown is {rights}; without the first branch the copy's rights hold; set owner and mode through the pool (chown, chmod)"
            ),
            Err(error) => tracing::warn!(
                ?path, %shown, %branch, %error, "directory: its copy on the branch has another owner or mode and cannot be changed; without the first branch the copy's rights hold; set them on the branch itself"
            ),
        }
    }
}

/// A copy of a directory: its branch, and it.
type OneCopy = (BranchIx, Arc<DirFd>);

fn give_rights(pool: &Pool, dir: &Inode, first: &OneCopy, later: &OneCopy) -> Result<RightsOutcome> {
    let look = |(at, fd): &OneCopy| {
        pool.branch(*at).ask(|| {
            let acl = has_xattr(On::Path(fd.as_fd()), c"system.posix_acl_access");
            Ok((Rights::of(&sys::at::stat_fd(fd.as_fd())?), acl))
        })
    };
    let (rights, acl) = look(first)?;
    let (was, other_acl) = look(later)?;
    if rights == was {
        return Ok(RightsOutcome::Same);
    }
    // With an ACL the mode is not all that counts.
    let (at, fd) = later;
    let branch = pool.branch(*at);
    if acl || other_acl || !rights.narrows(was) || !branch.is_writable() {
        return Ok(RightsOutcome::Reported(rights, was));
    }
    branch.ask(|| rights.put_on(fd.as_fd(), was))?;
    dir.forget_reported(*at);
    let (now, _) = look(later)?;
    // A file system that has no rights of its own takes them, and shows others.
    if now == rights { Ok(RightsOutcome::Given(rights, was)) } else { Err(Errno::OPNOTSUPP.into()) }
}

/// Result for a copy with other rights than the shown one: the shown rights, and its own.
enum RightsOutcome {
    Same,
    Given(Rights, Rights),
    Reported(Rights, Rights),
}

fn seed(rights: Rights) -> u64 {
    u64::from(rights.mode) << 48 ^ u64::from(rights.uid) << 24 ^ u64::from(rights.gid)
}

fn is_recent(stat: &Stat) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs().cast_signed());
    (now - stat.ctime.sec).abs() < SETTLED_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(uid: u32, gid: u32, mode: u32) -> Rights {
        Rights { uid, gid, mode }
    }

    #[test]
    fn a_change_that_gives_nobody_a_right_is_recognised() {
        let old = rights(7, 8, 0o755);
        for new in [(7, 8, 0o700), (7, 8, 0o1755), (0, 8, 0o755), (0, 0, 0o755), (7, 9, 0o755), (0, 0, 0o700)]
        {
            assert!(rights(new.0, new.1, new.2).narrows(old), "{new:?}");
        }
        for new in [(7, 8, 0o775), (7, 8, 0o757), (9, 8, 0o700), (7, 8, 0o2755)] {
            assert!(!rights(new.0, new.1, new.2).narrows(old), "{new:?}");
        }
        // The group's members, the others, and the old owner had less than their new class has.
        assert!(!rights(7, 9, 0o750).narrows(rights(7, 8, 0o705)));
        assert!(!rights(7, 9, 0o705).narrows(rights(7, 8, 0o705)));
        assert!(!rights(0, 8, 0o755).narrows(rights(7, 8, 0o055)));
        assert!(!rights(7, 8, 0o777).narrows(rights(7, 8, 0o1777)));
    }
}
