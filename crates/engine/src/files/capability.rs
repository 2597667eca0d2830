//! File capabilities, which writes by others strip.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use fsstack_sys::xattr::On;

use crate::tree::resolve::has_xattr;

/// The file capabilities of capabilities(7).
pub(crate) const CAPABILITY: &CStr = c"security.capability";

pub(crate) fn has_capability(fd: BorrowedFd<'_>) -> bool {
    has_xattr(On::Fd(fd), CAPABILITY)
}
