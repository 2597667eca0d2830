//! Files of the daemon's own outside of all branches. They are made as the daemon, and trusted only if no other user
//! can have written them.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fchmod, fstat, mkdirat, openat, renameat};
use rustix::io::Errno;

use crate::identity::become_daemon;

/// Mode bits of group and others.
const OTHERS: u32 = 0o077;
/// Mode bits that let group and others write.
const WRITE_BY_OTHERS: u32 = 0o022;

/// Makes the folder of `file`, accessible to its owner only, and renames an existing `file` to end in `.bad`.
///
/// # Errors
///
/// The system's error; EPERM if the folder is not the daemon's own.
pub fn make_room(file: &Path) -> io::Result<()> {
    as_daemon()?;
    let (folder, name) = parts(file)?;
    make_folders(folder)?;
    let (folder, _) = open_own_folder(folder)?;
    let mut bad = name.as_os_str().to_owned();
    bad.push(".bad");
    match renameat(&folder, name, &folder, bad) {
        Err(Errno::NOENT) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens `file` for reading and writing, made if missing, with access for the daemon only.
///
/// # Errors
///
/// The system's error; EPERM if the file or its folder is not the daemon's own.
pub fn open(file: &Path) -> io::Result<File> {
    as_daemon()?;
    let (folder, name) = parts(file)?;
    let (folder, about_folder) = open_own_folder(folder)?;
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = openat(&folder, name, how, Mode::RUSR | Mode::WUSR)?;
    let stat = fstat(&opened)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL.into());
    }
    if stat.st_mode & OTHERS != 0 {
        // Earlier versions made the file writable for all. It is trusted if only the owner could enter the folder.
        if stat.st_mode & WRITE_BY_OTHERS != 0 && about_folder.st_mode & OTHERS != 0 {
            return Err(Errno::PERM.into());
        }
        check_owner(&stat)?;
        fchmod(&opened, Mode::RUSR | Mode::WUSR)?;
    }
    check_owner(&stat)?;
    Ok(opened.into())
}

fn as_daemon() -> io::Result<()> {
    become_daemon().map_err(|error| error.errno.into())
}

fn parts(file: &Path) -> io::Result<(&Path, &Path)> {
    let name = file.file_name().ok_or(Errno::INVAL)?;
    Ok((file.parent().unwrap_or(Path::new(".")), Path::new(name)))
}

/// Makes `folder` and its missing parents.
fn make_folders(folder: &Path) -> io::Result<()> {
    let make = || mkdirat(CWD, folder, Mode::RWXU);
    let made = match (make(), folder.parent()) {
        (Err(Errno::NOENT), Some(above)) => {
            make_folders(above)?;
            make()
        }
        (made, _) => made,
    };
    match made {
        Err(Errno::EXIST) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens the folder and checks that only the daemon can change it.
fn open_own_folder(folder: &Path) -> io::Result<(OwnedFd, Stat)> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(CWD, folder, how, Mode::empty())?;
    let stat = fstat(&opened)?;
    check_owner(&stat)?;
    if stat.st_mode & WRITE_BY_OTHERS != 0 {
        return Err(Errno::PERM.into());
    }
    Ok((opened, stat))
}

fn check_owner(stat: &Stat) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid == own { Ok(()) } else { Err(Errno::PERM.into()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn set_mode(of: &Path, mode: u32) {
        fs::set_permissions(of, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(of: &Path) -> u32 {
        of.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn room_is_made_where_something_was() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b/c");
        make_room(&file).unwrap();
        fs::write(&file, "old").unwrap();
        make_room(&file).unwrap();
        assert!(!file.exists());
        assert_eq!((mode(&dir.path().join("a")), mode(&dir.path().join("a/b"))), (0o700, 0o700));
        assert_eq!(fs::read_to_string(file.with_extension("bad")).unwrap(), "old");
    }

    #[test]
    fn a_file_that_others_can_have_written_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state");
        set_mode(dir.path(), 0o700);
        drop(open(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
        // Left by an earlier version.
        set_mode(&file, 0o666);
        drop(open(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
        let refused = || open(&file).unwrap_err().kind() == io::ErrorKind::PermissionDenied;
        // In a folder that others can enter.
        set_mode(&file, 0o666);
        set_mode(dir.path(), 0o755);
        assert!(refused());
        set_mode(&file, 0o644);
        drop(open(&file).unwrap());
        set_mode(dir.path(), 0o777);
        assert!(refused());
        assert!(make_room(&file).is_err());
        set_mode(dir.path(), 0o700);
        if crate::identity::is_root() {
            chown(&file, Some(1234), None).unwrap();
            assert!(refused());
            chown(&file, Some(0), None).unwrap();
            chown(dir.path(), Some(1234), None).unwrap();
            assert!(refused() && make_room(&file).is_err());
            chown(dir.path(), Some(0), None).unwrap();
        }
        drop(open(&file).unwrap());
        let link = dir.path().join("link");
        symlink(&file, &link).unwrap();
        assert!(open(&link).is_err());
    }
}
