//! Opcodes of ABI 7.45, and the size of each one's own struct.

use std::mem::size_of;

use zerocopy::TryFromBytes;

use crate::abi;
use crate::request::Abi;

/// Operation of a request. Operations for other kinds of server (INIT, NOTIFY_REPLY, the two of virtio-fs DAX) have a
/// name but are never parsed.
#[expect(missing_docs, reason = "the kernel's names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u32)]
pub enum Opcode {
    Lookup = 1,
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Readlink = 5,
    Symlink = 6,
    Mknod = 8,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    Statfs = 17,
    Release = 18,
    Fsync = 20,
    Setxattr = 21,
    Getxattr = 22,
    Listxattr = 23,
    Removexattr = 24,
    Flush = 25,
    Init = 26,
    Opendir = 27,
    Readdir = 28,
    Releasedir = 29,
    Fsyncdir = 30,
    Getlk = 31,
    Setlk = 32,
    Setlkw = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    NotifyReply = 41,
    BatchForget = 42,
    Fallocate = 43,
    Readdirplus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    SetupMapping = 48,
    RemoveMapping = 49,
    Syncfs = 50,
    Tmpfile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

impl Opcode {
    /// Returns the opcode with this number, if ABI 7.45 has one.
    pub fn from_raw(raw: u32) -> Option<Self> {
        zerocopy::try_transmute!(raw).ok()
    }

    /// Returns the number in the header.
    pub const fn raw(self) -> u32 {
        self as u32
    }

    /// True if the kernel waits for a reply. It does not wait after INTERRUPT, although an error may be sent.
    pub const fn wants_answer(self) -> bool {
        !matches!(self, Self::Forget | Self::BatchForget | Self::Interrupt | Self::NotifyReply)
    }

    /// Size of the struct after the header, which /dev/fuse delivers inline and io_uring separately.
    pub const fn op_len(self, abi: Abi) -> usize {
        match self {
            Self::Lookup | Self::Readlink | Self::Symlink | Self::Unlink | Self::Rmdir => 0,
            Self::Statfs | Self::Removexattr | Self::Destroy => 0,
            // Never parsed.
            Self::Init | Self::NotifyReply | Self::SetupMapping | Self::RemoveMapping => 0,
            Self::Forget => size_of::<abi::ForgetIn>(),
            Self::BatchForget => size_of::<abi::BatchForgetIn>(),
            Self::Getattr => size_of::<abi::GetattrIn>(),
            Self::Setattr => size_of::<abi::SetattrIn>(),
            Self::Mknod => size_of::<abi::MknodIn>(),
            Self::Mkdir => size_of::<abi::MkdirIn>(),
            Self::Rename => size_of::<abi::RenameIn>(),
            Self::Rename2 => size_of::<abi::Rename2In>(),
            Self::Link => size_of::<abi::LinkIn>(),
            Self::Open | Self::Opendir => size_of::<abi::OpenIn>(),
            Self::Read | Self::Readdir | Self::Readdirplus => size_of::<abi::ReadIn>(),
            Self::Write => size_of::<abi::WriteIn>(),
            Self::Release | Self::Releasedir => size_of::<abi::ReleaseIn>(),
            Self::Fsync | Self::Fsyncdir => size_of::<abi::FsyncIn>(),
            Self::Setxattr if abi.setxattr_ext => size_of::<abi::SetxattrIn>(),
            Self::Setxattr => size_of::<abi::SetxattrCompatIn>(),
            Self::Getxattr | Self::Listxattr => size_of::<abi::GetxattrIn>(),
            Self::Flush => size_of::<abi::FlushIn>(),
            Self::Getlk | Self::Setlk | Self::Setlkw => size_of::<abi::LkIn>(),
            Self::Access => size_of::<abi::AccessIn>(),
            Self::Create | Self::Tmpfile => size_of::<abi::CreateIn>(),
            Self::Interrupt => size_of::<abi::InterruptIn>(),
            Self::Bmap => size_of::<abi::BmapIn>(),
            Self::Ioctl => size_of::<abi::IoctlIn>(),
            Self::Poll => size_of::<abi::PollIn>(),
            Self::Fallocate => size_of::<abi::FallocateIn>(),
            Self::Lseek => size_of::<abi::LseekIn>(),
            Self::CopyFileRange | Self::CopyFileRange64 => size_of::<abi::CopyFileRangeIn>(),
            Self::Syncfs => size_of::<abi::SyncfsIn>(),
            Self::Statx => size_of::<abi::StatxIn>(),
        }
    }
}
