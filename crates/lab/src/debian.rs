//! Fresh systems of this machine's release, from its own apt sources.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::cleanup::{self, Entry, Standing, state_dir};
use crate::mounts;
use crate::shell::{Run, command, which};

/// Time limit for making and copying a system: longer than a slow mirror takes.
const SYSTEM_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Journal of the system that others are copied from.
const BOOK: &str = "debian-system";

/// Packages besides Debian's essential ones: an installed server has them, and packages work on them.
const PACKAGES: &[&str] = &["apt", "mount", "util-linux", "fuse3", "logrotate", "systemd", "procps"];

/// Fills `dir` with the essential packages and `packages`, without manuals.
///
/// # Errors
/// This is no Debian or its like, mmdebstrap is not installed, or a package cannot be had.
pub fn bootstrap(dir: &Path, packages: &[&str]) -> Result<()> {
    ensure!(
        which("mmdebstrap").is_some(),
        "a fresh system is made by mmdebstrap: install it (Debian, Ubuntu and their like have it)"
    );
    let codename = release()?;
    let mirrors = mirrors(Path::new("/etc/apt"), &codename)?;
    let mut run = command("mmdebstrap").args(["--quiet", "--variant=essential", "--format=directory"]);
    run = run.arg(format!("--include={}", packages.join(","))).arg("--dpkgopt=force-unsafe-io");
    for dropped in ["doc", "man", "locale", "info"] {
        run = run.arg(format!("--dpkgopt=path-exclude=/usr/share/{dropped}/*"));
    }
    for option in apt_options(&command("apt-config").arg("dump").run()?.stdout) {
        run = run.arg(format!("--aptopt={option}"));
    }
    run.arg(&codename).arg(dir).args(mirrors).limit(SYSTEM_TIMEOUT).run().map(drop)
}

/// Runs the scenario and ends the system with its exit status.
const SCENARIO: &str = "[Service]\nType=oneshot\nEnvironment=LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive\n\
    WorkingDirectory=/root\nExecStart=/bin/bash -euo pipefail /root/scenario\nStandardOutput=file:/root/output\n\
    StandardError=file:/root/said\nExecStopPost=/bin/sh -c 'systemctl exit $$EXIT_STATUS'\n";

/// A fresh system in which programs can be run; removed on drop.
#[derive(Debug)]
pub struct System {
    root: PathBuf,
    _entry: Entry,
}

impl System {
    /// Copies one that is made on first use and kept.
    ///
    /// # Errors
    /// It cannot be made; see [`bootstrap`].
    pub fn fresh() -> Result<Self> {
        let dir = state_dir()?.join(BOOK);
        let (model, unfinished) = (dir.join("rootfs"), dir.join("unfinished"));
        // Several tests may need it at once; the first one makes it.
        let turn = File::create(state_dir()?.join("system.lock"))?;
        flock(&turn, FlockOperation::LockExclusive)?;
        if !model.is_dir() {
            for left in mounts::below(&unfinished)?.iter().rev() {
                mounts::detach(&left.target)?;
            }
            Standing::named(BOOK)?.dir(&dir)?;
            if unfinished.exists() {
                fs::remove_dir_all(&unfinished)?;
            }
            bootstrap(&unfinished, PACKAGES)?;
            // These rules exclude manuals of packages; here, a package's files are checked.
            for rule in fs::read_dir(unfinished.join("etc/dpkg/dpkg.cfg.d")).into_iter().flatten() {
                fs::remove_file(rule?.path())?;
            }
            fs::rename(&unfinished, &model).context("the finished system")?;
        }
        drop(turn);
        let root = cleanup::fresh("system")?;
        let entry = Entry::dir(&root)?;
        command("cp")
            .args(["-a", "--reflink=auto", "-T"])
            .args([&model, &root])
            .limit(SYSTEM_TIMEOUT)
            .run()?;
        Ok(Self { root, _entry: entry })
    }

    /// Its root directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A shell script to be run in it as root, in its own mount and PID namespaces, which end with it. It has the
    /// machine's devices and an empty `/run`.
    pub fn script(&self, script: &str) -> Run {
        let enter = "cd \"$1\"; mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev; \
                     mount -t tmpfs -o mode=755 tmpfs run; exec chroot . /bin/bash -euo pipefail -c \"$2\"";
        let unshare = command("unshare")
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
            .args(["bash", "-euc", enter, "enter"])
            .arg(&self.root)
            .arg(script);
        unshare
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TMPDIR")
            .limit(Duration::from_secs(120))
    }

    /// Runs a shell script as root once the system has booted with its own systemd; its output is in `/root/output`, and the
    /// command ends with its exit status. No login is possible there, and no device but /dev/fuse and the likes of /dev/null
    /// is there.
    ///
    /// # Errors
    /// The script cannot be written.
    pub fn boot(&self, script: &str) -> Result<Run> {
        let put = |at: &str, text: &str| fs::write(self.root.join(at), text).with_context(|| at.to_owned());
        put("root/scenario", script)?;
        put("etc/systemd/system/scenario.service", SCENARIO)?;
        let (units, wants) = ("etc/systemd/system", "etc/systemd/system/multi-user.target.wants");
        fs::create_dir_all(self.root.join(wants))?;
        symlink("../scenario.service", self.root.join(wants).join("scenario.service"))?;
        for login in ["getty.target", "console-getty.service"] {
            symlink("/dev/null", self.root.join(units).join(login))?;
        }
        let boot = command("sh").args(["-c", include_str!("boot.sh"), "boot"]).arg(&self.root);
        Ok(boot.limit(Duration::from_secs(170)))
    }

