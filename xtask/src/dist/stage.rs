//! Stages the files of a release in a directory that stands for a system's root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::exec;

/// Programs: built name and installed path.
const PROGRAMS: &[(&str, &str)] = &[
    ("mount-fsstack", "usr/sbin/mount-fsstack"),
    ("fsstack", "usr/sbin/fsstack"),
    ("fsstack-bench", "usr/bin/fsstack-bench"),
];

/// Programs that mount(8) runs, for a mount and, by the types in the mount table, for a remount; and those of umount(8).
/// `/sbin` is `/usr/sbin` on systems with a merged `/usr`.
const HELPERS: [&str; 6] = [
    "usr/sbin/mount.fsstack",
    "usr/sbin/mount.fuse.fsstack",
    "usr/sbin/mount.fuseblk.fsstack",
    "usr/sbin/umount.fsstack",
    "usr/sbin/umount.fuse.fsstack",
    "usr/sbin/umount.fuseblk.fsstack",
];

/// Files of the repository.
const FILES: &[(&str, &str)] = &[
    ("docs/completions/fsstack.bash", "usr/share/bash-completion/completions/fsstack"),
    ("docs/completions/mount.fsstack.bash", "usr/share/bash-completion/completions/mount.fsstack"),
    ("docs/completions/fsstack.fish", "usr/share/fish/vendor_completions.d/fsstack.fish"),
    ("docs/completions/mount.fsstack.fish", "usr/share/fish/vendor_completions.d/mount.fsstack.fish"),
    ("packaging/fsstack@.service", "usr/lib/systemd/system/fsstack@.service"),
    ("packaging/fsstack.logrotate", "etc/logrotate.d/fsstack"),
    ("packaging/example.conf", "etc/fsstack/example.conf"),
    ("packaging/example.toml", "etc/fsstack/example.toml"),
    ("packaging/debian/copyright", "usr/share/doc/fsstack/copyright"),
    ("README.md", "usr/share/doc/fsstack/README.md"),
    ("ARCHITECTURE.md", "usr/share/doc/fsstack/ARCHITECTURE.md"),
];

/// Completions for zsh, which distributions have in folders of their own.
const ZSH: [(&str, &str); 2] =
    [("docs/completions/_fsstack", "_fsstack"), ("docs/completions/_mount.fsstack", "_mount.fsstack")];

/// Where a distribution has its files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layout {
    /// Debian and its like.
    Debian,
    /// All others.
    Plain,
}

impl Layout {
    /// The folder of completions for zsh.
    fn zsh(self) -> &'static str {
        match self {
            Self::Debian => "usr/share/zsh/vendor-completions",
            Self::Plain => "usr/share/zsh/site-functions",
        }
    }
}

/// Files of the repository that are compressed, as man(1) and Debian require.
const ZIPPED: &[(&str, &str)] = &[
    ("docs/man/mount.fsstack.8", "usr/share/man/man8/mount.fsstack.8"),
    ("docs/man/fsstack.8", "usr/share/man/man8/fsstack.8"),
    ("CHANGELOG.md", "usr/share/doc/fsstack/changelog"),
];

/// Pages and pictures linked from the README, schemas, and the dashboard.
const PAGES: (&str, &str) = ("docs", "usr/share/doc/fsstack/docs");

/// Folder for logs that logrotate rotates; not readable by all users.
const LOGS: &str = "var/log/fsstack";

/// Licences of the libraries in the programs.
const LICENCES: &str = "usr/share/doc/fsstack/THIRD-PARTY-LICENSES";

/// Built names of the programs.
pub(super) fn programs() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().map(|(name, _)| *name)
}

/// The staging directory; removed on drop.
#[derive(Debug)]
pub(super) struct Stage {
    dir: TempDir,
}

impl Stage {
    /// Nothing yet.
    pub(super) fn empty() -> Result<Self> {
        let stage = Self { dir: tempfile::tempdir()? };
        fs::set_permissions(stage.root(), Permissions::from_mode(0o755))?;
        Ok(stage)
    }

    /// Stages everything that is released, with the programs in `built`.
    pub(super) fn fill(built: &Path, layout: Layout, licences: &str) -> Result<Self> {
        let stage = Self::empty()?;
        for (name, to) in PROGRAMS {
            stage.put(&built.join(name), to, 0o755)?;
        }
        for helper in HELPERS {
            symlink("mount-fsstack", stage.root().join(helper))?;
        }
        for (file, to) in FILES {
            stage.put(&exec::root().join(file), to, 0o644)?;
        }
        for (file, name) in ZSH {
            stage.put(&exec::root().join(file), &format!("{}/{name}", layout.zsh()), 0o644)?;
        }
        for (file, to) in ZIPPED {
            zip(&stage.put(&exec::root().join(file), to, 0o644)?)?;
        }
        let pages = exec::root().join(PAGES.0);
        for page in files_below(&pages)? {
            if page
                .extension()
                .is_some_and(|ending| ["md", "svg", "json"].map(AsRef::as_ref).contains(&ending))
            {
                stage.put(&pages.join(&page), &format!("{}/{}", PAGES.1, page.display()), 0o644)?;
            }
        }
        let text = stage.place(LICENCES)?;
        fs::write(&text, licences)?;
        fs::set_permissions(&text, Permissions::from_mode(0o644))?;
        zip(&text)?;
        let logs = stage.place(LOGS)?;
        fs::create_dir(&logs)?;
        fs::set_permissions(logs, Permissions::from_mode(0o750))?;
        Ok(stage)
    }

    /// Directory that stands for the root.
    pub(super) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Installed paths of the programs.
    pub(super) fn programs(&self) -> impl Iterator<Item = PathBuf> {
        PROGRAMS.iter().map(|(_, to)| self.root().join(to))
    }

    /// The plain files, by their path from the root, sorted.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>> {
        files_below(self.root())
    }

    /// The directories that no other package has, by their path from the root, sorted.
    pub(super) fn own_dirs(&self) -> Result<Vec<PathBuf>> {
        let mut own = vec![PathBuf::from(LOGS)];
        for file in self.files()? {
            let dirs = file.ancestors().skip(1).filter(|dir| dir.iter().any(|part| part == "fsstack"));
            own.extend(dirs.map(Path::to_owned));
        }
        own.sort();
        own.dedup();
        Ok(own)
    }

    /// The symbolic links, by their path from the root.
    pub(super) fn links() -> &'static [&'static str] {
        &HELPERS
    }

    /// Copies a file into the stage.
    pub(super) fn put(&self, from: &Path, to: &str, mode: u32) -> Result<PathBuf> {
        let to = self.place(to)?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        fs::set_permissions(&to, Permissions::from_mode(mode))?;
        Ok(to)
    }

    /// Makes the parent directories of a path and returns its staged path.
    pub(super) fn place(&self, to: &str) -> Result<PathBuf> {
        let to = self.root().join(to);
        let mut missing: Vec<&Path> = to.ancestors().skip(1).take_while(|dir| !dir.exists()).collect();
        while let Some(dir) = missing.pop() {
            fs::create_dir(dir).with_context(|| dir.display().to_string())?;
            // Independent of the umask.
            fs::set_permissions(dir, Permissions::from_mode(0o755))?;
        }
        Ok(to)
    }
}

/// Compresses without name and time.
fn zip(file: &Path) -> Result<()> {
    exec::quiet("gzip").args(["-9n"]).arg(file).run().map(drop)
}

/// The plain files below `root`, by their path from it, sorted.
fn files_below(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path().strip_prefix(root)?.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}
