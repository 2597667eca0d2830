//! Programs of the suites: published crates, installed by `cargo xtask test`.

use std::path::PathBuf;

use fsstack_lab::Skip;

/// The program of a suite, or the reason why the test cannot run.
pub(crate) fn program(name: &str) -> Result<PathBuf, Skip> {
    // This program is <target>/<profile>/deps/posix-*.
    let me = std::env::current_exe().unwrap();
    let program = me.ancestors().nth(3).unwrap().join("suites/bin").join(name);
    if program.is_file() {
        return Ok(program);
    }
    Err(Skip::because(format!("needs {name}, which `cargo xtask test --tier posix` installs")))
}
