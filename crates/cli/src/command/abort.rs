//! `fsstack branch abort`: frees the callers stuck in a hung FUSE branch.
//!
//! Aborting a file system's connection makes the kernel fail every pending and later call until it is mounted again.
//! The branch is found in the mount table; no request is made to it, as it hangs.

use super::show::{self, Style};
use super::{Failed, pool};
use fsstack_control::api::BranchChanged;
use fsstack_pool::Printable;
use fsstack_sys::{fusectl, mounts};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

pub(crate) fn run(word: &OsStr, branch: &Path, style: Style) -> Result<(), Failed> {
    let pool = pool::find(word)?;
    // Made absolute without a request to the branch, which hangs.
    let branch = &std::path::absolute(branch).unwrap_or_else(|_| branch.to_owned());
    let shown = Printable::path(branch).to_string();
    let known: Vec<_> = pool.entry.branches.iter().map(|branch| branch.path()).collect();
    if !known.iter().any(|path| path == branch) {
        let known: Vec<String> = known.iter().map(|path| Printable::path(path).to_string()).collect();
        return Err(Failed::Missing(format!(
            "{shown}: no branch of this pool; there are {}",
            known.join(", ")
        )));
    }
    let table = mounts::list().map_err(|error| Failed::system("the mount table", &error))?;
    let holds = |mount: &&mounts::MountInfo| branch.starts_with(&mount.mount_point);
    // The deepest mount, and of several at one path the top one.
    let mount = table.iter().filter(holds).max_by_key(|mount| mount.mount_point.as_os_str().len());
    let mount =
        mount.and_then(|deepest| table.iter().rfind(|mount| mount.mount_point == deepest.mount_point));
    let Some(mount) = mount.filter(|mount| mount.is_fuse()) else {
        return Err(Failed::Refused(format!(
            "{shown}: not on a FUSE file system: there is no connection to abort"
        )));
    };
    if mount.mount_point == pool.entry.mount_point() {
        return Err(Failed::Refused(format!(
            "{shown}: in the pool itself, whose own connection is not aborted here"
        )));
    }
    fusectl::abort(fusectl::connection_of(mount.device())).map_err(|error| {
        let text = format!("{shown}: {error}");
        match error.kind() {
            ErrorKind::NotFound => Failed::Missing(text),
            ErrorKind::PermissionDenied => Failed::Denied(text),
            _ => Failed::Refused(text),
        }
    })?;
    let changed = BranchChanged {
        branch: shown,
        from: mount.fs_type.to_string_lossy().into_owned(),
        to: "aborted".to_owned(),
        waits_for: 0,
        notes: Vec::new(),
    };
    show::answer(style, &changed, |changed| {
        format!(
            "{}: its FUSE connection was aborted: callers are freed, and it answers errors until it is mounted again\n",
            changed.branch
        )
    })
}
