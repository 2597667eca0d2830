//! How changed names of a branch are now.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_catalogue::{Changes, Look, Row, Turns, WITHOUT_ACL};
use fsstack_identity::number::number;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno, Stat};

use crate::inode::Inode;
use crate::member::Member;
use crate::pool::Pool;
use crate::union::Union;

pub(super) fn number_of(branch: &Member, stat: &Stat) -> u64 {
    number(branch, stat.dev, stat.ino).0
}

/// The row of the object `on`, a directory with whether it has an access ACL.
pub(super) fn row_of(branch: &Member, on: On<'_>, stat: &Stat) -> Row {
    let mut row = Row::of(stat, number_of(branch, stat));
    if stat.is_dir() {
        let acl = branch.ask(|| xattr::get(on, c"system.posix_acl_access", &mut []));
        let lacks = acl.is_err_and(|error| matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP));
        row.mode |= if lacks { WITHOUT_ACL } else { 0 };
    }
    row
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
    let (mut looks, mut complete, mut turns) = (Vec::new(), true, Turns::default());
    for change in changes.dirs.into_values() {
        let dir = &change.dir;
        let seen = union.tree.dirfd(&pool, dir, branch.ix).and_then(|fd| {
            let stat = branch.ask(|| sys::at::stat_fd(fd.as_fd()))?;
            let hides = |name: &CStr| dir.is_root() && is_hidden(&pool, name);
            let names = change.names.iter().filter(|name| !hides(name));
            let names = names.map(|name| {
                turns.next();
                look_at_name(branch, fd.as_fd(), name)
            });
            let names = names.collect::<Result<_>>()?;
            let number = number_of(branch, &stat);
            Ok(Look { dir: number, itself: row_of(branch, On::Path(fd.as_fd()), &stat), names })
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

pub(super) fn look_at_name(
    branch: &Member,
    dir: BorrowedFd<'_>,
    name: &CStr,
) -> Result<(Box<[u8]>, Option<Row>)> {
    let row = match branch.ask(|| sys::at::stat(dir, name)) {
        Ok(stat) => Some(row_of(branch, On::Name(dir, name), &stat)),
        Err(error) if error.is_missing() => None,
        Err(error) => return Err(error),
    };
    Ok((name.to_bytes().into(), row))
}

fn is_astray(error: OpError) -> bool {
    error.is_missing() || matches!(error.errno(), Errno::STALE | Errno::NOTDIR)
}