    /// Removes the system that others are copied from.
    ///
    /// # Errors
    /// Something is mounted in it.
    pub fn forget() -> Result<()> {
        cleanup::take_down(BOOK).map(drop)
    }
}

/// This machine's release, as its packages name it.
pub(crate) fn release() -> Result<String> {
    codename(&fs::read_to_string("/etc/os-release").context("/etc/os-release")?)
}

fn codename(os_release: &str) -> Result<String> {
    let named = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let named = named.map(|name| name.trim_matches('"').to_owned()).filter(|name| !name.is_empty());
    named.context("this system has no VERSION_CODENAME: a fresh system is made on Debian and its like")
}

/// Files with apt's sources.
fn source_files(apt: &Path) -> Vec<PathBuf> {
    let mut files = vec![apt.join("sources.list")];
    if let Ok(entries) = fs::read_dir(apt.join("sources.list.d")) {
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    files
}

/// This machine's sources for the release `codename`, with another suite in its place: files by name, in apt's format.
pub(crate) fn with_suite(apt: &Path, codename: &str, suite: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for file in source_files(apt) {
        let (Ok(text), Some(name)) = (fs::read_to_string(&file), file.file_name()) else { continue };
        let moved = match file.extension().and_then(|e| e.to_str()) {
            Some("list") => lines_moved(&text, codename, suite),
            Some("sources") => stanzas_moved(&text, codename, suite),
            _ => continue,
        };
        if !moved.is_empty() {
            found.push((name.to_string_lossy().into_owned(), moved));
        }
    }
    if found.is_empty() {
        bail!("no apt source of this machine has the release {codename}");
    }
    Ok(found)
}

fn lines_moved(text: &str, codename: &str, suite: &str) -> String {
    let is_release = |word: &&str| *word == codename;
    let of_release =
        |line: &&str| line.starts_with("deb ") && line.split_whitespace().any(|w| is_release(&w));
    let moved = |line: &str| {
        let words = line.split_whitespace().map(|word| if is_release(&word) { suite } else { word });
        words.collect::<Vec<_>>().join(" ") + "\n"
    };
    text.lines().map(str::trim).filter(of_release).map(moved).collect()
}

fn stanzas_moved(text: &str, codename: &str, suite: &str) -> String {
    let field = |stanza: &str, name: &str| -> Vec<String> {
        let value = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    let has = |stanza: &str, name: &str, word: &str| field(stanza, name).iter().any(|value| value == word);
    let ours = |stanza: &&str| {
        has(stanza, "Types", "deb") && has(stanza, "Suites", codename) && !has(stanza, "Enabled", "no")
    };
    let moved = |line: &str| match line.split_once(':') {
        Some(("Suites", _)) => format!("Suites: {suite}\n"),
        Some(("Types", _)) => "Types: deb\n".to_owned(),
        _ => format!("{line}\n"),
    };
    let stanza = |stanza: &str| stanza.lines().map(moved).collect::<String>() + "\n";
    text.split("\n\n").filter(ours).map(stanza).collect()
}

/// Mirrors for mmdebstrap: one-line entries, and paths of files of the other format.
fn mirrors(apt: &Path, codename: &str) -> Result<Vec<String>> {
    let mut mirrors = Vec::new();
    for file in source_files(apt) {
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

/// Proxies and disabled checks for this machine's mirrors.
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
    fn another_suite_of_the_same_mirrors_is_asked_with_the_same_options() {
        let apt = tempfile::tempdir().unwrap();
        let list = "deb copy:/b tools main\ndeb [signed-by=/k] copy:/a sid main\ndeb-src copy:/a sid main\n";
        fs::write(apt.path().join("sources.list"), list).unwrap();
        let more = apt.path().join("sources.list.d");
        fs::create_dir(&more).unwrap();
        let text = "Types: deb deb-src\nURIs: copy:/a\nSuites: sid sid-updates\nSigned-By:\n a\n .\n b\n\n\
                    Types: deb\nURIs: copy:/s\nSuites: sid-security\n\n\
                    Types: deb\nURIs: copy:/c\nSuites: sid\nEnabled: no\n";
        fs::write(more.join("d.sources"), text).unwrap();
        fs::write(more.join("e.sources.disabled"), text).unwrap();
        let found = with_suite(apt.path(), "sid", "sid-backports").unwrap();
        let expected = [
            ("sources.list", "deb [signed-by=/k] copy:/a sid-backports main\n"),
            ("d.sources", "Types: deb\nURIs: copy:/a\nSuites: sid-backports\nSigned-By:\n a\n .\n b\n\n"),
        ];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert!(with_suite(apt.path(), "trixie", "trixie-backports").is_err());
    }

    #[test]
    fn proxies_are_handed_on() {
        let dump = "Acquire \"\";\nAcquire::http \"\";\nAcquire::http::Proxy \"http://p:1\";\nDir \"/\";\n";
        assert_eq!(apt_options(dump), ["Acquire::http::Proxy \"http://p:1\""]);
    }
}
