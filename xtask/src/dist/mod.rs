//! `cargo xtask dist`: makes the release files: a Debian package, one with symbols, a tarball, a bill of materials,
//! licences, checksums.
//!
//! Builds are reproducible: times are those of the last commit, owners are root.

mod contents;
mod deb;
mod licences;
mod sbom;
mod stage;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use fsstack_lab::Skip;

use crate::exec;
use crate::install::{self, Need};
use contents::Contents;
use stage::Stage;
use symbols::Symbols;

/// Programs for making packages.
const TO_PACK: &[Need] =
    &[("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils"), ("gzip", "gzip")];

/// Crates of the released programs, in the programs' order.
const RELEASED: [&str; 3] = ["fsstack-daemon", "fsstack-cli", "fsstack-bench"];

/// Linker option for a build id, by which the symbols are found; not every linker adds one.
const WITH_BUILD_ID: [&str; 3] = ["--", "-C", "link-arg=-Wl,--build-id=sha1"];

/// File with the checksums of the others.
const SUMS: &str = "SHA256SUMS";

/// Arguments of `cargo xtask dist`.
#[derive(Debug, Default, Args)]
pub(crate) struct Dist {
    /// Where it is put: `dist` in the target directory if not said.
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

/// Parameters of a release.
struct Release {
    version: String,
    /// Rust's name of the machine: `x86_64-unknown-linux-gnu`.
    target: String,
    /// Time of all packed files, in seconds since 1970.
    time: String,
    out: PathBuf,
}

impl Release {
    /// `x86_64-linux-gnu`
    fn machine(&self) -> String {
        self.target.replacen("-unknown-", "-", 1)
    }
}

impl Dist {
    /// Builds and packs; prints the files.
    pub(crate) fn run(self) -> Result<()> {
        for file in self.make()? {
            println!("{}", file.display());
        }
        Ok(())
    }

    /// Builds and packs. Returns the files, the checksums last.
    pub(crate) fn make(self) -> Result<Vec<PathBuf>> {
        install::packages(TO_PACK)?;
        let out = self.out.map_or_else(default_out, Ok)?;
        fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
        let target = contents::host()?;
        let contents = Contents::read(&RELEASED, &target)?;
        licences::check(&contents)?;
        licences::deny()?;
        for (package, program) in RELEASED.into_iter().zip(stage::programs()) {
            let which = ["--package", package, "--bin", program];
            exec::cargo().args(["rustc", "--release", "--locked"]).args(which).args(WITH_BUILD_ID).run()?;
        }
        let release = Release {
            version: contents.version()?.to_owned(),
            target,
            time: time(),
            out: out.canonicalize()?,
        };
        let licences = licences::texts(&contents)?;
        let stage = Stage::fill(&exec::target_dir()?.join("release"), &licences)?;
        let symbols = Symbols::split_off(&stage)?;
        let mut made = vec![
            deb::pack(&stage, &release)?,
            deb::pack_symbols(&symbols, &release)?,
            tarball(&stage, &release)?,
            written(&release, "cdx.json", &sbom::document(&contents)?)?,
            written(&release, "licences.txt", &licences)?,
        ];
        made.push(sums(&release, &made)?);
        Ok(made)
    }
}

/// Checks whether packages can be made and tested here.
pub(crate) fn able() -> Result<(), Skip> {
    let installed = install::packages(TO_PACK).and_then(|()| install::packages(install::TO_BOOTSTRAP));
    installed.map_err(|e| Skip::because(format!("{e:#}")))
}

/// Default output directory.
pub(crate) fn default_out() -> Result<PathBuf> {
    Ok(exec::target_dir()?.join("dist"))
}

/// Time of the last commit; zero without one.
fn time() -> String {
    let output = exec::quiet("git").args(["log", "-1", "--format=%ct"]).run();
    output.map_or_else(|_| "0".to_owned(), |output| output.stdout.trim().to_owned())
}

fn written(release: &Release, what: &str, text: &str) -> Result<PathBuf> {
    let file = release.out.join(format!("fsstack-{}.{what}", release.version));
    fs::write(&file, text).with_context(|| file.display().to_string())?;
    Ok(file)
}

/// Makes a tarball for systems without dpkg, in one folder that is stripped when it is unpacked at the root.
fn tarball(stage: &Stage, release: &Release) -> Result<PathBuf> {
    let name = format!("fsstack-{}-{}", release.version, release.machine());
    let file = release.out.join(format!("{name}.tar.gz"));
    exec::shown("tar")
        .args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", release.time))
        .arg(format!("--transform=s,^\\.,{name},S"))
        .args(["--use-compress-program", "gzip -9n", "--file"])
        .args([&file, Path::new("--directory"), stage.root(), Path::new(".")])
        .run()?;
    Ok(file)
}

fn sums(release: &Release, made: &[PathBuf]) -> Result<PathBuf> {
    let names = made.iter().filter_map(|file| file.file_name());
    let output = exec::quiet("sha256sum").args(names).dir(&release.out).run()?.stdout;
    let file = release.out.join(SUMS);
    fs::write(&file, output).with_context(|| file.display().to_string())?;
    Ok(file)
}
