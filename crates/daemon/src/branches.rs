//! Resolves the branches of a source: expands patterns, finds directories, refuses duplicates.

use fsstack_sync::time::{Duration, Instant};

use crate::pattern::{self, PatternError};
use crate::problem::Problems;
use crate::remembered::Remembered;
use crate::settings::Branch;
use crate::world::World;
use fsstack_control::registry::{DirectoryId, RegistryBranch, RegistryEntry};
use fsstack_pool::settings::Require;
use fsstack_pool::{BranchSpec, Printable};
use fsstack_sys as sys;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Interval of checking a branch that is waited for.
const BRANCH_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Requirements on every branch, and the time to wait for them.
pub(crate) struct Demand {
    pub(crate) require: Require,
    pub(crate) remembered: Remembered,
    pub(crate) elsewhere: Elsewhere,
    pub(crate) timeout: Duration,
}

/// Test of mergerfs whether a branch is mounted: it is on another file system than the mount point. Subdirectories of mounts pass it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Elsewhere {
    /// Device of the mount point, with branches-mount-timeout.
    pub(crate) waits: Option<u64>,
    /// Device of the mount point, with branches-mount-timeout-fail.
    pub(crate) refuses: Option<u64>,
}

/// Returns the device of the file system at `path`, if it answers.
pub(crate) fn device_at(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.dev())
}

impl Demand {
    /// Returns why the branch must be a mount point, with the remedy, if it must.
    fn mount_point(&self, path: &Path) -> Option<&'static str> {
        match self.require {
            Require::MountPoint => Some("which require=mountpoint asks for; mount its disk first"),
            Require::Same if self.remembered.was_mount_point(path) => Some(
                "as it was when it was last used; mount its disk first, or say require=directory to use what is there now",
            ),
            Require::Same | Require::Directory => None,
        }
    }
}

/// Finds every branch, waiting for late ones, and refuses invalid ones.
pub(crate) fn find(
    specs: &[BranchSpec],
    demand: &Demand,
    world: &World,
    problems: &mut Problems,
) -> Vec<Branch> {
    if demand.require == Require::Same
        && let Some(why) = demand.remembered.cannot_tell()
    {
        problems.mount(why);
        return Vec::new();
    }
    wait(specs, demand, world);
    let mut branches = Vec::new();
    let found: Vec<_> = specs.iter().flat_map(|spec| expand(spec, problems)).collect();
    for spec in found {
        match look(&spec.path) {
            Ok((path, id)) => {
                if let Some(why) = demand.mount_point(&path)
                    && !world.is_mount_point(&path)
                {
                    problems.mount(format!("branch {}: not a mount point, {why}", Printable::path(&path)));
                }
                if demand.elsewhere.refuses == Some(id.device) {
                    problems.mount(format!(
                        "branch {}: on the file system of the mount point, which branches-mount-timeout-fail refuses; mount its disk first",
                        Printable::path(&path)
                    ));
                }
                let branch = Branch { spec: spec.at(path), id };
                branches.push((spec.path, branch));
            }
            Err(reason) => problems.mount(format!("branch {}: {reason}", Printable::path(&spec.path))),
        }
    }
    refuse_doubles(&branches, problems);
    branches.into_iter().map(|(_, branch)| branch).collect()
}

/// Notices former mount points that a pattern of SOURCE matches, and that are not among `branches`: their directories may have gone with
/// their disks.
pub(crate) fn passed_over(specs: &[BranchSpec], branches: &[Branch], remembered: &Remembered) -> Vec<String> {
    let is_one = |path: &PathBuf| branches.iter().any(|branch| branch.spec.path == *path);
    let by_pattern = |path: &PathBuf| {
        specs.iter().filter_map(BranchSpec::pattern).find(|pattern| pattern::is_matched(pattern, path))
    };
    let known = remembered.list();
    let missing = known.iter().filter(|path| !is_one(path));
    let notice = |path: &PathBuf| {
        let (path, pattern) = (Printable::path(path), Printable(by_pattern(path)?.as_bytes()));
        Some(format!(
            "branch {path}: {pattern} matches it, it was a mount point when it was last used, and is not there: left out; mount its disk, then fsstack branch add"
        ))
    };
    missing.filter_map(notice).collect()
}

