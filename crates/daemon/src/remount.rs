//! `mount -o remount,...`: the daemon changes its live settings, the kernel the mount's flags.
//!
//! mount(8) passes the options of the mount table and of fstab along with the typed ones. So an option that cannot change is
//! accepted, and one with another value than at the mount is noticed on stderr.

use crate::cli::Invocation;
use crate::gather::{gather_words, words_of};
use crate::options;
use crate::problem::Problems;
use crate::raw::RawOptions;
use crate::resolve::{check_together, flags};
use crate::restrictions::Restrictions;
use crate::serve::kernel_flags;
use crate::settings::{AccessTimes, MountFlags};
use crate::world::World;
use fsstack_control::Client;
use fsstack_control::api::{Assignment, SettingsRequest};
use fsstack_control::registry::{self, RegistryBranch};
use fsstack_pool::{BranchSpec, Printable, parse_source};
use fsstack_sys::mounts::{self, MountInfo};
use std::ffi::OsStr;
use std::path::Path;

/// Options in the mount table that kernel and daemon negotiate.
const OF_THE_KERNEL: [&str; 5] = ["fd", "rootmode", "user_id", "group_id", "blksize"];

/// True if a remount is requested.
pub(crate) fn is_asked_for(typed: &Invocation) -> bool {
    let mut problems = Problems::default();
    typed.lists.iter().flat_map(|list| words_of(list, &mut problems)).any(|(name, _)| name == "remount")
}

/// Changes the pool at the target; returns notices for the user.
pub(crate) fn remount(typed: &Invocation, world: &World) -> Result<Vec<String>, Problems> {
    let mut problems = Problems::default();
    let mut notices = Vec::new();
    let shown = Printable::os(&typed.target).to_string();
    let (raw, assignments) = read(typed, &mut problems);
    let pool = std::fs::canonicalize(&typed.target).ok().and_then(|target| {
        let listed = |registry: &Path| {
            registry::read(registry)
                .into_iter()
                .rfind(|pool| pool.mount_point() == target)
                .map(|pool| pool.id)
        };
        let (registry, id) = world.registries().find_map(|at| Some((at, listed(at)?)))?;
        Some((target, registry, id))
    });
    let Some((target, registry, id)) = pool else {
        problems.mount(format!("remount of {shown}: no pool is mounted there; mount it first"));
        return Err(problems);
    };
    if !problems.is_empty() {
        return Err(problems);
    }
    if typed.fake {
        return Ok(notices);
    }
    let client = Client::new(registry::socket_of(registry, &id));
    let mut request = SettingsRequest { changes: assignments, remount: true, ..SettingsRequest::default() };
    // The daemon checks first and changes last: the kernel may refuse the flags, `ro` while a file is open for writing.
    let mut change = |dry_run| {
        request.dry_run = dry_run;
        client.change(&request).map_err(|error| error.to_string())
    };
    let changed = change(true).and_then(|_| {
        // Read now: the daemon has listed its branches anew.
        let pool = registry::read(registry).into_iter().find(|pool| pool.id == id);
        let branches = pool.map(|pool| pool.branches).unwrap_or_default();
        let kept = set_flags(&target, &raw, &branches, world)
            .map_err(|why| format!("remount of {shown}: {why}; nothing is changed"))?;
        let left_out = branches_left_out(&typed.source, &branches, &shown);
        Ok((change(false)?.notes, [kept, left_out].concat()))
    });
    match changed {
        Ok((notes, kept)) => {
            notices.extend(notes);
            notices.extend(kept);
            Ok(notices)
        }
        Err(why) => {
            problems.mount(why);
            Err(problems)
        }
    }
}

/// Parses the options: those for the daemon, and all of them for the flags.
fn read(typed: &Invocation, problems: &mut Problems) -> (RawOptions, Vec<Assignment>) {
    let mut words: Vec<_> = typed.lists.iter().flat_map(|list| words_of(list, problems)).collect();
    words.retain(|(name, _)| !OF_THE_KERNEL.contains(&name.as_str()));
    let raw = gather_words(&words, typed.sloppy, problems);
    check_together(raw.clone(), problems);
    words.retain(|(name, _)| options::is_of_the_pool(name));
    // Flags that the daemon acts on, from the config file too.
    let mut flag = |name: &str| words.push((name.to_owned(), None));
    flag(if raw.flags.synchronous { "sync" } else { "async" });
    if raw.flags.synchronous_directories {
        flag("dirsync");
    }
    let assignments = words.into_iter().map(|(key, value)| Assignment {
        key,
        value: value.map(|value| value.to_string_lossy().into_owned()),
    });
    (raw, assignments.collect())
}

/// Changes the mount's flags if they differ. Restrictions of branches stay, and while a branch is away all that the mount has: they
/// may be the branch's. Returns notices of those.
fn set_flags(
    target: &Path,
    raw: &RawOptions,
    branches: &[RegistryBranch],
    world: &World,
) -> Result<Vec<String>, String> {
    let mut wanted = flags(raw, world);
    let table = mounts::list().map_err(|error| error.to_string())?;
    let held = table.iter().rfind(|mount| mount.mount_point == target).map(held_flags);
    let (mut kept, mut notices) = (Restrictions::default(), Vec::new());
    for branch in branches {
        match (Restrictions::of_branch(branch, &table), held) {
            (Some(own), _) => own.put_on(&mut wanted),
            (None, None) => {}
            (None, Some(held)) => {
                kept = Restrictions::held(&held);
                let lifted = kept.beyond(&wanted);
                if !lifted.is_none() {
                    let (target, branch) = (Printable::path(target), branch.path());
                    let branch = Printable::path(&branch);
                    notices.push(format!(
                        "{target}: stays {lifted}, as branch {branch} is not at its path now; remount it when the branch is back"
                    ));
                }
            }
        }
    }
    kept.put_on(&mut wanted);
    if held != Some(wanted) {
        mounts::remount(target, kernel_flags(&wanted)).map_err(|error| error.to_string())?;
    }
    Ok(notices)
}

/// Notices branches of SOURCE that the pool does not have: a remount adds none.
fn branches_left_out(source: &OsStr, branches: &[RegistryBranch], pool: &str) -> Vec<String> {
    let is_one = |path: &Path| branches.iter().any(|branch| branch.path() == path);
    let lacks = |spec: &BranchSpec| {
        // Another source than a list of branches is in the mount table, with `fsname=`. A branch that is known is not asked.
        spec.pattern().is_none()
            && spec.path.is_absolute()
            && !is_one(&spec.path)
            && !std::fs::canonicalize(&spec.path).is_ok_and(|path| is_one(&path))
    };
    let notice = |spec: BranchSpec| {
        let branch = Printable::path(&spec.path);
        format!(
            "branch {branch}: SOURCE names it, and the pool does not have it: fsstack branch add {pool} {branch} adds it"
        )
    };
    parse_source(source).unwrap_or_default().into_iter().filter(lacks).map(notice).collect()
}

pub(crate) fn held_flags(mount: &MountInfo) -> MountFlags {
    let has = |word: &str| {
        mount.options.split(',').chain(mount.super_options.split(',')).any(|option| option == word)
    };
    let access_times = if has("noatime") {
        AccessTimes::Never
    } else if has("relatime") {
        AccessTimes::Relative
    } else {
        AccessTimes::Strict
    };
    MountFlags {
        read_only: has("ro"),
        access_times,
        directory_access_times: !has("nodiratime"),
        suid: !has("nosuid"),
        devices: !has("nodev"),
        execute: !has("noexec"),
        synchronous: has("sync"),
        synchronous_directories: has("dirsync"),
    }
}
