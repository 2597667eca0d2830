//! Mount helper of the type `fsstack`, installed as `/sbin/mount.fsstack`: Cargo allows no dot in a name.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(fsstack_daemon::run_as(std::env::args_os()))
}
