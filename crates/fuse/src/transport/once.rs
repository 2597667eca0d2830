//! Requests that are done once though their daemon dies: `restart=keep`.

use std::os::fd::BorrowedFd;

use fsstack_engine::kept::slots::{COMES_AGAIN, Earlier};
use fsstack_wire::{Answer, OutHeader, Request};
use rustix::io::Errno;

use super::dev::report;
use super::device;
use crate::adapter::{Serve, is_once};

/// Begins `request`; returns the answer of a daemon before this one, which it was not heard to give.
pub(super) fn begin(adapter: &dyn Serve, request: &Request<'_>) -> Option<Earlier> {
    let kept = adapter.kept()?;
    if !is_once(&request.op) {
        return None;
    }
    let unique = request.header.unique;
    let earlier = if unique & COMES_AGAIN == 0 { None } else { kept.earlier(unique) };
    match earlier {
        Some(done @ (Earlier::Performed(_) | Earlier::Refused(_))) => return Some(done),
        Some(Earlier::Acts(note)) => kept.begin(unique, Some(note)),
        Some(Earlier::Begun) | None => kept.begin(unique, None),
    }
    if unique & COMES_AGAIN != 0 {
        // It is in another slot now.
        kept.forget_earlier(unique);
    }
    None
}

/// Gives the answer that [`begin`] returned.
pub(super) fn give(
    adapter: &dyn Serve,
    device: BorrowedFd<'_>,
    request: &Request<'_>,
    earlier: Earlier,
    outgoing: &mut [u8],
) {
    let unique = request.header.unique;
    let refuse = |errno| report(device::refuse(device, &OutHeader::refused(unique, errno)));
    match earlier {
        Earlier::Performed(bytes) => {
            let mut answer = Answer::new(outgoing);
            match answer.data(&bytes) {
                Ok(()) => report(device::answer(device, &answer.header(unique), &answer)),
                Err(_) => refuse(Errno::IO.raw_os_error()),
            }
        }
        Earlier::Refused(errno) => refuse(errno),
        Earlier::Begun | Earlier::Acts(_) => refuse(Errno::IO.raw_os_error()),
    }
    if let Some(kept) = adapter.kept() {
        kept.forget_earlier(unique);
    }
}
