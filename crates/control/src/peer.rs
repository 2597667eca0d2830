//! A Unix socket for its owner only.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fchmod, open};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Backlog of connections.
const WAITING: i32 = 16;

/// Longest path in a socket's address, in bytes: `sun_path` of unix(7) without its NUL.
const LONGEST: usize = 107;

/// A path that fits into a socket's address, whatever the length of the real one.
pub(crate) struct Address {
    path: PathBuf,
    _folder: Option<OwnedFd>,
}

impl Address {
    /// Makes the address of the socket at `path`. A longer path is addressed through its folder, which stays open while
    /// this exists.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= LONGEST {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }

    /// Path for bind and connect.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Listens at `path`, with mode 0600 from the first moment: a socket's file gets the mode that the socket has at bind.
/// A killed daemon's socket is removed first.
pub(crate) fn listen_at(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(socket.as_fd(), &SocketAddrUnix::new(Address::of(path)?.path())?)?;
    listen(socket.as_fd(), WAITING)?;
    Ok(UnixListener::from(socket))
}

/// True if a process listens at `path`. Does not block: a listener with a full backlog counts.
pub(crate) fn is_listened_at(path: &Path) -> bool {
    let connected = || -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = Address::of(path)?;
        Ok(connect(socket.as_fd(), &SocketAddrUnix::new(address.path())?)?)
    };
    match connected() {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// True if a process of user `peer` may send requests to a daemon of user `own`.
pub(crate) fn may_ask(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_socket_is_its_owners_alone_and_replaces_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool.sock");
        for _ in 0..2 {
            let _listening = listen_at(&path).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_path_longer_than_an_address_is_listened_at_and_connected_to() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("d".repeat(200));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("pool.sock");
        let _listening = listen_at(&path).unwrap();
        std::os::unix::net::UnixStream::connect(Address::of(&path).unwrap().path()).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn root_and_the_daemons_own_user_may_ask() {
        assert!(may_ask(0, 0) && may_ask(0, 1000) && may_ask(1000, 1000));
        assert!(!may_ask(1000, 0) && !may_ask(1001, 1000));
    }
}
