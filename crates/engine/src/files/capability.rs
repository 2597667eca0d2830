//! File capabilities, which writes by others strip.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use fsstack_sys::xattr::{self, On};

/// The file capabilities of capabilities(7).
pub(crate) const CAPABILITY: &CStr = c"security.capability";

pub(crate) fn has_capability(fd: BorrowedFd<'_>) -> bool {
    has_xattr(On::Fd(fd), CAPABILITY)
}

/// Whether the object has the attribute `name`, with a value.
pub(crate) fn has_xattr(on: On<'_>, name: &CStr) -> bool {
    xattr::get(on, name, &mut []).is_ok_and(|len| len > 0)
}
