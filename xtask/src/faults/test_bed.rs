//! Test bed of a fault: fresh branches and one union over them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result};
use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::{Branch, MiB};
use rustix::io::Errno;

use super::subject::{Mounted, Placement, Subject};

/// Result of a union in a fault.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Reported {
    pub(crate) good: bool,
    pub(crate) text: String,
}

pub(crate) fn good(text: impl Into<String>) -> Result<Reported> {
    Ok(Reported { good: true, text: text.into() })
}

pub(crate) fn bad(text: impl Into<String>) -> Result<Reported> {
    Ok(Reported { good: false, text: text.into() })
}

/// Branches `a` (the first) to `c`, each on its own XFS, and optionally one behind a FUSE daemon.
#[derive(Debug)]
pub(crate) struct TestBed {
    pub(crate) subject: Subject,
    home: PathBuf,
    helper: PathBuf,
    mounted: Option<Mounted>,
    served: Option<Mounted>,
    branches: Vec<Branch>,
}

impl TestBed {
    /// Makes fresh branches under `home`, without a union.
    pub(crate) fn fresh(subject: Subject, home: &Path, helper: &Path) -> Result<Self> {
        let at = home.join("branches");
        fs::create_dir_all(&at)?;
        let make = |name: &str| Branch::make(name, Kind::Xfs(MiB(400)), Layout::Sparse, &at);
        let branches = ["a", "b", "c"].map(make).into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Self {
            subject,
            home: home.to_owned(),
            helper: helper.to_owned(),
            mounted: None,
            served: None,
            branches,
        })
    }

    pub(crate) fn branch(&self, name: &str) -> Result<&Branch> {
        self.branches.iter().find(|branch| branch.name() == name).context("no such branch")
    }

    pub(crate) fn branch_mut(&mut self, name: &str) -> Result<&mut Branch> {
        self.branches.iter_mut().find(|branch| branch.name() == name).context("no such branch")
    }

    /// A path on a branch.
    pub(crate) fn on(&self, branch: &str, name: &str) -> Result<PathBuf> {
        Ok(self.branch(branch)?.path().join(name))
    }

    /// A path in the union.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.home.join("union").join(name)
    }

    /// Mounts the union over `a`, `b` and `c`.
    pub(crate) fn mount(&mut self, placement: Placement) -> Result<()> {
        let paths: Vec<&Path> = self.branches.iter().map(Branch::path).collect();
        self.mounted = Some(self.subject.mount(&self.helper, &paths, &self.home.join("union"), placement)?);
        Ok(())
    }

    /// Mounts the union over `a`, and `b` behind a FUSE daemon that the case may stop.
    pub(crate) fn mount_over_served(&mut self, placement: Placement) -> Result<()> {
        let serves = self.home.join("served");
        let b = self.branch("b")?.path().to_owned();
        self.served = Some(Subject::Fsstack.mount(&self.helper, &[&b], &serves, Placement::First)?);
        let a = self.branch("a")?.path().to_owned();
        self.mounted =
            Some(self.subject.mount(&self.helper, &[&a, &serves], &self.home.join("union"), placement)?);
        Ok(())
    }

    /// Mounts the union over `a` and a directory that the case has made.
    pub(crate) fn mount_over(&mut self, other: &Path) -> Result<()> {
        let a = self.branch("a")?.path().to_owned();
        let target = self.home.join("union");
        self.mounted = Some(self.subject.mount(&self.helper, &[&a, other], &target, Placement::First)?);
        Ok(())
    }

    /// A name unique to this test bed.
    pub(crate) fn label(&self) -> String {
        self.home.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The union's daemon.
    pub(crate) fn daemon(&self) -> Result<fsstack_lab::daemon::Process> {
        Ok(self.mounted.as_ref().context("it is not mounted")?.daemon)
    }

    /// The daemon that serves `b`.
    pub(crate) fn server(&self) -> Result<fsstack_lab::daemon::Process> {
        Ok(self.served.as_ref().context("b is not served")?.daemon)
    }

    /// Kills the daemon that serves `b`, and starts another at the same path.
    pub(crate) fn restart_server(&mut self) -> Result<()> {
        self.server()?.kill()?;
        let serves = self.home.join("served");
        if let Some(served) = self.served.take() {
            served.take_down(&serves);
        }
        let b = self.branch("b")?.path().to_owned();
        self.served = Some(Subject::Fsstack.mount(&self.helper, &[&b], &serves, Placement::First)?);
        Ok(())
    }

    pub(crate) fn unmount(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.take_down(&self.home.join("union"));
        }
    }

    /// Kills the union's daemon and starts another.
    pub(crate) fn crash(&mut self, placement: Placement) -> Result<()> {
        self.daemon()?.kill()?;
        self.unmount();
        self.mount(placement)
    }

    /// The branches that have `name`.
    pub(crate) fn holders(&self, name: &str) -> Vec<&str> {
        let holds = |branch: &&Branch| branch.path().join(name).symlink_metadata().is_ok();
        self.branches.iter().filter(holds).map(Branch::name).collect()
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        self.unmount();
        if let Some(served) = self.served.take() {
            served.take_down(&self.home.join("served"));
        }
    }
}

