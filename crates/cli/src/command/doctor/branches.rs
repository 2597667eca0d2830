//! Checks of the branches from outside the pool, each on its own thread, so that a hung one affects only its own
//! result.

use fsstack_sync::time::{Duration, SystemTime};

use super::DoctorReport;
use crate::command::pool::Pool;
use crate::command::time_limit::{HUNG_AFTER, unless_it_hangs};
use fsstack_control::api::{BranchStatus, Finding, Level, Status};
use fsstack_control::local_locks;
use fsstack_pool::Printable;
use fsstack_sys::mounts::MountInfo;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Clocks that differ by more than this confuse programs that compare times of files (make, rsync).
const CLOCK_SKEW: Duration = Duration::from_secs(2);

/// Attributes with a branch's id, of root's daemon and of a user's.
const IDS: [&CStr; 2] = [c"trusted.fsstack.branch", c"user.fsstack.branch-id"];

/// Answer of one branch.
struct Answer {
    device: Option<u64>,
    id: Option<Vec<u8>>,
    findings: Vec<Finding>,
}

pub(super) fn check(pool: &Pool, status: &Status, report: &mut DoctorReport) {
    let mut devices: HashMap<u64, String> = HashMap::new();
    let mut ids: HashMap<Vec<u8>, String> = HashMap::new();
    for branch in &status.branches {
        let about = branch.path.as_str();
        match branch.state.as_str() {
            "up" => report.ok(about, "up"),
            "read-only" if branch.mode == "RO" => report.ok(about, "read-only, as its mode is"),
            "read-only" => report.fail(
                about,
                "its file system has turned read-only: look at the kernel's log, check and mount it again",
            ),
            "leaving" => report.warn(about, "leaves the pool when its open files are closed"),
            "down" => report.fail(
                about,
                "down: a probe failed or its mount is gone: see the log line `branch down`, then mount it again",
            ),
            state => report.fail(
                about,
                format!("{state}: a call failed or hangs, or a GlusterFS volume lacks bricks: see the log"),
            ),
        }
        let path = path_of(pool, branch);
        let writable = branch.mode != "RO";
        let Some(answer) = unless_it_hangs(HUNG_AFTER, move || ask(&path, writable)) else {
            report.fail(about, "it hangs: fsstack branch abort frees the callers of a FUSE branch");
            continue;
        };
        report.0.extend(answer.findings);
        if let Some(before) = answer.device.and_then(|device| devices.insert(device, about.to_owned())) {
            report.warn(
                about,
                format!("on the same file system as {before}: its free space is counted twice, and a file moved between them frees nothing"),
            );
        }
        match answer.id.map(|id| (ids.insert(id.clone(), about.to_owned()), id)) {
            Some((Some(before), _)) => report.warn(
                about,
                format!("has the stored id of {before}: a copied disk? take the attribute {} off one of them", IDS[0].to_string_lossy()),
            ),
            Some((None, _)) => report.ok(about, "its identity is stored with it"),
            None => report.warn(about, "its identity cannot be stored there (no extended attributes, or read-only): inode numbers depend on its file system's id"),
        }
    }
}

/// The path itself; printed paths may be escaped.
pub(crate) fn path_of(pool: &Pool, branch: &BranchStatus) -> PathBuf {
    let known = pool.entry.branches.iter().map(|branch| branch.path());
    known
        .into_iter()
        .find(|path| Printable::path(path).to_string() == branch.path)
        .unwrap_or_else(|| PathBuf::from(&branch.path))
}

fn ask(path: &Path, writable: bool) -> Answer {
    let about = Printable::path(path).to_string();
    let mut findings = Vec::new();
    let mut add = |level: Level, text: String| findings.push(Finding { level, about: about.clone(), text });
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => {
            add(Level::Fail, format!("cannot be reached: {error}"));
            return Answer { device: None, id: None, findings };
        }
    };
    let read_only = rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
    if writable && read_only {
        add(
            Level::Fail,
            "mounted read-only, but its mode is not RO: mount it writable, or set its mode".to_owned(),
        );
    }
    match attribute(path, c"user.fsstack.doctor") {
        Err(Errno::OPNOTSUPP) => {
            add(Level::Warn, "no extended attributes: programs that set them fail".to_owned())
        }
        _ => add(Level::Ok, "has extended attributes".to_owned()),
    }
    match attribute(path, c"system.posix_acl_access") {
        Err(Errno::OPNOTSUPP) => add(Level::Warn, "no POSIX ACLs: setfacl fails for files there".to_owned()),
        _ => add(Level::Ok, "has POSIX ACLs".to_owned()),
    }
    let table = fsstack_sys::mounts::list().unwrap_or_default();
    let restrictions = local_locks::mount_of(path, &table).map(restrictions).unwrap_or_default();
    if !restrictions.is_empty() {
        let text = format!(
            "mounted {restrictions}, and so is the whole pool: mount the branch without, unless that is meant"
        );
        add(Level::Warn, text);
    }
    if let Some(option) = local_locks::mount_of(path, &table).and_then(local_locks::option) {
        let text = format!(
            "its NFS mount keeps locks on this machine ({option}): if several hosts use it, mount it without that option"
        );
        add(Level::Warn, text);
    }
    if writable && !read_only {
        match skew(path) {
            Some(skew) if CLOCK_SKEW < skew => add(
                Level::Warn,
                format!(
                    "its clock differs from this machine's by {:.1} s: synchronise them (NTP)",
                    skew.as_secs_f64()
                ),
            ),
            Some(_) => add(Level::Ok, "its clock is this machine's".to_owned()),
            None => add(Level::Ok, "its clock was not compared: it makes no file without a name".to_owned()),
        }
    }
    let id = IDS.iter().find_map(|name| attribute(path, name).ok());
    Answer { device: Some(metadata.dev()), id, findings }
}

/// Restrictive mount options of a branch, which apply to the pool too, comma-separated.
fn restrictions(mount: &MountInfo) -> String {
    let taken = ["nosuid", "nodev", "noexec"].into_iter();
    let taken: Vec<_> = taken.filter(|word| mount.options.split(',').any(|option| option == *word)).collect();
    taken.join(",")
}

/// Difference between the branch's clock and ours, by the timestamp of an unnamed file.
fn skew(path: &Path) -> Option<Duration> {
    let file =
        rustix::fs::open(path, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .ok()?;
    let stamped = fs::File::from(file).metadata().ok()?.modified().ok()?;
    let now = SystemTime::now();
    Some(now.duration_since(stamped).unwrap_or_else(|before| before.duration()))
}

fn attribute(path: &Path, name: &CStr) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0_u8; 4096];
    let length = rustix::fs::getxattr(path, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}
