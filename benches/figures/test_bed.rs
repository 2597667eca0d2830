//! Test bed of the figures: XFS branches in memory, with file systems mounted over them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon::{self, Process};
use fsstack_lab::rival::Union;
use fsstack_lab::shell::command;
use fsstack_lab::{Branch, MiB};

use crate::null;

/// Attributes and names may be cached for two minutes, as configured for the rivals too.
pub(crate) const CACHES_ON: &[&str] = &["attr-timeout=120", "entry-timeout=120", "negative-timeout=120"];

/// Program that serves a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// None: the first branch itself.
    Branch,
    /// The pool.
    Fsstack,
    /// A file system that does nothing, over the same ring.
    Null,
    /// Another union file system.
    Rival(Union),
}

/// A contender: one column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    /// Heading of the column; also the name of its directories.
    pub(crate) name: &'static str,
    pub(crate) server: Server,
    pub(crate) options: Vec<&'static str>,
}

impl Contender {
    pub(crate) fn new(name: &'static str, server: Server, options: &[&[&'static str]]) -> Self {
        Self { name, server, options: options.concat() }
    }

    /// Returns why it cannot be measured, if so.
    pub(crate) fn missing(&self) -> Option<String> {
        match self.server {
            Server::Rival(union) => union.installed().err().map(|skip| skip.to_string()),
            Server::Branch | Server::Fsstack | Server::Null => None,
        }
    }

    /// Program and arguments that mount it over `parts`.
    fn line(&self, parts: &[PathBuf], target: &Path) -> Result<(OsString, Vec<String>)> {
        let program = match self.server {
            Server::Branch => bail!("nobody mounts a branch"),
            Server::Null => {
                let called = target.with_file_name(null::CALLED);
                if !called.exists() {
                    std::os::unix::fs::symlink(std::env::current_exe()?, &called)?;
                }
                return Ok((
                    called.into_os_string(),
                    null::arguments("ring", target, self.options.first().unwrap_or(&"0")),
                ));
            }
            Server::Fsstack => daemon::helper()?.into_os_string(),
            Server::Rival(union) => union.program().into(),
        };
        let separator = if self.server == Server::Rival(Union::Mhddfs) { "," } else { ":" };
        let parts: Vec<String> = parts.iter().map(|part| part.display().to_string()).collect();
        let mut arguments = vec![parts.join(separator), target.display().to_string()];
        if !self.options.is_empty() {
            arguments.extend(["-o".to_owned(), self.options.join(",")]);
        }
        Ok((program, arguments))
    }

    /// Description of the mounted contender, for the report.
    pub(crate) fn described(&self) -> String {
        match self.server {
            Server::Branch => format!("{}: the branch's own file system", self.name),
            Server::Null => format!("{}: no file system behind the pool's own ring", self.name),
            Server::Fsstack | Server::Rival(_) => format!("{}: `-o {}`", self.name, self.options.join(",")),
        }
    }
}

/// Mounted branches, and directories for mount points.
#[derive(Debug)]
pub(crate) struct TestBed {
    // Dropped in this order.
    branches: Vec<Branch>,
    home: PathBuf,
    _home: Entry,
}

impl TestBed {
    /// Makes XFS branches on preallocated images in memory.
    pub(crate) fn new(count: usize, size: MiB) -> Result<Self> {
        let home = cleanup::fresh("figures")?;
        let entry = Entry::dir(&home)?;
        let made = |n| Branch::make(&format!("b{n}"), Kind::Xfs(size), Layout::Preallocated, &home);
        Ok(Self { branches: (0..count).map(made).collect::<Result<_>>()?, home, _home: entry })
    }

    /// Mounts `contender` over `spread` new directories, on the branches in turn.
    pub(crate) fn stand(&self, contender: &Contender, spread: usize) -> Result<Standing> {
        let spread = if contender.server == Server::Null { 0 } else { spread };
        self.stand_over(contender, self.parts(contender, spread)?)
    }

