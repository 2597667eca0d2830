//! The operator's command, which dies where a test says.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(fsstack_cli::command::run(std::env::args_os().skip(1)))
}
