//! The mount helper, whose daemon dies where a test says.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(fsstack_daemon::run(std::env::args_os().skip(1)))
}
