//! Bulk copy's side of the pool: a place for a file, promised before it is written, and its name when it is whole.
//!
//! Who copies writes the branch's file system directly, past the pool: a file in the branch's hidden folder, which the
//! pool never shows. So nobody sees half a file, and what an interrupted copy leaves is cleared by the next mount.
//! The file gets its name here, in one step, in the directory that was meant, whatever that is called by then; and
//! who believed that the name was missing is told. The bytes that were promised count as taken until then, so that
//! copies side by side do not overfill a branch; a branch with a reservation is in use, and does not leave the pool.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use fsstack_pool::{BranchIx, Ino, rank};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{self as sys, Errno, OFlags, identity};

use crate::error::{OpError, Result};
use crate::explain::{fits, names_of};
use crate::inode::Inode;
use crate::place::random;
use crate::recover::{self, AtWork};
use crate::terms::Tenant;
use crate::union::Union;

/// Whoever believes what it was told: the kernel. Called with a name that has just come to a directory.
pub type Tell = Box<dyn Fn(Ino, &CStr) + Send + Sync>;

/// A place for a file that is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// By this it is committed or abandoned.
    pub id: u64,
    /// The branch.
    pub branch: BranchIx,
    /// An empty file there, of mode 0600 and the daemon's: to be filled and given its owner, mode and times.
    pub staging: PathBuf,
    /// Where it will be.
    pub target: PathBuf,
}

/// Who is told of names that come past the kernel.
pub(crate) struct Teller(Tell);

impl std::fmt::Debug for Teller {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Teller")
    }
}

/// What is kept of a reservation.
#[derive(Debug)]
pub(crate) struct Reservation {
    home: Tenant,
    parent: Arc<Inode>,
    name: CString,
    staged: AtWork,
    size: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.home.give_back(self.size);
    }
}

impl Union {
    /// A place for a file of `size` bytes at `path`, below the pool's root: on the first branch of the ranking that
    /// has room for it and its floor. The directories that the branch lacks are made there.
    ///
    /// # Errors
    /// ENOENT if the directory is not in the pool; EEXIST if the name is; ENOSPC if no branch has room.
    pub fn reserve(&self, path: &[u8], size: u64) -> Result<Reserved> {
        let pool = self.pool.load();
        let mut names = names_of(path)?;
        let name = names.pop().ok_or(Errno::EXIST)?;
        let (parent, done) = self.walk_down(&pool, &names)?;
        if done < names.len() {
            return Err(OpError::MISSING);
        }
        self.check_free(&pool, &parent, std::slice::from_ref(&name))?;
        let chain = &pool.settings.create;
        let facts = self.candidates(&pool, &parent, chain, |_, _| true);
        let mut last = None;
        for at in rank(chain, &facts, &mut random).order {
            if !facts.iter().any(|facts| facts.branch == at && fits(facts, size)) {
                continue; // the policy's last resort, under the floor, is not for what is known to be too large
            }
            let Ok(home) = pool.branch(at).move_in() else { continue };
            let staged = pool.branch(at).stage(c".copy");
            let made = self.skeleton(&pool, &parent, at).and_then(|_| {
                let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                let branch = pool.branch(at);
                branch.ask(|| {
                    recover::in_folder(branch, |folder| {
                        sys::at::open(folder, &staged, how, 0o600, branch.mounts)
                    })
                    .map(drop)
                })
            });
            match made {
                Ok(()) => {
                    home.promise(size);
                    let reservation = Reservation { home, parent, name, staged, size };
                    return Ok(self.keep(reservation));
                }
                Err(error) if error.is_about_the_branch() || error.is_fault() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or(Errno::NOSPC.into()))
    }

    fn keep(&self, reservation: Reservation) -> Reserved {
        let branch = reservation.home.branch();
        let id = self.new_handle().0;
        let folder = branch.path.join(os(branch.folder().to_bytes()));
        let relative = reservation.parent.path().unwrap_or_default();
        let reserved = Reserved {
            id,
            branch: branch.ix,
            staging: folder.join(os(reservation.staged.to_bytes())),
            target: branch.path.join(os(&relative)).join(os(reservation.name.to_bytes())),
        };
        self.reservations.lock().insert(id, reservation);
        reserved
    }

    /// The file that was reserved as `id` is whole: it gets its name. What it holds must be on disk by then if it is to
    /// outlive a power cut.
    ///
    /// # Errors
    /// EEXIST if the name is taken by now, ENOENT if the directory is gone or there is no such reservation: the file
    /// is removed then.
    pub fn commit(&self, id: u64) -> Result<()> {
        let reservation = self.reservations.lock().remove(&id).ok_or(OpError::MISSING)?;
        let named = self.name_staged(&reservation);
        if named.is_err() {
            discard(&reservation);
        }
        named
    }

    fn name_staged(&self, of: &Reservation) -> Result<()> {
        let pool = self.pool.load();
        let Reservation { home, parent, name, staged, size } = of;
        identity::become_daemon().map_err(OpError::Sys)?;
        if parent.name().is_none() && !parent.is_root() {
            return Err(OpError::MISSING);
        }
        self.must_be_missing(&pool, parent, name)?;
        // The copy that was made for it may have been removed with the directory's last entry.
        let dir = self.skeleton(&pool, parent, home.ix)?;
        home.ask(|| {
            let folder = recover::folder(home)?;
            sys::at::rename(folder.as_fd(), staged, dir.as_fd(), name, RenameFlags::NOREPLACE)
        })?;
        recover::leave(home);
        home.note_placed_beside(*size);
        parent.take_miss(name);
        if let Some(Teller(tell)) = self.teller.get() {
            tell(parent.id.ino, name);
        }
        Ok(())
    }

    /// The file that was reserved as `id` will not come: what there is of it is removed. One that is not known is
    /// none of the pool's business.
    pub fn abandon(&self, id: u64) {
        let gone = self.reservations.lock().remove(&id);
        if let Some(reservation) = gone {
            discard(&reservation);
        }
    }

    /// Tells `tell` of each name that is committed: the kernel may believe that it is missing. Set once.
    pub fn set_teller(&self, tell: Tell) {
        self.teller.get_or_init(|| Teller(tell));
    }

    /// No copy goes on: the mount is gone.
    pub(crate) fn abandon_all(&self) {
        let all: Vec<Reservation> = self.reservations.lock().drain().map(|(_, one)| one).collect();
        all.iter().for_each(discard);
    }

    /// Files that are reserved and not committed.
    pub fn reservations(&self) -> usize {
        self.reservations.lock().len()
    }
}

fn discard(reservation: &Reservation) {
    let home = &reservation.home;
    let removed = home.ask(|| {
        let folder = recover::folder(home)?;
        sys::at::unlink(folder.as_fd(), &reservation.staged)
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "half a copy is left for the next mount to clear");
    }
    recover::leave(home);
}

fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}
