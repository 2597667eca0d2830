//! A kernel that accepts every file for passthrough.

use std::os::fd::BorrowedFd;

use fsstack_engine::files::route::Backings;

/// Registers every file.
#[derive(Debug)]
pub(crate) struct AllPassthrough;

impl Backings for AllPassthrough {
    fn open(&self, _: BorrowedFd<'_>) -> std::io::Result<u32> {
        Ok(1)
    }
    fn close(&self, _: u32) {}
}
