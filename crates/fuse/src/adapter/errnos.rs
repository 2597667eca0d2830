//! Errnos of answers: for programs, and for NFS servers, which do not know all of them.

use fsstack_engine::OpError;
use fsstack_sys::Errno;
use fsstack_sys::process::is_program;
use fsstack_wire::{Operation, Request};

/// Errno of a program whose request ended with `error`.
pub(super) fn errno(error: OpError) -> Errno {
    if error.is_fault() {
        tracing::debug!(%error, "a branch is at fault");
    }
    match error.errno() {
        // The daemon has no descriptor left, which is not the caller's own limit.
        Errno::MFILE | Errno::NFILE => {
            tracing::debug!(%error, "the daemon has no file descriptor left");
            Errno::NFILE
        }
        // The kernel takes ENOSYS to mean that this request is not implemented, for all branches and as long as the
        // pool is mounted. Only the pool's own refusals may say that.
        Errno::NOSYS if !matches!(error, OpError::Refused(_)) => Errno::OPNOTSUPP,
        errno => errno,
    }
}

/// Returns ENFILE only to callers that are certainly programs: their call is never part of opening a handle, and their
/// process id is not the kernel's NFS server (docs/dev/decisions/0026). /proc is read only when descriptors run out.
pub(super) fn for_export(errno: Errno, request: &Request<'_>) -> Errno {
    use Operation::{Getattr, Lookup, Opendir, Readdir, Readdirplus};
    let by_handle = |op: &Operation<'_>| {
        matches!(op, Lookup { .. } | Getattr { .. } | Opendir { .. } | Readdir { .. } | Readdirplus { .. })
    };
    match errno {
        Errno::NFILE if !by_handle(&request.op) && is_program(request.header.pid) => Errno::NFILE,
        errno => for_servers(errno),
    }
}

/// NFS servers do not know ENFILE; for ENOMEM they tell clients to try again. Opening a handle also does lookups and
/// listings, so those are included (docs/dev/decisions/0026).
fn for_servers(errno: Errno) -> Errno {
    if errno == Errno::NFILE { Errno::NOMEM } else { errno }
}

#[cfg(test)]
mod tests {
    use fsstack_engine::OpError;
    use fsstack_pool::BranchIx;
    use fsstack_sys::{Call, Errno, SysError};

    use super::{errno, for_servers};

    /// Errnos that the kernel's NFS server (Linux 6.1 to 6.12, `nfserrno`) passes to clients unchanged, or as an I/O
    /// error, without a warning in the kernel's log. Those that it turns into ESTALE (EBADF) are left out.
    const SERVED: &[Errno] = &[
        Errno::PERM,
        Errno::NOENT,
        Errno::IO,
        Errno::NXIO,
        Errno::TOOBIG,
        Errno::ACCESS,
        Errno::EXIST,
        Errno::XDEV,
        Errno::MLINK,
        Errno::NODEV,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::INVAL,
        Errno::FBIG,
        Errno::NOSPC,
        Errno::ROFS,
        Errno::NAMETOOLONG,
        Errno::NOTEMPTY,
        Errno::DQUOT,
        Errno::AGAIN,
        Errno::NOMEM,
        Errno::TXTBSY,
        Errno::OPNOTSUPP,
        Errno::NOKEY,
    ];

    /// Further errnos for programs, each with the reason why no server passes it to a client.
    const FOR_PROGRAMS: &[(Errno, &str)] = &[
        (Errno::INTR, "only the interrupted caller gets it"),
        (Errno::BUSY, "of mount points, for which the server has an answer of its own"),
        (Errno::NOTTY, "of ioctl(2), which no server asks for"),
        (Errno::RANGE, "of attributes, for which the server asks again with more room"),
        (Errno::NODATA, "of attributes, for which the server has an answer of its own"),
        (Errno::DEADLK, "of locks, for which the server has an answer of its own"),
        (Errno::NOLCK, "of locks, for which the server has an answer of its own"),
        (Errno::LOOP, "of symbolic links that are not to be followed: no server follows any"),
        (Errno::OVERFLOW, "of offsets, which the server looks at before"),
        (Errno::ILSEQ, "of names that the branch's file system does not take: EIO to a client"),
    ];

    /// Clients of the kernel's server get the branch's own error and never ESTALE for it.
    #[test]
    fn servers_get_errnos_that_they_know() {
        let passed =
            |errno: &Errno| SERVED.contains(errno) || FOR_PROGRAMS.iter().any(|(known, _)| known == errno);
        let mut kept = Vec::new();
        for number in 1..=133 {
            let said = Errno::from_raw_os_error(number);
            let sys = SysError { call: Call::Open, errno: said };
            for error in [OpError::Branch { branch: BranchIx(1), sys }, OpError::Sys(sys)] {
                let reported = for_servers(errno(error));
                assert!(passed(&reported), "{number}: {error:?} is returned as {reported:?}");
                if reported == said {
                    kept.push(said);
                }
            }
        }
        // Every listed errno is used.
        let listed = SERVED.iter().chain(FOR_PROGRAMS.iter().map(|(errno, _)| errno));
        listed.for_each(|errno| assert!(kept.contains(errno), "{errno:?} is never returned"));
    }

    /// ENOSYS is final: the kernel never sends that request again.
    #[test]
    fn a_call_that_one_branch_lacks_is_not_switched_off_for_all() {
        let sys = SysError { call: Call::Open, errno: Errno::NOSYS };
        assert_eq!(errno(OpError::Branch { branch: BranchIx(1), sys }), Errno::OPNOTSUPP);
        assert_eq!(errno(OpError::Sys(sys)), Errno::OPNOTSUPP);
        assert_eq!(errno(OpError::Refused(Errno::NOSYS)), Errno::NOSYS);
    }
}
