//! `fsstack`, the operator's command; also what mount.fuse calls for an fstab line `fsstack#/a,/b /mnt fuse`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(fsstack_cli::command::run(std::env::args_os().skip(1)))
}
