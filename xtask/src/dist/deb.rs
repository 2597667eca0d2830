//! The Debian packages, built by dpkg's own programs from the staged files.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::stage::Stage;
use super::symbols::Symbols;
use super::{Release, exec};

/// Revision of the packages, after the programs' version.
const REVISION: u32 = 1;

/// Scripts for dpkg; in packaging/debian.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

const DESCRIPTION: &str = "stacks several file systems into one tree\n \
    mount.fsstack shows several directories, usually the roots of file systems (disks,\n \
    GlusterFS volumes, NFS mounts), as one tree. A file lies whole on one of them and can be\n \
    read without it. Where the kernel has FUSE passthrough (Linux 6.9), data does not pass\n \
    the daemon. fsstack shows and changes mounted pools; fsstack-bench measures what a stack\n \
    of file systems costs.\n";

/// Debian's name of this machine.
pub(super) fn architecture() -> Result<String> {
    Ok(exec::quiet("dpkg").arg("--print-architecture").run()?.stdout.trim().to_owned())
}

/// Builds the package of the programs, for an architecture and with the packages of their libraries; returns the file.
pub(super) fn pack(stage: &Stage, release: &Release, architecture: &str, libraries: &str) -> Result<PathBuf> {
    let comma = if libraries.is_empty() { "" } else { ", " };
    let fields = format!(
        "Section: admin\nPriority: optional\nDepends: {libraries}{comma}mount\nRecommends: fuse3\n\
         Suggests: logrotate, glusterfs-client\nDescription: {DESCRIPTION}"
    );
    build(stage, release, (architecture, "fsstack"), &fields, |about| {
        write(about, "conffiles", &conffiles(stage)?, 0o644)?;
        for script in SCRIPTS {
            let text =
                fs::read_to_string(exec::root().join("packaging/debian").join(script)).context(script)?;
            write(about, script, &text, 0o755)?;
        }
        Ok(())
    })
}

/// Builds the package of the programs' symbols; returns the file.
pub(super) fn pack_symbols(symbols: &Symbols, release: &Release, architecture: &str) -> Result<PathBuf> {
    let fields = format!(
        "Section: debug\nPriority: optional\nDepends: fsstack (= {})\nBuild-Ids: {}\n\
         Description: symbols of the programs of fsstack\n Debuggers and crash reports find functions and lines by them.\n",
        revised(release),
        symbols.ids.join(" ")
    );
    build(&symbols.stage, release, (architecture, "fsstack-dbgsym"), &fields, |_| Ok(()))
}

/// Version of the packages.
fn revised(release: &Release) -> String {
    format!("{}-{REVISION}", release.version)
}

/// Builds the package `name` for `architecture` from the staged files, with `fields` in its control file and further files written by
/// `more`.
fn build(
    stage: &Stage,
    release: &Release,
    (architecture, name): (&str, &str),
    fields: &str,
    more: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let version = revised(release);
    let (size, sums) = (kilobytes(stage)?, sums(stage)?);
    let about = stage.root().join("DEBIAN");
    fs::create_dir(&about)?;
    fs::set_permissions(&about, Permissions::from_mode(0o755))?;
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n\
         Maintainer: The fsstack developers <fsstack@localhost>\nInstalled-Size: {size}\n{fields}"
    );
    write(&about, "control", &control, 0o644)?;
    write(&about, "md5sums", &sums, 0o644)?;
    more(&about)?;
    let file = release.out.join(format!("{name}_{version}_{architecture}.deb"));
    exec::shown("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([stage.root(), &file])
        .env("SOURCE_DATE_EPOCH", &release.time)
        .run()?;
    fs::remove_dir_all(about)?;
    Ok(file)
}

fn write(about: &Path, name: &str, text: &str, mode: u32) -> Result<()> {
    let file = about.join(name);
    fs::write(&file, text).context(name.to_owned())?;
    Ok(fs::set_permissions(file, Permissions::from_mode(mode))?)
}

/// Packages of the libraries that the programs are linked to, with their versions.
pub(super) fn libraries(stage: &Stage) -> Result<String> {
    // dpkg-shlibdeps expects a source package in the working directory.
    let dir = tempfile::tempdir()?;
    fs::create_dir(dir.path().join("debian"))?;
    fs::write(dir.path().join("debian/control"), "Source: fsstack\n\nPackage: fsstack\nArchitecture: any\n")?;
    let output = exec::quiet("dpkg-shlibdeps").arg("-O").args(stage.programs()).dir(dir.path()).run()?.stdout;
    let depends = output.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    depends.map(str::to_owned).with_context(|| format!("dpkg-shlibdeps: {output}"))
}

/// Configuration files: dpkg asks before it replaces changed ones.
fn conffiles(stage: &Stage) -> Result<String> {
    let mut list = String::new();
    for file in stage.files()?.iter().filter(|file| file.starts_with("etc")) {
        writeln!(list, "/{}", file.display())?;
    }
    Ok(list)
}

fn sums(stage: &Stage) -> Result<String> {
    let files = stage.files()?;
    let files = files.iter().filter(|file| !file.starts_with("etc"));
    Ok(exec::quiet("md5sum").args(files).dir(stage.root()).run()?.stdout)
}

fn kilobytes(stage: &Stage) -> Result<u64> {
    let sizes = stage
        .files()?
        .into_iter()
        .map(|file| Ok(fs::metadata(stage.root().join(file))?.size().div_ceil(1024)));
    sizes.sum()
}