/// Returns when all branches meet the requirements, or after the timeout.
fn wait(specs: &[BranchSpec], demand: &Demand, world: &World) {
    let started = Instant::now();
    let is_mounted = |path: &Path| demand.mount_point(path).is_none() || world.is_mount_point(path);
    let is_ready = |path: &Path| {
        look(path).is_ok_and(|(path, id)| {
            let device = Some(id.device);
            device != demand.elsewhere.waits && device != demand.elsewhere.refuses && is_mounted(&path)
        })
    };
    let all_ready = || {
        specs.iter().all(|spec| {
            let found = expand(spec, &mut Problems::default());
            !found.is_empty() && found.iter().all(|spec| is_ready(&spec.path))
        })
    };
    while started.elapsed() < demand.timeout && !all_ready() {
        fsstack_sync::thread::sleep(BRANCH_LOOK_INTERVAL);
    }
}

/// Expands a pattern to its directories, sorted; a plain path is returned unchanged.
fn expand(spec: &BranchSpec, problems: &mut Problems) -> Vec<BranchSpec> {
    let Some(pattern) = spec.pattern() else { return vec![spec.clone()] };
    let shown = Printable(pattern.as_bytes());
    let paths = match pattern::directories(pattern) {
        Ok(paths) => paths,
        Err(PatternError::Invalid(why)) => {
            problems.usage(format!("branch {shown}: not a pattern: {why}"));
            return Vec::new();
        }
        Err(PatternError::Unreadable(directory, error)) => {
            problems.mount(format!(
                "branch {shown}: {} cannot be read: {error}; mend that, or name the branches",
                Printable::path(&directory)
            ));
            return Vec::new();
        }
    };
    if paths.is_empty() {
        problems.mount(format!(
            "branch {shown}: no directory matches; mount the branches first, or wait for them with branches-timeout="
        ));
    }
    paths.into_iter().map(|path| spec.at(path)).collect()
}

fn look(path: &Path) -> Result<(PathBuf, DirectoryId), String> {
    let absent = |error: std::io::Error| {
        match error.kind() {
        // A mistyped floor or mode parses as a path, because commas also separate branches.
        std::io::ErrorKind::NotFound if path.is_relative() => {
            "missing (a relative path); an attribute of the branch before it would be RW, NC or RO, a floor as 50G or 5%, min-inodes=N, cross-mounts or class=NAME".to_owned()
        }
        std::io::ErrorKind::NotFound => {
            "missing; create or mount it first, or wait for it with branches-timeout=".to_owned()
        }
        _ => format!("cannot be reached: {error}"),
    }
    };
    let metadata = fs::metadata(path).map_err(absent)?;
    if !metadata.is_dir() {
        return Err("not a directory; a branch is the root of a tree".to_owned());
    }
    let path = fs::canonicalize(path).map_err(absent)?;
    let id = DirectoryId::at(&path).map_err(absent)?;
    Ok((path, id))
}

/// Refuses duplicates. Each branch comes with the path as typed, which the messages show.
fn refuse_doubles(branches: &[(PathBuf, Branch)], problems: &mut Problems) {
    for (place, (typed, branch)) in branches.iter().enumerate() {
        let clash = branches[..place].iter().find_map(|(before, earlier)| {
            let (path, earlier_path) = (&branch.spec.path, &earlier.spec.path);
            let shown = Printable::path(before);
            if branch.id == earlier.id && typed == before {
                Some("named twice; name it once".to_owned())
            } else if branch.id == earlier.id {
                Some(format!("the same directory as branch {shown}; leave one out"))
            } else if path.starts_with(earlier_path) {
                Some(format!("lies in branch {shown}; its files would show twice"))
            } else if earlier_path.starts_with(path) {
                Some(format!("contains branch {shown}; its files would show twice"))
            } else {
                None
            }
        });
        if let Some(clash) = clash {
            problems.mount(format!("branch {}: {clash}", Printable::path(typed)));
        }
    }
}

