//! Listing directories.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::ranked::Ranked;
use fsstack_identity::number::{is_offline, number};
use fsstack_pool::{Handle, Ino};
use fsstack_sync::atomic::{AtomicBool, AtomicU32};
use fsstack_sync::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use fsstack_sys::{self as sys, Errno, Kind, OFlags};

use crate::answer::{Entry, Listed};
use crate::inode::clock::Moment;
use crate::inode::{Inode, KeptListing};
use crate::kept::slots;
use crate::opened::DirHandle;
use crate::opened::behind::{self, is_tail};
use crate::opened::cookie::{DOT, DOT_DOT};
use crate::opened::followed::Followed;
use crate::opened::listing::{Listing, Read};
use crate::pool::Pool;
use crate::settings::Degraded;
use crate::tree::Tree;
use crate::tree::resolve::Found;
use crate::tree::tree_lock::unless_stuck;
use crate::union::Union;

/// How long another reader of the same handle is waited for while all branches answer: one may be stuck in a mount that was replaced.
const LISTING_LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// Two changes of a directory within this may have the same time.
const CTIME_TICK: Duration = Duration::from_millis(50);
/// Two changes of a directory within this may have the same time where a file system keeps whole seconds.
const WHOLE_SECONDS_TICK: Duration = Duration::from_millis(1050);

/// Receiver of entries.
pub trait Sink {
    /// Whether the answer has room for an entry with a name this long.
    fn fits(&self, name: usize) -> bool;
    /// Takes an entry; with its attributes if they were asked for. The kernel then holds one more lookup.
    fn put(&mut self, listed: &Listed<'_>, entry: Option<&Entry>);
}

impl Union {
    /// Opens a directory for listing; of `flags` O_NOATIME counts.
    ///
    /// # Errors
    /// ENOTDIR; ESTALE.
    pub fn opendir(&self, ino: Ino, flags: OFlags) -> Result<Handle> {
        let inode = if is_offline(ino) { self.offline_dir(ino)? } else { self.tree.dir(ino)? };
        let handle = self.files.new_handle();
        let noatime = flags.contains(OFlags::NOATIME) || self.noatime_scope().directories;
        let listing = Ranked::new(Listing::new(noatime, &self.files.listing_memory));
        let losses = AtomicU32::new(inode.losses());
        // Before the row: what has one is known by its handle.
        slots::opens(handle.0);
        // One that is known from the catalogue only cannot be found again by its number.
        let row = self.kept().filter(|_| !is_offline(ino)).and_then(|kept| kept.note_dir(handle, &inode));
        let (followed, is_kept) = (Followed::new(&self.files.listing_memory), AtomicBool::new(false));
        let open = Arc::new(DirHandle { inode, listing, followed, losses, is_kept, row });
        self.files.dirs.insert(handle.0, open);
        Ok(handle)
    }

    /// Whether the kernel may keep the listing that it is about to read by the new `handle`, and use one that it has kept.
    ///
    /// It may where every change shows in the times of a copy: on local disks. They are asked at each opening, so that
    /// out-of-band changes are seen at the next one. On other branches it may if nothing but the pool changes them, until
    /// [`Self::names_may_have_changed`]. The attributes of its names are good for `fresh` in the kernel: where they are asked
    /// for one by one afterwards, the listing is read anew with them.
    pub fn kept_listing(&self, handle: Handle, fresh: Duration) -> KeptListing {
        let pool = self.tree.pool.load();
        let open = self.files.dirs.get(&handle.0).map(|open| open.clone());
        let Some(open) = open.filter(|open| !is_offline(open.inode.id.ino)) else { return KeptListing::None };
        let mut kept = KeptListing::None;
        self.files.listing_is_kept(&open, || {
            kept = open.inode.keeps_listing(self.tree.listing_stamp(&pool, &open.inode), fresh);
            matches!(kept, KeptListing::Fill | KeptListing::Valid)
        });
        kept
    }

    /// Names in `ino` may have changed: a listing that the kernel keeps is not used again, unless times of copies tell.
    pub fn names_may_have_changed(&self, ino: Ino) {
        let pool = self.tree.pool.load();
        if pool.settings.exclusive
            && !pool.is_local()
            && let Some(dir) = self.tree.inodes.get(ino)
        {
            dir.forget_listing();
        }
    }

    /// The last use of a directory handle is over.
    pub fn releasedir(&self, handle: Handle) {
        let closed = self.files.dirs.remove(&handle.0);
        if let Some(row) = closed.as_ref().and_then(|(_, open)| open.row.as_ref()) {
            row.free();
        }
    }

