//! The server's file system: made once from the distribution's own packages, by the machine's own apt sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::steps::Steps;
use crate::ledger::{Standing, state_dir};
use crate::shell::{command, which};
use crate::{ledger, mounts};

/// The book of what belongs to no single lab.
pub(super) const BOOK: &str = "gluster-image";

/// What is in it besides what Debian calls essential.
const PACKAGES: &str = "glusterfs-server,tini,attr,procps";

/// Longer than a slow mirror takes.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Where it is, if it was made to its end.
pub(super) fn rootfs() -> Result<PathBuf> {
    Ok(state_dir()?.join("gluster-image/rootfs"))
}

/// Makes it if it is not there.
pub(super) fn ensure(steps: Steps) -> Result<PathBuf> {
    let rootfs = rootfs()?;
    if !rootfs.is_dir() {
        steps.step("image from the distribution's packages", || build(&rootfs))?;
    }
    Ok(rootfs)
}

/// Removes it.
pub(super) fn remove() -> Result<()> {
    ledger::take_down(BOOK).map(drop)
}

fn build(rootfs: &Path) -> Result<()> {
    let dir = rootfs.parent().context("the image's directory")?;
    let unfinished = dir.join("unfinished");
    for left in mounts::below(&unfinished)?.iter().rev() {
        mounts::detach(&left.target)?;
    }
    Standing::named(BOOK)?.dir(dir)?;
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    ensure!(
        which("mmdebstrap").is_some(),
        "the lab's image is made by mmdebstrap: install it (Debian, Ubuntu and their like have it)"
    );
    let codename = codename(&fs::read_to_string("/etc/os-release").context("/etc/os-release")?)?;
    let mirrors = mirrors(Path::new("/etc/apt"), &codename)?;
    let mut run = command("mmdebstrap").args(["--quiet", "--variant=essential", "--format=directory"]);
    run = run.arg(format!("--include={PACKAGES}")).arg("--dpkgopt=force-unsafe-io");
    for dropped in ["doc", "man", "locale", "info"] {
        run = run.arg(format!("--dpkgopt=path-exclude=/usr/share/{dropped}/*"));
    }
    for option in apt_options(&command("apt-config").arg("dump").run()?.stdout) {
        run = run.arg(format!("--aptopt={option}"));
    }
    run.arg(&codename).arg(&unfinished).args(mirrors).limit(LIMIT).run()?;
    fs::create_dir_all(unfinished.join("bricks"))?;
    fs::rename(&unfinished, rootfs).context("the finished image")
}

/// The distribution's release, as its packages are sorted by.
fn codename(os_release: &str) -> Result<String> {
    let named = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let named = named.map(|name| name.trim_matches('"').to_owned()).filter(|name| !name.is_empty());
    named.context("this system has no VERSION_CODENAME: the lab's image is made on Debian and its like")
}

/// What mmdebstrap takes for mirrors: one-line entries, and paths of files of the other format.
fn mirrors(apt: &Path, codename: &str) -> Result<Vec<String>> {
    let mut files = vec![apt.join("sources.list")];
    if let Ok(entries) = fs::read_dir(apt.join("sources.list.d")) {
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    let mut mirrors = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|e| e.to_str()) {
            Some("list") => mirrors.extend(lines_for(&text, codename)),
            Some("sources") if stanzas_for(&text, codename) => mirrors.push(file.display().to_string()),
            _ => {}
        }
    }
    if mirrors.is_empty() {
        bail!("no apt source of this machine has the release {codename}");
    }
    Ok(mirrors)
}

/// `bookworm`, `bookworm-updates`, `bookworm-security`, `bookworm/updates`.
fn is_of(suite: &str, codename: &str) -> bool {
    suite.strip_prefix(codename).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '/']))
}

fn lines_for(text: &str, codename: &str) -> Vec<String> {
    let ours = |line: &&str| {
        line.starts_with("deb ") && line.split_whitespace().skip(2).any(|word| is_of(word, codename))
    };
    text.lines().map(str::trim).filter(ours).map(str::to_owned).collect()
}

fn stanzas_for(text: &str, codename: &str) -> bool {
    let suites = text.lines().filter_map(|line| line.strip_prefix("Suites:"));
    suites.flat_map(str::split_whitespace).any(|suite| is_of(suite, codename))
}

/// How this machine reaches its mirrors: proxies, and what it does not check.
fn apt_options(dump: &str) -> Vec<String> {
    let kept = ["Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries"];
    let says = |line: &&str| kept.iter().any(|k| line.starts_with(k)) && !line.contains(" \"\";");
    dump.lines().filter(says).map(|line| line.trim_end_matches(';').to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=\"trixie\"\n").unwrap(), "trixie");
        assert!(codename("ID=other\n").is_err());
    }

    #[test]
    fn sources_of_either_format_are_found_and_others_left_out() {
        let apt = tempfile::tempdir().unwrap();
        let list =
            "# deb copy:/a old main\ndeb [trusted=yes] copy:/a/debian sid main\ndeb copy:/b tools main\n";
        fs::write(apt.path().join("sources.list"), list).unwrap();
        let more = apt.path().join("sources.list.d");
        fs::create_dir(&more).unwrap();
        fs::write(more.join("d.sources"), "Types: deb\nURIs: copy:/a\nSuites: other sid-updates\n").unwrap();
        fs::write(more.join("e.sources"), "Types: deb\nURIs: copy:/a\nSuites: sidney\n").unwrap();
        let found = mirrors(apt.path(), "sid").unwrap();
        let file = more.join("d.sources").display().to_string();
        assert_eq!(found, ["deb [trusted=yes] copy:/a/debian sid main".to_owned(), file]);
        assert!(mirrors(apt.path(), "trixie").is_err());
    }

    #[test]
    fn proxies_are_handed_on() {
        let dump = "Acquire \"\";\nAcquire::http \"\";\nAcquire::http::Proxy \"http://p:1\";\nDir \"/\";\n";
        assert_eq!(apt_options(dump), ["Acquire::http::Proxy \"http://p:1\""]);
    }
}
