//! Objects that only branches out of reach have, shown from the catalogue (`degraded=catalogue`).
//!
//! Names in listings, lookups and attributes are answered. Such an object has a number made of its path, or its own if the kernel
//! knows it since its branch answered; `Tree::inode` does not know the former, so that every other request ends with EIO. It is not an
//! inode: nothing of the tree can act on it, and when its branch is back the name is looked up anew and has its own number.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_catalogue::{CatalogueError, Homes, OfflineObject, Row, Upkeep};
use fsstack_identity::number::{Identity, is_offline, offline_number};
use fsstack_pool::{BranchId, Ino};
use fsstack_sys::{Kind, Stat, Time};

use crate::answer::{Attr, Entry, Validity};
use crate::inode::clock::Moment;
use crate::inode::{Copies, Inode, InodeName};
use crate::member::Member;
use crate::opened::behind;
use crate::opened::listing::{Listing, Read};
use crate::pool::Pool;
use crate::settings::Degraded;
use crate::tree::lookup::unknown_again;
use crate::tree::resolve::is_private;
use crate::union::Union;

/// Names of a directory that are listed at most.
const MOST_LISTED: usize = 1 << 20;
/// Length of a path that is looked for, in bytes.
const LONGEST_PATH: usize = 16 << 10;

impl Union {
    /// Looks up `name` in `parent`, where `error` is the answer of the branches.
    ///
    /// # Errors
    /// `error` if the catalogue lacks it: it may be on another branch, or be too new.
    pub(crate) fn lookup_offline(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        error: OpError,
    ) -> Result<Entry> {
        let upkeep = self.catalogue.load_full().filter(|upkeep| !upkeep.has_failed()).ok_or(error)?;
        let homes = self.homes(&upkeep, pool, parent)?;
        if let Some(inode) = self.tree.known(parent, name)
            && let Some((_, row)) = rows(&upkeep, &homes, name)?.first()
            && row.kind() == inode.kind
            && is_away(pool, &inode)
            && inode.open_file().is_none()
        {
            return Ok(self.known_entry(parent, name, &inode, row));
        }
        self.offline_entry(&upkeep, parent.id.ino, homes, name).map_err(|_| error)
    }

    /// Like [`Self::lookup_offline`], in a directory that is known from the catalogue only.
    ///
    /// # Errors
    /// ESTALE if its branches are back.
    pub(crate) fn lookup_in_offline(&self, pool: &Pool, parent: Ino, name: &CStr) -> Result<Entry> {
        let upkeep = self.catalogue.load_full().ok_or(OpError::STALE)?;
        let homes = self.offline_homes(&upkeep, pool, parent)?;
        self.offline_entry(&upkeep, parent, homes, name)
    }

    fn offline_entry(&self, upkeep: &Upkeep, parent: Ino, homes: Homes, name: &CStr) -> Result<Entry> {
        let found = rows(upkeep, &homes, name)?;
        let (_, row) = found.first().ok_or(OpError::UNSURE)?;
        let ino = offline_number(parent, name.to_bytes());
        let object = OfflineObject { homes, name: name.to_bytes().into() };
        if !upkeep.offline.look_up(ino.0, object) {
            return Err(OpError::UNSURE);
        }
        Ok(Entry { ino, generation: 0, attr: attr(ino, row) })
    }

    /// The entry of an object that the kernel knows since its branch answered: its own number.
    fn known_entry(&self, parent: &Arc<Inode>, name: &CStr, inode: &Arc<Inode>, row: &Row) -> Entry {
        let Identity { ino, generation } = inode.id;
        let again = || match inode.branch() {
            Some(at) => Inode::file(inode.id, inode.kind, at),
            None => unknown_again(inode),
        };
        let counted = self.tree.inodes.looked_up(inode.id, inode.kind, again);
        counted.note_name(parent, name, 1, Moment::now());
        Entry { ino, generation: u64::from(generation), attr: attr(ino, row) }
    }

    /// Attributes of an object that is known from the catalogue only.
    ///
    /// # Errors
    /// ESTALE if its branches are back, or it is unknown.
    pub(crate) fn offline_attr(&self, ino: Ino) -> Result<Attr> {
        let upkeep = self.catalogue.load_full().ok_or(OpError::STALE)?;
        let (object, homes) = offline(&upkeep, &self.pool(), ino)?;
        let found = upkeep.catalogue.rows(&homes, &object.name).map_err(failed)?;
        found.first().map(|(_, row)| attr(ino, row)).ok_or(OpError::STALE)
    }