    /// Like [`Self::stand`], each over two directories.
    pub(crate) fn stand_all<'a>(
        &self,
        contenders: &'a [Contender],
    ) -> Result<Vec<(&'a Contender, Standing)>> {
        contenders.iter().map(|of| Ok((of, self.stand(of, 2)?))).collect()
    }

    /// Mounts `contender` over `parts`.
    pub(crate) fn stand_over(&self, contender: &Contender, parts: Vec<PathBuf>) -> Result<Standing> {
        if contender.server == Server::Branch {
            let path = parts.first().context("no branch")?.clone();
            return Ok(Standing { path, parts, mount: None });
        }
        let path = self.home.join(format!("at-{}", contender.name));
        let dir = Entry::dir(&path)?;
        let mount = Entry::mount(&path)?;
        let (program, arguments) = contender.line(&parts, &path)?;
        command(program).args(arguments).run()?;
        let daemon = daemon::server_of(&path)?;
        Ok(Standing { path, parts, mount: Some(Mount { daemon, mount, _dir: dir }) })
    }

    /// Like [`Self::stand`], with the milliseconds from the command to the answer of a first statx.
    pub(crate) fn stand_timed(&self, contender: &Contender, spread: usize) -> Result<(Standing, f64)> {
        let parts = self.parts(contender, spread)?;
        let path = self.home.join(format!("at-{}", contender.name));
        let dir = Entry::dir(&path)?;
        let mount = Entry::mount(&path)?;
        let (program, arguments) = contender.line(&parts, &path)?;
        // Timed by the shell: the lab checks for a command's end only every few milliseconds.
        let script = r#"began=$(date +%s%N); "$@" && stat -- "$AT" >&2; echo $(($(date +%s%N) - began))"#;
        let output =
            command("sh").args(["-c", script, "sh"]).arg(program).args(arguments).env("AT", path.as_os_str());
        let took: f64 = output.run()?.stdout.trim().parse()?;
        let daemon = daemon::server_of(&path)?;
        Ok((Standing { path, parts, mount: Some(Mount { daemon, mount, _dir: dir }) }, took / 1e6))
    }

    /// Makes `spread` directories for `contender`, on the branches in turn.
    pub(crate) fn parts(&self, contender: &Contender, spread: usize) -> Result<Vec<PathBuf>> {
        let under = |n: usize| -> Result<PathBuf> {
            let branch = self.branches.get(n % self.branches.len().max(1)).context("no branch")?;
            let dir = branch.path().join(contender.name).join(n.to_string());
            fs::create_dir_all(&dir)?;
            Ok(dir)
        };
        (0..spread).map(under).collect()
    }
}

/// A mounted contender; unmounted on drop.
#[derive(Debug)]
pub(crate) struct Standing {
    path: PathBuf,
    parts: Vec<PathBuf>,
    mount: Option<Mount>,
}

#[derive(Debug)]
struct Mount {
    daemon: Process,
    // Dropped in this order.
    mount: Entry,
    _dir: Entry,
}

impl Standing {
    /// Its mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its directories on the branches, for making files that it has not seen.
    pub(crate) fn parts(&self) -> &[PathBuf] {
        &self.parts
    }

    /// Limited to the first `count` directories: nothing is made directly on the others.
    pub(crate) fn used(mut self, count: usize) -> Self {
        self.parts.truncate(count);
        self
    }

    /// The process that serves it.
    pub(crate) fn daemon(&self) -> Result<Process> {
        Ok(self.mount.as_ref().context("nobody serves a branch")?.daemon)
    }

    /// Unmounts it, and waits for its daemon's end.
    pub(crate) fn fall(self) -> Result<()> {
        let Some(Mount { daemon, mount, .. }) = self.mount else { return Ok(()) };
        mount.undo()?;
        daemon.wait(Duration::from_secs(10))
    }
}
