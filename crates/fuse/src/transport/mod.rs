//! The transports that requests come through: one codec and one adapter behind both.

pub mod dev;
pub mod device;
mod ending;
mod extra_workers;
mod gate;
pub mod interrupts;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod models;
mod once;
mod readers;
mod repeatable;
mod request_at_hand;
pub mod ring;
pub mod scheduling;
mod workers;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::adapter::Serve;
use dev::DevTransport;
pub use ending::Closer;
pub use gate::{LockWait, Paused, Pauser, StillInside};
use ring::UringTransport;
use scheduling::Scheduling;
use strum::{Display, EnumString, VariantNames};

/// Which transport requests come through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Transport {
    /// The ring where the kernel has it and it is switched on; else the device.
    #[default]
    Auto,
    /// FUSE over io_uring.
    Ring,
    /// /dev/fuse.
    Dev,
}

/// The kernel's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

impl Transport {
    /// Returns the transports that this machine has: reads the kernel's switch and tries a ring; `Ring` sets the switch.
    ///
    /// # Errors
    /// Why `Ring` cannot be had: one line for the user.
    pub fn settled(self) -> Result<Self, String> {
        match self {
            Self::Dev => Ok(Self::Dev),
            Self::Auto => Ok(if is_on() && ring::probe(queues()).is_ok() { Self::Ring } else { Self::Dev }),
            Self::Ring => {
                if !Path::new(SWITCH).exists() {
                    return Err("this kernel has no FUSE over io_uring (Linux 6.14 and later have it)".into());
                }
                if !is_on() {
                    std::fs::write(SWITCH, "Y")
                        .map_err(|error| format!("{SWITCH} cannot be set to Y: {error}"))?;
                    tracing::info!("{SWITCH} was switched on");
                }
                ring::probe(queues())
                    .map_err(|error| format!("this process may not use io_uring: {error}"))?;
                Ok(Self::Ring)
            }
        }
    }
}

/// How many queues a ring has.
fn queues() -> usize {
    fsstack_sys::thread::possible_cpus().max(1)
}

fn is_on() -> bool {
    std::fs::read(SWITCH).is_ok_and(|value| matches!(value.first(), Some(b'Y' | b'1')))
}

/// An open transport.
#[derive(Debug)]
pub enum OpenTransport {
    /// At /dev/fuse.
    Dev(DevTransport),
    /// Over io_uring.
    Ring(UringTransport),
}

impl OpenTransport {
    /// Opens the transport that was negotiated. By /dev/fuse requests are not served before [`Self::begin`].
    ///
    /// # Errors
    /// No thread, ring or descriptor is to be had.
    pub fn open(
        ring: bool,
        adapter: Arc<dyn Serve>,
        device: OwnedFd,
        payload: u32,
        (max_threads, scheduling): (Option<usize>, Scheduling),
    ) -> io::Result<Self> {
        if ring {
            return UringTransport::open(adapter, device, payload, max_threads, scheduling).map(Self::Ring);
        }
        DevTransport::open(adapter, device, payload, max_threads, scheduling).map(Self::Dev)
    }

    /// Serves requests from now on, and `waits` for locks that another program has left at /dev/fuse.
    pub fn begin(&self, waits: Vec<LockWait>) {
        match self {
            Self::Dev(transport) => transport.begin(waits),
            // Nobody goes back from it to another program.
            Self::Ring(_) => {}
        }
    }

    /// Returns what brings it to rest between two requests; None over io_uring, where the kernel does not give back what it has put
    /// into an entry.
    pub fn pauser(&self) -> Option<Pauser> {
        match self {
            Self::Dev(transport) => Some(transport.pauser()),
            Self::Ring(_) => None,
        }
    }

    /// Returns the handle that closes it before its mount is taken from programs that use it.
    pub fn closer(&self) -> Closer {
        match self {
            Self::Dev(transport) => transport.closer(),
            Self::Ring(transport) => transport.closer(),
        }
    }

    /// Serves until the mount is gone. Requests that take long, or wait for others, then have until `timeout` is over.
    pub fn wait(self, timeout: Duration) {
        match self {
            Self::Dev(transport) => transport.wait(timeout),
            Self::Ring(transport) => transport.wait(timeout),
        }
    }
}