    /// Puts entries into `sink` from `cookie` on (0: the start) until it is full or the listing ends. With `plus`, entries
    /// whose attributes were not sent to the kernel within that time have them.
    ///
    /// # Errors
    /// EIO at its end, if the listing is short because a branch cannot be asked; the branch's error before the first entry.
    pub fn readdir(
        &self,
        handle: Handle,
        cookie: u64,
        plus: Option<Duration>,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let open = self.files.dirs.get(&handle.0).map(|open| open.clone()).ok_or(Errno::BADF)?;
        let pool = self.tree.pool.load();
        // Another thread may be stuck in a branch with it.
        let came = Instant::now();
        let is_late = || came.elapsed() > LISTING_LOCK_TIMEOUT;
        let mut listing = unless_stuck(&pool, || open.listing.try_lock(), is_late)?;
        listing.seek(&self.tree, &pool, &open.inode, cookie)?;
        self.files.listing_resumes(&pool, &open, cookie, listing.last.untaken(cookie));
        listing.last.begin(cookie);
        if !self.tree.put_dots(&open.inode, cookie, &mut listing, sink) {
            return Ok(());
        }
        if cookie == 0 {
            listing.shown = Some(0);
        }
        let mut count = 0_u32;
        loop {
            let read = match self.next_read(&pool, &open, &mut listing) {
                Ok(Some(read)) => read,
                Ok(None) => {
                    if let Some(shown) = listing.shown {
                        open.inode.had_names(shown);
                    }
                    return Ok(());
                }
                // Removed meanwhile: it has no entries, and maybe no name by which it could be opened.
                Err(error)
                    if count == 0
                        && !is_offline(open.inode.id.ino)
                        && matches!(error.errno(), Errno::NOENT | Errno::STALE)
                        && !listing.is_short() =>
                {
                    return Ok(());
                }
                // The entries so far are right; the error comes again when the listing goes on from here.
                Err(_) if count == 0 && is_offline(open.inode.id.ino) => return Err(OpError::UNSURE),
                Err(error) => return if count > 0 { Ok(()) } else { Err(error) },
            };
            if !sink.fits(read.name.to_bytes().len()) {
                listing.put_back(read);
                return Ok(());
            }
            listing.took(read.cookie);
            if is_tail(read.cookie) {
                let shown = self.tree.put_entry(&pool, &open.inode, &read, plus, sink);
                count += listing.count(shown);
                if shown {
                    listing.last.put(read.cookie, read.name);
                }
                continue;
            }
            open.followed.goes_on(read.cookie);
            if open.followed.was_shown(&read.name, read.at) {
                continue;
            }
            let shown = self.tree.put_entry(&pool, &open.inode, &read, plus, sink);
            open.followed.came(&read, shown);
            count += listing.count(shown);
            if shown {
                listing.last.put(read.cookie, read.name);
            }
        }
    }

    /// The next entry of the copies, and behind them of the entries that have moved past the listing.
    fn next_read(&self, pool: &Pool, open: &DirHandle, listing: &mut Listing) -> Result<Option<Read>> {
        let read = match listing.next(&self.tree, pool, &open.inode, open.followed.since()) {
            Err(error) if listing.behind.is_due && pool.settings.degraded == Degraded::Catalogue => {
                self.next_offline(pool, &open.inode, listing, error)?
            }
            Ok(None) if is_offline(open.inode.id.ino) => {
                self.next_offline(pool, &open.inode, listing, OpError::UNSURE)?
            }
            // The branches are back, and what they have was listed in part.
            Ok(None) if behind::is_of(listing.position()) => return Err(OpError::UNSURE),
            read => read?,
        };
        if read.is_some() {
            return Ok(read);
        }
        let mut at = listing.position();
        while let Some((name, cookie)) = open.followed.next(at)? {
            match self.tree.find(pool, &open.inode, &name) {
                Ok(found) => {
                    if let Some((at, stat)) = found.first() {
                        let (name, kind) = (name.as_ref().into(), Some(stat.kind()));
                        return Ok(Some(Read { at, ino: stat.ino, cookie, kind, name, offline: None }));
                    }
                }
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
            at = cookie;
        }
        Ok(None)
    }
}

impl Tree {
    /// None: a change could go unnoticed.
    fn listing_stamp(&self, pool: &Pool, dir: &Arc<Inode>) -> Option<u64> {
        let now = SystemTime::now();
        let (mut times, mut copies) = (Vec::with_capacity(4), Vec::new());
        // A listing that may be short without an error is not kept.
        let unwatched = pool.settings.exclusive && pool.settings.degraded == Degraded::Strict;
        for at in dir.copies() {
            let branch = pool.branch(at);
            if dir.is_unsure() {
                return None;
            }
            if !branch.kind.is_local() {
                if !unwatched || !branch.is_open() {
                    return None;
                }
                let copy = (dir.copy_ino(at)?, branch.mount_generation());
                copies.push((branch.id.get(), copy));
                continue;
            }
            let fd = self.dirfd(pool, dir, at).ok()?;
            let stat = branch.ask(|| sys::at::stat_fd(fd.as_fd())).ok()?;
            // A second change in the same tick of the clock might not show. Inodes of 128 bytes (ext4) have whole seconds.
            let is_whole = stat.ctime.nsec == 0 && stat.mtime.nsec == 0;
            let tick = if is_whole { WHOLE_SECONDS_TICK } else { CTIME_TICK };
            let changed = UNIX_EPOCH + Duration::new(u64::try_from(stat.ctime.sec).ok()?, stat.ctime.nsec);
            if now.duration_since(changed).ok()? < tick {
                return None;
            }
            times.push((branch.id.get(), stat.ino, stat.ctime, stat.mtime));
        }
        Some(BuildHasherDefault::<DefaultHasher>::default().hash_one((times, copies)))
    }

