//! Types, attributes and times of files, as the kernel returns them.

use rustix::fs::{FileType, Statx, StatxAttributes, StatxFlags, StatxTimestamp};

/// A point in time, since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds, negative before the epoch.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

impl Time {
    /// Now, on the clock of which file systems take the times of new objects: it stands still for some milliseconds at a time.
    pub fn coarse_now() -> Self {
        Self::by(rustix::time::ClockId::RealtimeCoarse)
    }

    /// Now: not before the time of any object that was made so far.
    pub fn now() -> Self {
        Self::by(rustix::time::ClockId::Realtime)
    }

    fn by(clock: rustix::time::ClockId) -> Self {
        let now = rustix::time::clock_gettime(clock);
        Self { sec: now.tv_sec, nsec: u32::try_from(now.tv_nsec).unwrap_or(0) }
    }
}

impl From<StatxTimestamp> for Time {
    fn from(stamp: StatxTimestamp) -> Self {
        Self { sec: stamp.tv_sec, nsec: stamp.tv_nsec }
    }
}

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the file types")]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

impl Kind {
    /// Returns the type in `mode`. A mode without type bits means a regular file, as for mknod.
    pub fn from_mode(mode: u32) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::Directory => Self::Dir,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::Char,
            FileType::BlockDevice => Self::Block,
            FileType::RegularFile | FileType::Unknown => Self::File,
        }
    }

    /// The `DT_*` value of a directory entry of this type.
    pub fn dtype(self) -> u32 {
        u32::from(match self {
            Self::File => libc::DT_REG,
            Self::Dir => libc::DT_DIR,
            Self::Symlink => libc::DT_LNK,
            Self::Fifo => libc::DT_FIFO,
            Self::Socket => libc::DT_SOCK,
            Self::Char => libc::DT_CHR,
            Self::Block => libc::DT_BLK,
        })
    }

    /// Returns the type for a `DT_*` value; `None` for `DT_UNKNOWN` and unknown values.
    pub fn from_dtype(dtype: u8) -> Option<Self> {
        match dtype {
            libc::DT_REG => Some(Self::File),
            libc::DT_DIR => Some(Self::Dir),
            libc::DT_LNK => Some(Self::Symlink),
            libc::DT_FIFO => Some(Self::Fifo),
            libc::DT_SOCK => Some(Self::Socket),
            libc::DT_CHR => Some(Self::Char),
            libc::DT_BLK => Some(Self::Block),
            _ => None,
        }
    }
}

/// Result of statx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device number in makedev's encoding.
    pub dev: u64,
    /// Id of the mount through which it was found; 0 if the kernel does not return it.
    pub mnt_id: u64,
    /// The inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Major number of the device, for device files.
    pub rdev_major: u32,
    /// Minor number of the device, for device files.
    pub rdev_minor: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation time, if the file system has one.
    pub btime: Option<Time>,
    /// `STATX_ATTR_*` that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` that the file system supports.
    pub attributes_mask: u64,
    /// Generation: distinguishes objects that have the same inode number one after the other. Set only by
    /// [`crate::handle::ByNumber::stat`]; statx does not return it.
    pub version: Option<u32>,
    /// Number and generation by which other hosts know the object, if the caller has determined them.
    pub alias: Option<(u64, u32)>,
}

impl Stat {
    /// The file's type.
    pub fn kind(&self) -> Kind {
        Kind::from_mode(self.mode)
    }

    /// Device number of a device file, as mknod takes it.
    pub fn rdev(&self) -> u64 {
        rustix::fs::makedev(self.rdev_major, self.rdev_minor)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == Kind::Dir
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == Kind::File
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == Kind::Symlink
    }

    /// True if nobody may change it (`chattr +i`).
    pub fn is_immutable(&self) -> bool {
        self.attributes & StatxAttributes::IMMUTABLE.bits() != 0
    }

    /// True if it may only be appended to (`chattr +a`).
    pub fn is_append_only(&self) -> bool {
        self.attributes & StatxAttributes::APPEND.bits() != 0
    }
}

impl From<Statx> for Stat {
    fn from(raw: Statx) -> Self {
        let returned = StatxFlags::from_bits_retain(raw.stx_mask);
        Self {
            dev: rustix::fs::makedev(raw.stx_dev_major, raw.stx_dev_minor),
            mnt_id: if returned.contains(StatxFlags::MNT_ID) { raw.stx_mnt_id } else { 0 },
            ino: raw.stx_ino,
            mode: u32::from(raw.stx_mode),
            nlink: raw.stx_nlink,
            uid: raw.stx_uid,
            gid: raw.stx_gid,
            rdev_major: raw.stx_rdev_major,
            rdev_minor: raw.stx_rdev_minor,
            size: raw.stx_size,
            blocks: raw.stx_blocks,
            blksize: raw.stx_blksize,
            atime: raw.stx_atime.into(),
            mtime: raw.stx_mtime.into(),
            ctime: raw.stx_ctime.into(),
            btime: returned.contains(StatxFlags::BTIME).then(|| raw.stx_btime.into()),
            attributes: raw.stx_attributes.bits(),
            attributes_mask: raw.stx_attributes_mask.bits(),
            version: None,
            alias: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_survive_the_trip_through_dtype() {
        for kind in [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block]
        {
            assert_eq!(Kind::from_dtype(u8::try_from(kind.dtype()).unwrap()), Some(kind));
            assert_eq!(Kind::from_mode(kind.dtype() << 12 | 0o644), kind);
        }
        assert_eq!(Kind::from_dtype(libc::DT_UNKNOWN), None);
        assert_eq!(Kind::from_mode(0o644), Kind::File);
    }

    #[test]
    fn times_order_by_second_first() {
        let time = |sec, nsec| Time { sec, nsec };
        assert!(time(-1, 999_999_999) < Time::default());
        assert!(time(1, 0) < time(1, 1));
    }
}
