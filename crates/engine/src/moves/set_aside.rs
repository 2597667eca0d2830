//! Objects that are set aside in a branch's hidden folder, in the form that `fsstack check --fix` uses: a directory of its own
//! for each below `kept`, with `object` and `origin`, which mounts leave alone and `fsstack check --prune` knows.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_branch::error::Result;
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_pool::{KEPT, Printable};
use fsstack_sync::time::Instant;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use crate::member::Member;
use crate::moves::clone_metadata::clone_metadata;
use crate::moves::special::make_alike;
use crate::recovery::hidden_folder;
use crate::settings::Relocation;
use crate::write_all::write_all;

const OBJECT: &CStr = c"object";
const ORIGIN: &CStr = c"origin";

/// A directory of an object that was set aside.
pub(crate) struct KeptCopy {
    above: OwnedFd,
    name: CString,
}

impl KeptCopy {
    /// Its name below `kept`.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Removes it: the object stays where it was.
    pub(crate) fn discard(&self, to: &Member) {
        clear(to, self.above.as_fd(), &self.name);
    }
}

/// Whether the branch keeps objects that were set aside. An empty folder of them is removed.
///
/// # Errors
/// The branch cannot tell.
pub(crate) fn keeps_objects(branch: &Branch) -> Result<bool> {
    let removed = branch.ask(|| match hidden_folder::own_folder(branch)? {
        Some(folder) => sys::at::rmdir(folder.as_fd(), KEPT),
        None => Ok(()),
    });
    match removed {
        Ok(()) => Ok(false),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) if matches!(error.errno(), Errno::NOTEMPTY | Errno::EXIST) => Ok(true),
        Err(error) => Err(error),
    }
}

/// An object to set aside.
pub(crate) struct SetAside<'a> {
    /// Its branch.
    pub(crate) from: &'a Branch,
    /// Open to be read, or by its name if it has no content.
    pub(crate) fd: BorrowedFd<'a>,
    /// Its attributes.
    pub(crate) stat: &'a Stat,
    /// Its path from the pool's root, without a leading slash.
    pub(crate) path: &'a [u8],
    /// No other object is known that is the same: `check --prune` leaves it alone.
    pub(crate) differs: bool,
}

impl SetAside<'_> {
    /// Copies the object to the branch `to`, on disk, if it still `goes_on`.
    ///
    /// # Errors
    /// A branch's error; EOPNOTSUPP where the branch has no nameless files, or cannot hold an attribute.
    pub(crate) fn copy_to(
        &self,
        to: &Member,
        how: &Relocation,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<KeptCopy> {
        let (_, kept) = to.ask(|| hidden_folder::in_folder(to, |folder| made_in(folder, to)))?;
        let _inside = self.from.come_in(CallKind::Long)?;
        let done = to.ask_long(|| {
            let dir = sys::at::open_dir(kept.above.as_fd(), &kept.name, to.mounts)?;
            self.copy_into(dir.as_fd(), how, goes_on)?;
            self.write_origin(dir.as_fd(), to)?;
            sync_dir(dir.as_fd())?;
            sync_dir(kept.above.as_fd())?;
            sync_dir(hidden_folder::folder(to)?.as_fd())?;
            sync_dir(to.root().as_fd())
        });
        match done {
            Ok(()) => Ok(kept),
            Err(error) => {
                kept.discard(to);
                Err(error)
            }
        }
    }

    fn copy_into(
        &self,
        dir: BorrowedFd<'_>,
        how: &Relocation,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), SysError> {
        if !self.stat.is_file() {
            return make_alike(self.fd, self.stat, dir, OBJECT);
        }
        let new = sys::at::tmpfile(dir, OFlags::RDWR, 0o600)?;
        clone_metadata(new.as_fd(), self.fd, self.stat, how, goes_on)?;
        sys::at::link_fd(new.as_fd(), dir, OBJECT)?;
        // btrfs logs nothing of a file without a name.
        sys::file::fsync(new.as_fd())
    }

    fn write_origin(&self, dir: BorrowedFd<'_>, to: &Member) -> Result<(), SysError> {
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let file = sys::at::open(dir, ORIGIN, how, 0o600, to.mounts)?;
        write_all(file.as_fd(), self.origin().as_bytes(), 0)?;
        sys::file::fsync(file.as_fd())
    }

    /// The content of `origin`, as `fsstack check` reads it.
    fn origin(&self) -> String {
        let path = [b"/", self.path].concat();
        let hex = path.iter().fold(String::new(), |mut hex, byte| {
            let _written = write!(hex, "{byte:02x}");
            hex
        });
        let shown: String = Printable(&path).to_string().chars().map(escaped).collect();
        let Stat { size, mtime, .. } = self.stat;
        format!(
            "{{\"path\":\"{shown}\",\"path_bytes\":\"{hex}\",\"text\":\"hidden copy of a branch that was drained\",\"had\":{{}},\
             \"size\":{size},\"written\":[{},{}],\"differs\":{}}}",
            mtime.sec, mtime.nsec, self.differs
        )
    }
}

/// A character of a JSON string.
fn escaped(letter: char) -> String {
    match letter {
        '"' | '\\' => format!("\\{letter}"),
        control if control < ' ' => format!("\\u{:04x}", u32::from(control)),
        other => other.to_string(),
    }
}

/// A new directory below `kept` in the hidden folder.
fn made_in(folder: BorrowedFd<'_>, to: &Member) -> Result<KeptCopy, SysError> {
    match sys::at::mkdir(folder, KEPT, 0o700) {
        Err(error) if error.errno != Errno::EXIST => return Err(error),
        _ => {}
    }
    let above = sys::at::open_dir(folder, KEPT, to.mounts)?;
    if !hidden_folder::is_own(&above)? {
        return Err(SysError::new(sys::Call::Open, Errno::PERM));
    }
    let name = format!("{:016x}", RandomState::new().hash_one(Instant::now()));
    let name = CString::new(name).map_err(|_| SysError::new(sys::Call::Mkdir, Errno::INVAL))?;
    sys::at::mkdir(above.as_fd(), &name, 0o700)?;
    Ok(KeptCopy { above, name })
}

/// Removes what an attempt has left.
fn clear(to: &Member, above: BorrowedFd<'_>, name: &CStr) {
    let cleared = to.ask(|| {
        let dir = sys::at::open_dir(above, name, to.mounts)?;
        for left in [OBJECT, ORIGIN] {
            match sys::at::unlink(dir.as_fd(), left) {
                Err(error) if error.errno != Errno::NOENT => return Err(error),
                _ => {}
            }
        }
        let cleared = sys::at::rmdir(above, name);
        let _not_empty = hidden_folder::folder(to).and_then(|folder| sys::at::rmdir(folder.as_fd(), KEPT));
        hidden_folder::leave(to);
        cleared
    });
    if let Err(error) = cleared {
        tracing::debug!(%error, "part of a copy that was to be set aside is left; fsstack check --prune names it");
    }
}
