//! The device beside the rings: FORGET, INTERRUPT, and what comes before the rings are ready.
//!
//! A thread that blocks in read() is woken for every FORGET, at the price of a third of unlink's speed. So while
//! there is something to read it comes by every few milliseconds and takes all there is; when there was nothing
//! for a while it blocks, and an idle pool wakes nobody.

use std::os::fd::AsFd;
use std::time::Duration;

use fsstack_wire::{Answer, OutHeader, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::RingShared;
use crate::adapter::Outcome;
use crate::transport::device::{self, BEFORE_DATA, Buffer, Taken};
use crate::transport::workers::prepare_for_callers;

/// Pause before the next round where there was no FORGET to read.
const FORGETS_READ_PAUSE: Duration = Duration::from_millis(5);
/// Rounds without anything to read before the thread blocks.
const READ_ATTEMPTS: u32 = 40;

pub(super) fn serve(shared: &RingShared) {
    while let Err(error) = rounds(shared) {
        if !shared.ending.outlasts(&error) {
            break;
        }
    }
    shared.end();
}

/// Reads until the mount is gone.
fn rounds(shared: &RingShared) -> std::io::Result<()> {
    prepare_for_callers();
    let flags = fcntl_getfl(&shared.device)?;
    fcntl_setfl(&shared.device, flags | OFlags::NONBLOCK)?;
    let mut incoming = Buffer::new(shared.payload + 4096, BEFORE_DATA)?;
    let mut outgoing = Buffer::new(shared.payload + 4096, 0)?;
    let (incoming, outgoing) = (incoming.space(), outgoing.space());
    let mut idle = 0;
    // It is set elsewhere when the transport could not be opened.
    while !shared.ending.is_gone() {
        let mut found = false;
        loop {
            match device::take(shared.device.as_fd(), incoming)? {
                Taken::Gone => return Ok(()),
                Taken::Nothing => break,
                Taken::Request(len) => {
                    found = true;
                    answer(shared, &incoming[..len], outgoing);
                }
            }
        }
        idle = if found { 0 } else { idle + 1 };
        if idle < READ_ATTEMPTS {
            fsstack_sync::thread::sleep(FORGETS_READ_PAUSE);
            continue;
        }
        match poll(&mut [PollFd::new(&shared.device, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => idle = 0,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn answer(shared: &RingShared, message: &[u8], outgoing: &mut [u8]) {
    let device = shared.device.as_fd();
    let written = match Request::parse_contiguous(shared.adapter.abi(), message) {
        Err(refused) => match refused.unique {
            Some(unique) => device::refuse(device, &OutHeader::refused(unique, refused.errno())),
            None => Ok(()),
        },
        Ok(request) => {
            let unique = request.header.unique;
            let mut answer = Answer::new(outgoing);
            match shared.adapter.serve(&request, &mut answer) {
                Outcome::Answered => device::answer(device, &answer.header(unique), &answer),
                Outcome::Refused(errno) => device::refuse(device, &OutHeader::refused(unique, errno)),
                Outcome::Silent => Ok(()),
            }
        }
    };
    if let Err(error) = written
        && !matches!(error, Errno::NOENT | Errno::NODEV)
    {
        tracing::error!(%error, "writing a reply to /dev/fuse failed; its caller may wait until it is killed");
    }
}