/// A MiB with content that shows its position.
pub(crate) fn mib(n: u64) -> Vec<u8> {
    (0..1_u64 << 17).flat_map(|word| (n << 17 | word).to_le_bytes()).collect()
}

/// Opens for reading and writing; makes the file if missing.
pub(crate) fn writer(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Writes the MiBs `from..to`; the error has the number written.
pub(crate) fn write_mibs(file: &File, from: u64, to: u64) -> Result<(), (u64, io::Error)> {
    (from..to).try_for_each(|n| file.write_all_at(&mib(n), n << 20).map_err(|error| (n - from, error)))
}

/// Number of wrong ones among the first `count` MiBs of a file. `None` if it cannot be read.
pub(crate) fn wrong_mibs(path: impl AsRef<Path>, count: u64) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut piece = vec![0; 1 << 20];
    let mut wrong = 0;
    for n in 0..count {
        let read = file.read_exact_at(&mut piece, n << 20);
        match read {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            Ok(()) if piece == mib(n) => {}
            _ => wrong += 1,
        }
    }
    Ok(wrong)
}

/// Symbolic name of an errno.
pub(crate) fn errno(error: &io::Error) -> String {
    let known = error.raw_os_error().map(Errno::from_raw_os_error);
    match known {
        Some(Errno::NOSPC) => "ENOSPC".into(),
        Some(Errno::NOENT) => "ENOENT".into(),
        Some(Errno::IO) => "EIO".into(),
        Some(Errno::NOTCONN) => "ENOTCONN".into(),
        Some(Errno::CONNABORTED) => "ECONNABORTED".into(),
        Some(Errno::ROFS) => "EROFS".into(),
        Some(Errno::EXIST) => "EEXIST".into(),
        Some(Errno::NOTEMPTY) => "ENOTEMPTY".into(),
        Some(Errno::ACCESS) => "EACCES".into(),
        Some(Errno::PERM) => "EPERM".into(),
        Some(Errno::OPNOTSUPP) => "EOPNOTSUPP".into(),
        Some(Errno::XDEV) => "EXDEV".into(),
        Some(Errno::STALE) => "ESTALE".into(),
        _ => error.to_string(),
    }
}

/// Result of `act` within `limit`; a hung one is abandoned until the mount is aborted.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    act: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, answer) = channel();
    let asked = std::thread::Builder::new().name("fault-probe".into()).spawn(move || {
        // The receiver may have timed out.
        let _waits = tell.send(act());
    });
    asked.ok().and_then(|_| answer.recv_timeout(limit).ok())
}