    /// The row of `ino` in the catalogue, with `degraded=catalogue`; the branches have answered `error`.
    ///
    /// # Errors
    /// `error`.
    pub(crate) fn row_by_catalogue(&self, ino: Ino, error: OpError) -> Result<Row> {
        let pool = self.tree.pool.load();
        let upkeep = self.catalogue.load_full().filter(|_| pool.settings.degraded == Degraded::Catalogue);
        let (upkeep, inode) = upkeep.zip(self.tree.inodes.get(ino)).ok_or(error)?;
        // The size of an open file is older than what is written to it.
        let is_known = |_: &InodeName| is_away(&pool, &inode) && inode.open_file().is_none();
        let name = inode.name().filter(is_known).ok_or(error)?;
        let homes = self.homes(&upkeep, &pool, &name.parent)?;
        let found = rows(&upkeep, &homes, &name.name)?;
        found.first().map(|(_, row)| *row).filter(|row| row.kind() == inode.kind).ok_or(error)
    }

    /// A directory that is known from the catalogue only, for a handle on it: it has no copies.
    ///
    /// # Errors
    /// ENOTDIR; ESTALE if its branches are back.
    pub(crate) fn offline_dir(&self, ino: Ino) -> Result<Arc<Inode>> {
        if Kind::from_mode(self.offline_attr(ino)?.stat.mode) != Kind::Dir {
            return Err(fsstack_sys::Errno::NOTDIR.into());
        }
        Ok(Arc::new(Inode::dir(Identity { ino, generation: 0 }, &Copies::known([]))))
    }

    /// The kernel has forgotten `count` lookups of an object that is known from the catalogue only.
    pub(crate) fn forget_offline(&self, ino: Ino, count: u64) {
        if let Some(upkeep) = self.catalogue.load_full() {
            upkeep.offline.forget(ino.0, count);
        }
    }

    /// The next name of `listing` that only branches out of reach have in `dir`. `error` is the end of the listing without them.
    ///
    /// # Errors
    /// `error` if names are missing: the catalogue of a branch is incomplete, or a branch that was skipped answers again.
    pub(crate) fn next_offline(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        listing: &mut Listing,
        error: OpError,
    ) -> Result<Option<Read>> {
        let upkeep = self.catalogue.load_full().filter(|upkeep| !upkeep.has_failed()).ok_or(error)?;
        if listing.behind.reads.is_none() {
            listing.keep_behind(self.offline_reads(&upkeep, pool, dir)?)?;
        }
        if let Some(read) = listing.behind.after(listing.position()) {
            return Ok(Some(read.clone()));
        }
        // A branch that was skipped, or never asked for this directory, answers again.
        let is_left_out = |branch: &Arc<Member>| {
            branch.is_open() && (listing.behind.has_skipped(branch.ix) || dir.is_unsure_of(branch.ix))
        };
        let is_short = !is_whole(&upkeep, pool) || pool.branches.iter().any(is_left_out);
        if is_short { Err(error) } else { Ok(None) }
    }

    fn offline_reads(&self, upkeep: &Upkeep, pool: &Pool, dir: &Arc<Inode>) -> Result<Vec<Read>> {
        let homes = self.homes(upkeep, pool, dir)?;
        let listed = upkeep.catalogue.list(&homes, MOST_LISTED).map_err(failed)?.ok_or(OpError::UNSURE)?;
        let mut reads = Vec::with_capacity(listed.len());
        for (name, id, row) in listed {
            let Ok(name) = CString::new(name) else { continue };
            let Some(branch) = pool.branches.iter().find(|branch| branch.id == id) else { continue };
            // Names on reachable branches were listed before.
            if is_private(pool, dir, &name)
                || !is_offline(dir.id.ino) && self.tree.find(pool, dir, &name).is_ok()
            {
                continue;
            }
            let known = self.tree.known(dir, &name).filter(|known| known.kind == row.kind());
            let ino = known.map_or_else(|| offline_number(dir.id.ino, name.to_bytes()), |known| known.id.ino);
            let (kind, name) = (Some(row.kind()), name.into_boxed_c_str());
            reads.push(Read { at: branch.ix, ino: 0, cookie: 0, kind, name, offline: Some(ino) });
        }
        behind::give_cookies(dir.id.ino, &mut reads);
        Ok(reads)
    }

