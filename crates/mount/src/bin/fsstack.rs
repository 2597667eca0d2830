//! `fsstack`: what mount.fuse calls for an fstab line `fsstack#/a,/b /mnt fuse`, in the grammar of mount(8).

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(fsstack_mount::run(std::env::args_os().skip(1)))
}
