//! Scheduling group of the process under the cpu controller, and whether other processes share it.
//!
//! The cpu controller belongs to the unified hierarchy (cgroup v2) or has one of its own (v1). Below its root it makes
//! scheduling groups, and autogroup has no effect there. Members are read once, although processes come and go later.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::mounts::{self, MountInfo};

/// The process's group of the cpu controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuGroup {
    /// The root group, where autogroup gives each session a group of its own.
    Root,
    /// A group of this process alone, or shared only with a mount helper and mount(8) that wait for it to be ready.
    Own,
    /// A group with other processes in it or below it, or with members that cannot be read.
    Shared,
}

impl CpuGroup {
    /// Returns the current group of the calling process.
    pub fn of_process() -> Self {
        // Group names may be any bytes.
        let Ok(table) = std::fs::read("/proc/self/cgroup") else { return Self::Root };
        let Some(cgroup_path) = CgroupPath::parse(&String::from_utf8_lossy(&table)) else {
            return Self::Root;
        };
        // Without the mount table no group directory can be found.
        match cgroup_path.found(&mounts::list().unwrap_or_default(), sees_all()) {
            Found::Root => Self::Root,
            Found::Unseen => Self::Shared,
            Found::At(dir) => {
                let own = companions();
                if only_these(&dir, &own).unwrap_or(false) { Self::Own } else { Self::Shared }
            }
        }
    }
}

/// Entry of `/proc/self/cgroup` for the cpu controller.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CgroupPath {
    /// The cpu controller has a hierarchy of its own.
    separate: bool,
    /// Path from the root that the process sees.
    path: PathBuf,
}

/// Result of looking for the group's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Root,
    /// Its directory.
    At(PathBuf),
    /// It lies outside the part of the hierarchy that the process sees.
    Unseen,
}

impl CgroupPath {
    fn parse(table: &str) -> Option<Self> {
        let lines = table.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?, PathBuf::from(fields.next()?)))
        });
        let (separate, unified): (Vec<_>, Vec<_>) = lines
            .filter(|(controllers, _)| controllers.is_empty() || has_word(controllers, "cpu"))
            .partition(|(controllers, _)| !controllers.is_empty());
        // A controller is in one hierarchy only.
        let unified = unified.into_iter().next().map(|(_, path)| Self { separate: false, path });
        separate.into_iter().next().map(|(_, path)| Self { separate: true, path }).or(unified)
    }

    /// Finds the group's directory. `sees_all`: no cgroup namespace hides a part of the hierarchy.
    fn found(&self, mounts: &[MountInfo], sees_all: bool) -> Found {
        // A later mount covers earlier ones.
        let Some((top, below)) = mounts.iter().rev().find_map(|mount| self.under(mount)) else {
            return if sees_all && self.path == Path::new("/") { Found::Root } else { Found::Unseen };
        };
        if self.separate {
            let at_root = below.as_os_str().is_empty() && top.join("release_agent").exists();
            return if at_root { Found::Root } else { Found::At(top.join(below)) };
        }
        // Nearest group with the cpu controller enabled; groups below it have no weight of their own.
        let weighed =
            below.ancestors().map(|part| top.join(part)).find(|dir| dir.join("cpu.weight").exists());
        match weighed {
            Some(dir) => Found::At(dir),
            // Every group but the root of the whole hierarchy has this file.
            None if top.join("cgroup.events").exists() => Found::Unseen,
            None => Found::Root,
        }
    }

    /// Mount point of the hierarchy and path of the group below it, if `mount` is such a mount and contains the group.
    fn under(&self, mount: &MountInfo) -> Option<(PathBuf, PathBuf)> {
        let hierarchy = if self.separate {
            mount.fs_type == "cgroup" && has_word(&mount.super_options, "cpu")
        } else {
            mount.fs_type == "cgroup2"
        };
        let below = self.path.strip_prefix(&mount.root).ok().filter(|_| hierarchy)?;
        let is_below = below.components().all(|part| matches!(part, Component::Normal(_)));
        is_below.then(|| (mount.mount_point.clone(), below.to_owned()))
    }
}

