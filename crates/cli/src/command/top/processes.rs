//! Processes of the stack and the CPU that each uses: this pool's daemon, the servers of the FUSE file systems that its
//! branches are on (a GlusterFS client), and local servers of the network file systems that they are on.

use fsstack_control::api::{BranchStatus, ProcessLoad};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::mounts::{self, MountInfo};
use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Server programs of network file systems, by mount type.
const SERVERS: [(&str, &[&str]); 7] = [
    ("fuse.glusterfs", &["glusterfsd", "glusterd"]),
    ("nfs", &["nfsd", "ganesha.nfsd"]),
    ("nfs4", &["nfsd", "ganesha.nfsd"]),
    ("cifs", &["smbd"]),
    ("smb3", &["smbd"]),
    ("ceph", &["ceph-osd"]),
    ("fuse.ceph", &["ceph-osd"]),
];

/// Interval of searching for processes, which reads every descriptor of every process.
const PROCESS_SEARCH_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Processes {
    /// `None` in another PID namespace, where its number is that of another process.
    daemon: Option<u32>,
    /// Each with its role.
    known: Vec<(u32, &'static str)>,
    searched: Option<Instant>,
    /// CPU ticks of each process, with their time.
    before: HashMap<u32, (Instant, u64)>,
}

impl Processes {
    pub(super) fn of(daemon: Option<u32>) -> Self {
        Self { daemon, known: Vec::new(), searched: None, before: HashMap::new() }
    }

    /// Returns the pool's own daemon, then the others, busiest first.
    pub(super) fn look(&mut self, branches: &[BranchStatus]) -> Vec<ProcessLoad> {
        if self.searched.is_none_or(|then| PROCESS_SEARCH_INTERVAL <= then.elapsed()) {
            self.known = search(self.daemon, &mounts_of(branches));
            self.searched = Some(Instant::now());
        }
        let known = self.known.clone();
        let mut loads: Vec<ProcessLoad> =
            known.into_iter().filter_map(|(pid, role)| self.load(pid, role)).collect();
        let others = |load: &ProcessLoad| Some(load.pid) != self.daemon;
        loads.sort_by(|a, b| {
            others(a).cmp(&others(b)).then(b.cpus.total_cmp(&a.cpus)).then(a.pid.cmp(&b.pid))
        });
        loads
    }

    fn load(&mut self, pid: u32, role: &str) -> Option<ProcessLoad> {
        let (name, ticks, pages) = stat_of(pid)?;
        let now = Instant::now();
        let before = self.before.insert(pid, (now, ticks));
        let cpus = before.map_or(0.0, |(then, used)| {
            let seconds = now.duration_since(then).as_secs_f64().max(1e-3);
            let a_second = rustix::param::clock_ticks_per_second();
            to_float(ticks.saturating_sub(used)) / to_float(a_second) / seconds
        });
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        Some(ProcessLoad {
            pid,
            name,
            role: role.to_owned(),
            cpus,
            resident_bytes: pages.saturating_mul(page),
        })
    }
}

/// The mounts that the branches are on.
fn mounts_of(branches: &[BranchStatus]) -> Vec<MountInfo> {
    let table = mounts::list().unwrap_or_default();
    // Of two mounts at one path the later one is visible.
    let of = |branch: &BranchStatus| {
        let around = table.iter().filter(|mount| Path::new(&branch.path).starts_with(&mount.mount_point));
        around.max_by_key(|mount| mount.mount_point.as_os_str().len()).cloned()
    };
    branches.iter().filter_map(of).collect()
}

fn search(daemon: Option<u32>, below: &[MountInfo]) -> Vec<(u32, &'static str)> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let served = |kind: &str| below.iter().any(|mount| mount.fs_type == kind);
    let servers: Vec<&str> =
        SERVERS.iter().filter(|(kind, _)| served(kind)).flat_map(|(_, names)| *names).copied().collect();
    let role = |pid: u32| {
        if Some(pid) == daemon {
            Some("daemon")
        } else if below.iter().any(|mount| mount.is_fuse() && is_started_for(pid, &mount.mount_point))
            && serves_fuse(pid)
        {
            Some("fuse")
        } else {
            stat_of(pid).is_some_and(|(name, ..)| servers.contains(&name.as_str())).then_some("server")
        }
    };
    pids.filter_map(|pid| Some((pid, role(pid)?))).collect()
}

/// True if it was started for that mount point, by its arguments.
fn is_started_for(pid: u32, mount_point: &Path) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let wanted = mount_point.as_os_str().as_bytes();
    let ends = |word: &[u8]| {
        word == wanted || word.strip_suffix(wanted).is_some_and(|before| before.ends_with(b"="))
    };
    arguments.split(|byte| *byte == 0).any(ends)
}

/// True if it has the FUSE device open. Only root sees descriptors of other users' processes.
fn serves_fuse(pid: u32) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file == Path::new("/dev/fuse")))
}

/// Its name, the CPU ticks that it has used, and its resident pages.
fn stat_of(pid: u32) -> Option<(String, u64, u64)> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in parentheses may contain anything, so fields count from the last parenthesis.
fn parse(stat: &str) -> Option<(String, u64, u64)> {
    let (front, rest) = stat.rsplit_once(')')?;
    let (_, name) = front.split_once('(')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some((name.to_owned(), number(11)?.saturating_add(number(12)?), number(21)?))
}

/// Exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn to_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let stat =
            "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 1 0 100 9000 55 18446744073709551615";
        assert_eq!(parse(stat), Some(("a) b (c".to_owned(), 42, 55)));
        assert_eq!(parse("odd"), None);
    }

    #[test]
    fn this_process_is_found_as_the_daemon() {
        let me = std::process::id();
        let loads = Processes::of(Some(me)).look(&[]);
        let [load] = loads.as_slice() else { panic!("nobody serves a pool without branches: {loads:?}") };
        assert!(load.pid == me && load.role == "daemon" && load.resident_bytes > 0);
    }
}