    /// The copies of a directory on branches out of reach, as the catalogue has them.
    fn homes(&self, upkeep: &Upkeep, pool: &Pool, dir: &Arc<Inode>) -> Result<Homes> {
        if is_offline(dir.id.ino) {
            return self.offline_homes(upkeep, pool, dir.id.ino);
        }
        let mut names = Vec::new();
        let (mut at, mut length) = (dir.clone(), 0);
        while !at.is_root() {
            let name = at.name().ok_or(OpError::UNSURE)?;
            length += name.name.to_bytes().len() + 1;
            if length > LONGEST_PATH {
                return Err(OpError::UNSURE);
            }
            names.push(name.name.to_bytes().to_vec());
            at = name.parent;
        }
        names.reverse();
        upkeep.catalogue.dirs(&closed(pool), &names.join(&b'/')).map_err(failed)
    }

    /// The copies of a directory that is known from the catalogue only.
    fn offline_homes(&self, upkeep: &Upkeep, pool: &Pool, ino: Ino) -> Result<Homes> {
        let (object, homes) = offline(upkeep, pool, ino)?;
        let found = upkeep.catalogue.rows(&homes, &object.name).map_err(failed)?;
        Ok(found.into_iter().filter_map(|(branch, row)| Some((branch, row.dir()?))).collect())
    }
}

/// The object of a number, and the copies of its directory on branches that are out of reach still.
fn offline(upkeep: &Upkeep, pool: &Pool, ino: Ino) -> Result<(OfflineObject, Homes)> {
    let object = upkeep.offline.get(ino.0).ok_or(OpError::STALE)?;
    let closed = closed(pool);
    let homes: Homes = object.homes.iter().filter(|(branch, _)| closed.contains(branch)).copied().collect();
    if homes.is_empty() || homes.len() < object.homes.len() {
        Err(OpError::STALE)
    } else {
        Ok((object, homes))
    }
}

/// The branches that are out of reach, in order.
fn closed(pool: &Pool) -> Vec<BranchId> {
    pool.branches.iter().filter(|branch| !branch.is_open()).map(|branch| branch.id).collect()
}

/// Whether there are branches out of reach, and all of their names are in the catalogue.
fn is_whole(upkeep: &Upkeep, pool: &Pool) -> bool {
    let closed = closed(pool);
    let is_known = |id: &BranchId| {
        let noted = pool.branches.iter().find(|branch| branch.id == *id);
        upkeep.known(id.get()).is_some_and(|known| known.complete && !known.looking)
            && noted.is_some_and(|branch| branch.uncatalogued.is_empty())
    };
    !closed.is_empty() && closed.iter().all(is_known)
}

/// Whether `inode` is on branches out of reach only.
fn is_away(pool: &Pool, inode: &Inode) -> bool {
    match inode.branch() {
        Some(at) => !pool.branch(at).is_open(),
        None => inode.is_dir() && inode.copies().iter().all(|at| !pool.branch(*at).is_open()),
    }
}

fn rows(upkeep: &Upkeep, homes: &Homes, name: &CStr) -> Result<Vec<(BranchId, Row)>> {
    upkeep.catalogue.rows(homes, name.to_bytes()).map_err(failed)
}

fn failed(error: CatalogueError) -> OpError {
    tracing::debug!(%error, "catalogue cannot be read");
    OpError::UNSURE
}

/// Attributes that are not kept: the branch may be back at any time. Counts of links and the other times are not known.
pub(crate) fn attr(ino: Ino, row: &Row) -> Attr {
    let time = Time { sec: row.sec, nsec: row.nsec };
    let stat = Stat {
        dev: 0,
        mnt_id: 0,
        ino: ino.0,
        mode: row.shown_mode(),
        nlink: 1,
        uid: row.uid,
        gid: row.gid,
        rdev_major: 0,
        rdev_minor: 0,
        size: row.size,
        blocks: row.size.div_ceil(512),
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: None,
        attributes: 0,
        attributes_mask: 0,
        version: None,
        alias: None,
    };
    Attr { ino, validity: Validity::None, stat }
}
