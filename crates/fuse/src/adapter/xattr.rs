//! Requests that read extended attributes.

use std::ffi::CStr;

use fsstack_pool::Ino;
use fsstack_sys::Errno;
use fsstack_wire::{Answer, Request};

use super::{Adapter, Served, errno, full, room};

impl Adapter {
    pub(super) fn getxattr(
        &self,
        request: &Request<'_>,
        name: &CStr,
        size: u32,
        answer: &mut Answer<'_>,
    ) -> Served {
        let (ino, caller) = (Ino(request.header.nodeid), self.caller(request, 0));
        if size == 0 {
            let len = self.union.getxattr(ino, name, caller, &mut []).map_err(errno)?;
            return full(answer.xattr_size(u32::try_from(len).map_err(|_| Errno::TOOBIG)?));
        }
        let room = room(answer, size)?;
        let len = self.union.getxattr(ino, name, caller, room).map_err(errno)?;
        full(answer.filled(len))
    }

    pub(super) fn listxattr(&self, request: &Request<'_>, size: u32, answer: &mut Answer<'_>) -> Served {
        let (ino, caller) = (Ino(request.header.nodeid), self.caller(request, 0));
        if size == 0 {
            let len = self.union.listxattr(ino, caller, &mut []).map_err(errno)?;
            return full(answer.xattr_size(u32::try_from(len).map_err(|_| Errno::TOOBIG)?));
        }
        let room = room(answer, size)?;
        let len = self.union.listxattr(ino, caller, room).map_err(errno)?;
        full(answer.filled(len))
    }
}