    /// False if there was no room.
    fn put_dots(&self, dir: &Arc<Inode>, cookie: u64, listing: &mut Listing, sink: &mut dyn Sink) -> bool {
        let up = dir.name().map_or(dir.id.ino, |name| name.parent.id.ino);
        for (own, name, ino) in [(DOT, c".", dir.id.ino), (DOT_DOT, c"..", up)] {
            if cookie < own {
                if !sink.fits(name.to_bytes().len()) {
                    return false;
                }
                sink.put(&Listed { ino, cookie: own, dtype: Kind::Dir.dtype(), name }, None);
                listing.took(own);
            }
        }
        true
    }

    /// False if the entry is gone again.
    fn put_entry(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        read: &Read,
        plus: Option<Duration>,
        sink: &mut dyn Sink,
    ) -> bool {
        let mut kind = read.kind;
        if let Some((ino, kind)) = read.offline.zip(kind) {
            sink.put(&Listed { ino, cookie: read.cookie, dtype: kind.dtype(), name: &read.name }, None);
            return true;
        }
        let plus = plus.is_some_and(|age| !self.is_fresh(dir, read, age));
        if plus || kind.is_none() {
            let asked = Moment::now();
            let found = if kind.is_some_and(|kind| kind != Kind::Dir) {
                match self.stat_in(pool, dir, read.at, &read.name) {
                    // The file may have moved to another branch, or a directory may have replaced it.
                    Err(error) if error.is_missing() => self.find(pool, dir, &read.name),
                    Ok(stat) if stat.is_dir() => self.find(pool, dir, &read.name),
                    reported => reported.map(|stat| Found::File(read.at, stat)),
                }
            } else {
                self.find(pool, dir, &read.name)
            };
            let seen = match &found {
                Ok(Found::File(_, stat)) => stat.kind(),
                Ok(Found::Dir(..)) => Kind::Dir,
                Err(error) if error.is_missing() => return false,
                // It is there; its attributes are left to later requests.
                Err(_) => kind.unwrap_or(Kind::File),
            };
            kind = Some(seen);
            if let (true, Ok(found)) = (plus, found)
                && let Ok(entry) = self.admit(pool, dir, &read.name, found, asked)
            {
                let listed =
                    Listed { ino: entry.ino, cookie: read.cookie, dtype: seen.dtype(), name: &read.name };
                sink.put(&listed, Some(&entry));
                return true;
            }
        }
        let kind = kind.unwrap_or(Kind::File);
        let ino = self.listed_number(pool, dir, read, kind);
        sink.put(&Listed { ino, cookie: read.cookie, dtype: kind.dtype(), name: &read.name }, None);
        true
    }

    /// Whether the entry and its attributes were sent to the kernel within `age`.
    fn is_fresh(&self, dir: &Inode, read: &Read, age: Duration) -> bool {
        let known = self.known(dir, &read.name).filter(|inode| read.kind == Some(inode.kind));
        known.is_some_and(|inode| self.inodes.was_reported(&inode, age))
    }

    /// `d_ino`, which must be what `st_ino` would be.
    fn listed_number(&self, pool: &Pool, dir: &Arc<Inode>, read: &Read, kind: Kind) -> Ino {
        let branch = pool.branch(read.at);
        let own = number(branch, branch.dev(), read.ino);
        let plain = self.plain_number(branch, read.ino);
        if kind != Kind::Dir {
            let asked = || match self.stat_in(pool, dir, read.at, &read.name) {
                // It may have moved to another branch.
                Err(error) if error.is_missing() => match self.find(pool, dir, &read.name) {
                    Ok(Found::File(at, stat)) => Some((at, stat)),
                    Ok(Found::Dir(..)) | Err(_) => None,
                },
                reported => reported.ok().map(|stat| (read.at, stat)),
            };
            let asked = || asked().map_or(own, |(at, stat)| self.identity(pool, pool.branch(at), &stat).ino);
            return plain.unwrap_or_else(asked);
        }
        if let Some(known) = self.known(dir, &read.name) {
            return known.id.ino;
        }
        if plain.is_some() && pool.is_one_plain_branch() {
            return own;
        }
        match self.find(pool, dir, &read.name) {
            Ok(Found::Dir(stats, _)) => {
                self.dir_identity(pool, dir, &read.name, &stats).map_or(own, |id| id.ino)
            }
            Ok(Found::File(..)) | Err(_) => own,
        }
    }
}
