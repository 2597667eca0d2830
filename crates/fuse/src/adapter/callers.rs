//! Callers, from the headers of requests.

use fsstack_branch::caller::UNKNOWN;
use fsstack_engine::Caller;
use fsstack_sys::process::{file_system_ids, process_of, program_name};
use fsstack_wire::{Header, Request};

use super::Adapter;

impl Adapter {
    /// With `maps`, callers may use idmapped mounts (`idmap=on`): the header's ids are no longer the caller's own.
    #[must_use]
    pub fn mapping_callers(self, maps: bool) -> Self {
        Self { maps_callers: maps, ..self }
    }

    pub(super) fn caller(&self, request: &Request<'_>, umask: u32) -> Caller {
        let (uid, gid) = (request.header.uid, request.header.gid);
        let group = request.groups.clone().find(|group| *group != gid);
        Caller { uid, gid, group, umask, pid: request.header.pid, mapped: self.maps_callers }
    }
}

/// Program of a thread.
#[derive(Debug)]
pub(super) struct CallerProgram {
    /// The thread's process; of a thread that has ended, or cannot be seen, its own id.
    pub(super) pid: u32,
    /// The program's name; empty if it has ended.
    pub(super) name: Vec<u8>,
}

impl CallerProgram {
    /// Reads it from proc(5): the header of a request has the id of the thread, whose name may be another one.
    pub(super) fn of(thread: u32) -> Self {
        let pid = process_of(thread).unwrap_or(thread);
        Self { pid, name: program_name(pid) }
    }
}

/// The caller's user. One that the kernel did not send is read from proc(5), as it is outside the caller's mount.
pub(super) fn uid_of(header: &Header) -> u32 {
    if header.uid != UNKNOWN {
        return header.uid;
    }
    file_system_ids(header.pid).map_or(UNKNOWN, |(uid, _)| uid)
}