/// Refuses branches that the mount point would cover, or that contain it.
pub(crate) fn refuse_around(mount_point: &Path, branches: &[Branch], problems: &mut Problems) {
    let id = DirectoryId::at(mount_point).ok();
    for branch in branches {
        let path = &branch.spec.path;
        let reason = if path == mount_point || Some(branch.id) == id {
            "is the mount point itself; mount the pool on a directory of its own"
        } else if mount_point.starts_with(path) {
            "contains the mount point, so that the pool would hold itself; mount the pool outside of it"
        } else if path.starts_with(mount_point) {
            "lies in the mount point and would vanish beneath the pool; mount the pool elsewhere"
        } else {
            continue;
        };
        problems.mount(format!("branch {}: {reason}", Printable::path(path)));
    }
}

/// Refuses branches that overlap with a branch of a mounted pool. `own` is the name of the pool that they are added to, if it is
/// mounted.
pub(crate) fn refuse_taken(branches: &[Branch], own: Option<&str>, world: &World, problems: &mut Problems) {
    let live = world.live_pools(|pool| shares(branches, pool));
    for branch in branches {
        let above = identities_above(&branch.spec.path);
        for (pool, taken) in live.iter().flat_map(|pool| pool.branches.iter().map(move |taken| (pool, taken)))
        {
            let how = if branch.id == taken.id && !has_gone(taken) {
                "is a branch of"
            } else if above.contains(&taken.id) {
                "lies in a branch of"
            } else if identities_above(&taken.path()).contains(&branch.id) {
                "contains a branch of"
            } else {
                continue;
            };
            let (path, place) = (Printable::path(&branch.spec.path), pool.mount_point());
            if own == Some(pool.id.as_str()) {
                let why = if branch.id == taken.id { " already" } else { "; its files would show twice" };
                problems.mount(format!("branch {path}: {how} this pool{why}"));
                continue;
            }
            let (place, pid) = (Printable::path(&place), pool.pid);
            let later = |other: &RegistryEntry| {
                other.mount_point() == pool.mount_point() && pool.started < other.started
            };
            problems.mount(if World::may_be_pool(&pool.mount_point()) && !live.iter().any(later) {
                format!("branch {path}: {how} the pool mounted on {place}; unmount that pool first")
            } else {
                format!(
                    "branch {path}: {how} the pool of {place}, which is being mounted, or was unmounted and is in use; wait for it, or close its files (its daemon is process {pid})"
                )
            });
        }
    }
}

/// True if one of `branches` has the identity of one of `pool`.
pub(crate) fn shares(branches: &[Branch], pool: &RegistryEntry) -> bool {
    pool.branches.iter().any(|taken| branches.iter().any(|branch| branch.id == taken.id))
}

/// Like [`shares`], without those that have left their paths since. Asks their file systems.
pub(crate) fn is_any_taken(branches: &[Branch], pool: &RegistryEntry) -> bool {
    pool.branches.iter().any(|taken| branches.iter().any(|branch| branch.id == taken.id) && !has_gone(taken))
}

/// True if another directory is at the branch's path now: its disk was unmounted, and the device number may have been
/// reused. For one that does not answer, the device comes from the mount table.
fn has_gone(taken: &RegistryBranch) -> bool {
    let path = taken.path();
    match DirectoryId::at(&path) {
        Ok(now) => now != taken.id,
        Err(_) => sys::at::open_root(&path)
            .and_then(|dir| sys::at::stat_kept(dir.as_fd()))
            .is_ok_and(|kept| kept.dev != taken.id.device),
    }
}

fn identities_above(path: &Path) -> Vec<DirectoryId> {
    path.ancestors().skip(1).filter_map(|above| DirectoryId::at(above).ok()).collect()
}