/// True if the process is in the first cgroup namespace, or the kernel has none.
fn sees_all() -> bool {
    /// Link of the first cgroup namespace (`PROC_CGROUP_INIT_INO` in include/linux/proc_ns.h).
    const FIRST: &str = "cgroup:[4026531835]";
    let namespace = std::fs::read_link("/proc/self/ns/cgroup");
    namespace.map_or(true, |namespace| namespace == Path::new(FIRST))
}

/// True if no process but `these` is in the group at `dir` or in one below it.
fn only_these(dir: &Path, these: &[u32]) -> io::Result<bool> {
    let listed = std::fs::read_to_string(dir.join("cgroup.procs"))?;
    // A process outside this PID namespace is listed as 0.
    if !listed.split_whitespace().all(|pid| pid.parse().is_ok_and(|pid| these.contains(&pid))) {
        return Ok(false);
    }
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && !only_these(&entry.path(), these)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// This process and those that only wait for it: the mount helper that it was forked from, and the mount(8) that
/// started the helper.
fn companions() -> Vec<u32> {
    let own = std::process::id();
    let mut found = vec![own];
    let program = std::fs::read_link("/proc/self/exe").ok();
    let mut next = parent(own);
    while let Some(pid) = next.filter(|pid| 1 < *pid) {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let same = program.is_some() && std::fs::read_link(format!("/proc/{pid}/exe")).ok() == program;
        if !same && name.trim_end() != "mount" {
            break;
        }
        found.push(pid);
        next = parent(pid);
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name in parentheses may contain anything, so fields count from the last parenthesis.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn has_word(list: &str, word: &str) -> bool {
    list.split(',').any(|one| one == word)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn cgroup_path(separate: bool, path: &str) -> CgroupPath {
        CgroupPath { separate, path: path.into() }
    }

    /// Makes a directory tree with these files, each with its content.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    /// A mount of the hierarchy's directory `root` at `at`.
    fn mounted(root: &str, at: &Path, kind: &str, options: &str) -> Vec<MountInfo> {
        let line = format!("1 0 0:1 {root} {} rw - {kind} {kind} {options}\n", at.display());
        let others = "7 0 0:7 / /proc rw - proc proc rw\n8 0 0:8 / /c rw - cgroup cgroup rw,cpuacct\n";
        mounts::parse(format!("{others}{line}").as_bytes()).unwrap()
    }

    #[test]
    fn the_line_of_the_cpu_controller_counts() {
        assert_eq!(
            CgroupPath::parse("0::/system.slice/pool.service\n"),
            Some(cgroup_path(false, "/system.slice/pool.service"))
        );
        let hybrid = "4:memory:/m\n3:cpu,cpuacct:/a:b\n1:name=systemd:/s\n0::/u\n";
        assert_eq!(CgroupPath::parse(hybrid), Some(cgroup_path(true, "/a:b")));
        // cpuacct and cpuset are other controllers.
        assert_eq!(CgroupPath::parse("2:cpuacct:/a\n3:cpuset:/b\n0::/u\n"), Some(cgroup_path(false, "/u")));
        assert_eq!(CgroupPath::parse("2:cpuacct:/a\n"), None);
        assert_eq!(CgroupPath::parse(""), None);
        assert_eq!(CgroupPath::parse("nonsense\n\n:\n0:"), None);
    }

    #[test]
    fn the_nearest_group_with_a_weight_counts() {
        let top = tree(&[
            ("cgroup.procs", ""),
            ("on/cpu.weight", "100"),
            ("on/off/deep/cgroup.procs", ""),
            ("no/deep/cgroup.procs", ""),
        ]);
        let mounts = mounted("/", top.path(), "cgroup2", "rw");
        let found = |path: &str| cgroup_path(false, path).found(&mounts, true);
        assert_eq!(found("/on"), Found::At(top.path().join("on")));
        assert_eq!(found("/on/off/deep"), Found::At(top.path().join("on")));
        assert_eq!(found("/no/deep"), Found::Root);
        assert_eq!(found("/"), Found::Root);
        // Above the root of this process's namespace.
        assert_eq!(found("/../other"), Found::Unseen);
        assert_eq!(cgroup_path(true, "/on").found(&mounts, true), Found::Unseen);
    }

    #[test]
    fn a_containers_root_is_not_the_root_of_all() {
        // The group has a weight, or one of its ancestors may have.
        let weighed = tree(&[("cgroup.events", ""), ("cpu.weight", "100")]);
        let mounts = mounted("/", weighed.path(), "cgroup2", "rw");
        assert_eq!(cgroup_path(false, "/").found(&mounts, true), Found::At(weighed.path().to_owned()));
        let plain = tree(&[("cgroup.events", "")]);
        let mounts = mounted("/", plain.path(), "cgroup2", "rw");
        assert_eq!(cgroup_path(false, "/").found(&mounts, true), Found::Unseen);
        // A bind mount of a part of the hierarchy, as in containers without a cgroup namespace.
        let part = tree(&[("cgroup.events", ""), ("in/cpu.weight", "100")]);
        let mounts = mounted("/docker/c1", part.path(), "cgroup2", "rw");
        assert_eq!(
            cgroup_path(false, "/docker/c1/in").found(&mounts, true),
            Found::At(part.path().join("in"))
        );
        assert_eq!(cgroup_path(false, "/docker/c2").found(&mounts, true), Found::Unseen);
    }

    #[test]
    fn the_controllers_own_hierarchy_has_a_group_a_directory() {
        let top = tree(&[("release_agent", ""), ("a/cgroup.procs", "")]);
        let mounts = mounted("/", top.path(), "cgroup", "rw,cpu,cpuacct");
        assert_eq!(cgroup_path(true, "/").found(&mounts, true), Found::Root);
        assert_eq!(cgroup_path(true, "/a").found(&mounts, true), Found::At(top.path().join("a")));
        let inside = tree(&[("cgroup.procs", "")]);
        let mounts = mounted("/", inside.path(), "cgroup", "rw,cpu");
        assert_eq!(cgroup_path(true, "/").found(&mounts, true), Found::At(inside.path().to_owned()));
    }

    #[test]
    fn where_nothing_is_mounted_only_the_root_is_known() {
        assert_eq!(cgroup_path(true, "/").found(&[], true), Found::Root);
        assert_eq!(cgroup_path(false, "/").found(&[], true), Found::Root);
        assert_eq!(cgroup_path(false, "/somewhere").found(&[], true), Found::Unseen);
        // A cgroup namespace has its own root.
        assert_eq!(cgroup_path(false, "/").found(&[], false), Found::Unseen);
    }

    #[test]
    fn other_processes_in_the_group_or_below_count() {
        let alone = tree(&[("cgroup.procs", "7\n9\n"), ("sub/cgroup.procs", "")]);
        assert!(only_these(alone.path(), &[7, 9, 11]).unwrap());
        assert!(!only_these(alone.path(), &[7]).unwrap());
        let below = tree(&[("cgroup.procs", "7\n"), ("sub/cgroup.procs", "8\n")]);
        assert!(!only_these(below.path(), &[7]).unwrap());
        let outside = tree(&[("cgroup.procs", "0\n7\n")]);
        assert!(!only_these(outside.path(), &[7]).unwrap());
        // A group whose members cannot be read.
        assert!(only_these(tree(&[]).path(), &[7]).is_err());
    }

    #[test]
    fn the_process_that_ran_this_test_is_no_companion() {
        let own = std::process::id();
        assert_eq!(companions(), [own]);
        assert!(parent(own).is_some());
        // Any answer will do.
        let _ = CpuGroup::of_process();
    }
}
