//! Static programs, which run on any Linux of their machine, whatever its C library.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fsstack_lab::shell;

use super::{RELEASED, contents};
use crate::exec;

/// A machine that static programs are built for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// Its name for the kernel and for rpm.
    pub(super) name: &'static str,
    /// Debian's name.
    pub(super) debian: &'static str,
    /// The target of rustc.
    target: &'static str,
    /// Environment variable by which cargo links for it.
    linker: &'static str,
}

/// All of them.
pub(super) const MACHINES: &[Machine] = &[
    Machine {
        name: "x86_64",
        debian: "amd64",
        target: "x86_64-unknown-linux-musl",
        linker: "CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER",
    },
    Machine {
        name: "aarch64",
        debian: "arm64",
        target: "aarch64-unknown-linux-musl",
        linker: "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER",
    },
];

/// Linker that the toolchain brings, for other machines than this one: no C compiler for them is needed.
const LINKER: &str = "rust-lld";

impl Machine {
    /// Builds the programs. Returns their directory.
    pub(super) fn build(&self) -> Result<PathBuf> {
        exec::shown("rustup").args(["target", "add", self.target]).run().with_context(|| {
            format!("the toolchain lacks Rust's standard library for {}, and cannot get it", self.target)
        })?;
        let packages = RELEASED.iter().flat_map(|package| ["--package", *package]);
        let build = exec::cargo().args(["build", "--release", "--locked", "--bins", "--target", self.target]);
        let build = build.args(packages);
        let is_here = self.name == std::env::consts::ARCH;
        if is_here {
            build.run()?
        } else {
            build.env(self.linker, LINKER).run()?
        };
        Ok(exec::target_dir()?.join(self.target).join("release"))
    }
}

/// Takes lines and types from programs, of any machine. Names of functions stay, for the backtrace of a panic.
pub(super) fn strip(programs: impl Iterator<Item = PathBuf>) -> Result<()> {
    let sysroot = exec::quiet("rustc").args(["--print", "sysroot"]).run()?.stdout;
    let objcopy =
        Path::new(sysroot.trim()).join("lib/rustlib").join(contents::host()?).join("bin/rust-objcopy");
    for program in programs {
        shell::command(&objcopy).arg("--strip-debug").arg(&program).run()?;
    }
    Ok(())
}

/// The licence of the C library in the programs.
pub(super) fn licence() -> Result<String> {
    let text = fs::read_to_string(exec::root().join("packaging/musl-copyright"))?;
    Ok(format!("{}\nThe text of musl, the C library:\n\n{text}", "-".repeat(78)))
}

#[cfg(test)]
mod tests {
    use super::super::contents::Contents;
    use super::*;

    /// One bill of materials is right for all release files.
    #[test]
    fn the_static_programs_have_the_crates_of_the_others() {
        let crates = |target: &str| -> Vec<String> {
            let contents = Contents::read(&RELEASED, target).unwrap();
            contents.of_others().map(contents::Crate::purl).collect()
        };
        let here = crates(&contents::host().unwrap());
        for machine in MACHINES {
            assert_eq!(crates(machine.target), here, "{}", machine.target);
        }
    }
}
