//! How changed names of a branch are now.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_catalogue::{Changes, Look, Row};
use fsstack_identity::number::number;
use fsstack_sys::{self as sys, Errno, Stat};

use crate::inode::Inode;
use crate::member::Member;
use crate::pool::Pool;
use crate::union::Union;

pub(super) fn number_of(branch: &Member, stat: &Stat) -> u64 {
    number(branch, stat.dev, stat.ino).0
}

/// Whether the pool keeps `name` in a branch's root for itself.
pub(super) fn is_hidden(pool: &Pool, name: &CStr) -> bool {
    name.to_bytes().first() == Some(&b'.') && pool.hides(name)
}

/// Asks the branch how the changed names are: what was seen, directories to list again, and whether all could be asked.
pub(super) fn look_at(
    union: &Union,
    branch: &Member,
    changes: Changes<Arc<Inode>>,
) -> (Vec<Look>, Vec<u64>, bool) {
    let pool = union.pool();
    let mut relist: Vec<u64> = changes.relist.into_iter().collect();
    let (mut looks, mut complete) = (Vec::new(), true);
    for change in changes.dirs.into_values() {
        let dir = &change.dir;
        let seen = union.tree.dirfd(&pool, dir, branch.ix).and_then(|fd| {
            let stat = branch.ask(|| sys::at::stat_fd(fd.as_fd()))?;
            let hides = |name: &CStr| dir.is_root() && is_hidden(&pool, name);
            let names = change.names.iter().filter(|name| !hides(name));
            let names = names.map(|name| look_at_name(branch, fd.as_fd(), name)).collect::<Result<_>>()?;
            let number = number_of(branch, &stat);
            Ok(Look { dir: number, itself: Row::of(&stat, |_| number), names })
        });
        match seen {
            Ok(look) => {
                if change.all {
                    relist.push(look.dir);
                }
                looks.push(look);
            }
            // It is gone, which is a change of the directory above; or it is there, and was not found.
            Err(error) if is_astray(error) => {
                relist.extend(dir.copy_ino(branch.ix).map(|ino| number(branch, branch.dev(), ino).0));
            }
            Err(error) => {
                tracing::debug!(%error, branch = %branch.path.display(), "catalogue: changes cannot be looked at; the branch is walked again");
                complete = false;
            }
        }
    }
    (looks, relist, complete)
}

fn look_at_name(branch: &Member, dir: BorrowedFd<'_>, name: &CStr) -> Result<(Box<[u8]>, Option<Row>)> {
    let row = match branch.ask(|| sys::at::stat(dir, name)) {
        Ok(stat) => Some(Row::of(&stat, |stat| number_of(branch, stat))),
        Err(error) if error.is_missing() => None,
        Err(error) => return Err(error),
    };
    Ok((name.to_bytes().into(), row))
}

fn is_astray(error: OpError) -> bool {
    error.is_missing() || matches!(error.errno(), Errno::STALE | Errno::NOTDIR)
}
