//! Symbols of the stripped programs, for crash reports, in the path where debuggers look by build id.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::stage::Stage;
use crate::exec;

/// Folder searched by gdb, perf and systemd-coredump.
const FOLDER: &str = "usr/lib/debug/.build-id";

/// The symbols of a release.
#[derive(Debug)]
pub(super) struct Symbols {
    /// The files.
    pub(super) stage: Stage,
    /// The build ids of the programs.
    pub(super) ids: Vec<String>,
}

impl Symbols {
    /// Strips the programs of `stage` and keeps their symbols.
    pub(super) fn split_off(stage: &Stage) -> Result<Self> {
        let mut symbols = Self { stage: Stage::empty()?, ids: Vec::new() };
        stage.programs().try_for_each(|program| symbols.take(&program))?;
        Ok(symbols)
    }

    fn take(&mut self, program: &Path) -> Result<()> {
        let id = build_id(program)?;
        let (dir, rest) = id.split_at(2);
        let file = self.stage.place(&format!("{FOLDER}/{dir}/{rest}.debug"))?;
        exec::quiet("objcopy")
            .args(["--only-keep-debug", "--compress-debug-sections"])
            .args([program, &file])
            .run()?;
        fs::set_permissions(file, Permissions::from_mode(0o644))?;
        exec::quiet("strip").arg("--strip-unneeded").arg(program).run()?;
        self.ids.push(id);
        Ok(())
    }
}

/// Build id of a program in hexadecimal.
fn build_id(program: &Path) -> Result<String> {
    let output = exec::quiet("readelf").args(["--notes", "--wide"]).arg(program).run()?.stdout;
    let id = output.lines().find_map(|line| line.split_once("Build ID: ")).map(|(_, id)| id.trim());
    let id = id.with_context(|| format!("{}: without a build id", program.display()))?;
    ensure!(
        id.len() > 2 && id.bytes().all(|b| b.is_ascii_hexdigit()),
        "{}: build id {id}",
        program.display()
    );
    Ok(id.to_owned())
}
