//! `cargo xtask dist`: makes the release files: Debian packages, one with symbols, RPM packages, tarballs, a container image,
//! a bill of materials, licences, checksums.
//!
//! Debian's package for this machine is linked to Debian's C library. All else has static programs, linked to musl, which are
//! cross-built for other machines. Builds are reproducible: times are those of the last commit, owners are root.

mod contents;
mod deb;
mod image;
mod licences;
mod rpm;
mod sbom;
mod stage;
mod static_build;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use fsstack_lab::Skip;
use fsstack_lab::shell::Run;

use crate::exec;
use crate::install::{self, Need};
use contents::Contents;
use stage::{Layout, Stage};
use static_build::Machine;
use symbols::Symbols;

/// Programs for making packages.
const TO_PACK: &[Need] = &[
    ("dpkg-deb", "dpkg"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("strip", "binutils"),
    ("gzip", "gzip"),
    ("rpmbuild", "rpm"),
    ("busybox", "busybox-static"),
];

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
    /// Time of all packed files, in seconds since 1970.
    time: String,
    out: PathBuf,
}

impl Dist {
    /// Builds and packs; prints the files with their sizes and checksums.
    pub(crate) fn run(self) -> Result<()> {
        let made = self.make()?;
        let sums = made.last().context("no file was made")?;
        for line in fs::read_to_string(sums)?.lines() {
            let (sum, name) = line.split_once("  ").context("a line of sha256sum")?;
            let size = fs::metadata(sums.with_file_name(name))?.len();
            println!("{:>9} KiB  {sum}  {name}", size.div_ceil(1024));
        }
        println!("in {}", sums.parent().unwrap_or(sums).display());
        Ok(())
    }

    /// Builds and packs. Returns the files, the checksums last.
    pub(crate) fn make(self) -> Result<Vec<PathBuf>> {
        install::packages(TO_PACK)?;
        let out = self.out.map_or_else(default_out, Ok)?;
        fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
        let contents = Contents::read(&RELEASED, &contents::host()?)?;
        licences::check(&contents)?;
        licences::deny()?;
        for (package, program) in RELEASED.into_iter().zip(stage::programs()) {
            let which = ["--package", package, "--bin", program];
            exec::cargo().args(["rustc", "--release", "--locked"]).args(which).args(WITH_BUILD_ID).run()?;
        }
        let release =
            Release { version: contents.version()?.to_owned(), time: time(), out: out.canonicalize()? };
        let licences = licences::texts(&contents)?;
        let stage = Stage::fill(&exec::target_dir()?.join("release"), Layout::Debian, &licences)?;
        let symbols = Symbols::split_off(&stage)?;
        let here = deb::architecture()?;
        let mut made = vec![
            deb::pack(&stage, &release, &here, &deb::libraries(&stage)?)?,
            deb::pack_symbols(&symbols, &release, &here)?,
        ];
        for machine in static_build::MACHINES {
            made.extend(pack_static(machine, &release, &licences, &here)?);
        }
        made.push(written(&release, "cdx.json", &sbom::document(&contents)?)?);
        made.push(written(&release, "licences.txt", &licences)?);
        made.push(sums(&release, &made)?);
        Ok(made)
    }
}

/// Builds the static programs for `machine` and packs them: a tarball, an RPM package, and a Debian package unless `here`, this
/// machine's architecture, has its own; and a container image, if the programs run here.
fn pack_static(machine: &Machine, release: &Release, licences: &str, here: &str) -> Result<Vec<PathBuf>> {
    let built = machine.build()?;
    let licences = format!("{licences}\n\n{}", static_build::licence()?);
    let stage = Stage::fill(&built, Layout::Plain, &licences)?;
    static_build::strip(stage.programs())?;
    let mut made = vec![tarball(&stage, release, machine)?, rpm::pack(&stage, release, machine)?];
    if machine.debian == here {
        made.push(image::pack(&stage, release, machine)?);
    } else {
        let stage = Stage::fill(&built, Layout::Debian, &licences)?;
        static_build::strip(stage.programs())?;
        made.push(deb::pack(&stage, release, machine.debian, "")?);
    }
    Ok(made)
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

/// Makes a tarball for any Linux, in one folder that is stripped when it is unpacked at the root.
fn tarball(stage: &Stage, release: &Release, machine: &Machine) -> Result<PathBuf> {
    let name = format!("fsstack-{}-{}-linux-static", release.version, machine.name);
    let file = release.out.join(format!("{name}.tar.gz"));
    archive(stage.root(), release, &file)
        .arg(format!("--transform=s,^\\.,{name},S"))
        .args(["--use-compress-program", "gzip -9n"])
        .run()?;
    Ok(file)
}

/// The command that archives all below `root` in `file`.
fn archive(root: &Path, release: &Release, file: &Path) -> Run {
    exec::shown("tar")
        .args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", release.time))
        .args([Path::new("--file"), file, Path::new("--directory"), root, Path::new(".")])
}

fn sums(release: &Release, made: &[PathBuf]) -> Result<PathBuf> {
    let names = made.iter().filter_map(|file| file.file_name());
    let output = exec::quiet("sha256sum").args(names).dir(&release.out).run()?.stdout;
    let file = release.out.join(SUMS);
    fs::write(&file, output).with_context(|| file.display().to_string())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use fsstack_lab::needs;

    use super::*;

    /// With scripts in the programs' place: building them takes minutes.
    #[test]
    fn the_packages_hold_what_is_staged() {
        needs!(program("rpmbuild"), program("busybox"), program("dpkg-deb"));
        let (built, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for program in stage::programs() {
            fs::write(built.path().join(program), "#!/bin/sh\nexit 0\n").unwrap();
        }
        let release =
            Release { version: "1.2.3".into(), time: "1000000000".into(), out: out.path().to_owned() };
        let stage = Stage::fill(built.path(), Layout::Plain, "The licences.").unwrap();
        let files = stage.files().unwrap().len() + Stage::links().len();
        for machine in static_build::MACHINES {
            let package = rpm::pack(&stage, &release, machine).unwrap();
            let query = ["--query", "--package", "--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME}\n]"];
            let listed = exec::quiet("rpm").args(query).arg(&package).run().unwrap().stdout;
            assert_eq!(listed.lines().filter(|line| !line.starts_with('d')).count(), files, "{listed}");
            assert!(listed.lines().all(|line| line.ends_with(" root")), "{listed}");
            let package = deb::pack(&stage, &release, machine.debian, "").unwrap();
            let listed = exec::quiet("dpkg-deb").arg("--contents").arg(&package).run().unwrap().stdout;
            assert_eq!(listed.lines().filter(|line| !line.starts_with('d')).count(), files, "{listed}");
        }
        let first = &static_build::MACHINES[0];
        let image = image::pack(&stage, &release, first).unwrap();
        let listed = exec::quiet("tar").arg("--list").arg("-f").arg(&image).run().unwrap().stdout;
        assert_eq!(
            listed.lines().filter(|line| line.contains("blobs/sha256/") && !line.ends_with('/')).count(),
            3
        );
        assert!(listed.contains("./index.json\n") && listed.contains("./oci-layout\n"), "{listed}");
    }
}
