//! The processes of the stack and the CPU that each uses: this pool's daemon, whoever else serves a FUSE file system
//! (a GlusterFS client below us, a rival above), and servers of network file systems on this machine.

use fsstack_control::api::ProcessLoad;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Programs that serve network file systems.
const SERVERS: [&str; 6] = ["glusterfsd", "glusterd", "nfsd", "ganesha.nfsd", "smbd", "ceph-osd"];

/// How often it is looked who is in the stack: every descriptor of every process is.
const SEARCH_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Processes {
    daemon: u32,
    /// Each with its role.
    known: Vec<(u32, &'static str)>,
    searched: Option<Instant>,
    /// CPU ticks that each had used, and when that was.
    before: HashMap<u32, (Instant, u64)>,
}

impl Processes {
    pub(super) fn of(daemon: u32) -> Self {
        Self { daemon, known: Vec::new(), searched: None, before: HashMap::new() }
    }

    /// The busiest first.
    pub(super) fn look(&mut self) -> Vec<ProcessLoad> {
        if self.searched.is_none_or(|then| SEARCH_EVERY <= then.elapsed()) {
            self.known = search(self.daemon);
            self.searched = Some(Instant::now());
        }
        let known = self.known.clone();
        let mut loads: Vec<ProcessLoad> =
            known.into_iter().filter_map(|(pid, role)| self.load(pid, role)).collect();
        loads.sort_by(|a, b| b.cpus.total_cmp(&a.cpus).then(a.pid.cmp(&b.pid)));
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

fn search(daemon: u32) -> Vec<(u32, &'static str)> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let role = |pid: u32| {
        if pid == daemon {
            Some("daemon")
        } else if serves_fuse(pid) {
            Some("fuse")
        } else {
            stat_of(pid).is_some_and(|(name, ..)| SERVERS.contains(&name.as_str())).then_some("server")
        }
    };
    pids.filter_map(|pid| Some((pid, role(pid)?))).collect()
}

/// Whether it has the FUSE device open. What another user's process has open only root sees.
fn serves_fuse(pid: u32) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file == Path::new("/dev/fuse")))
}

/// Its name, the CPU ticks that it has used, and its resident pages.
fn stat_of(pid: u32) -> Option<(String, u64, u64)> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in parentheses may hold anything: count from the last one.
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
        let loads = Processes::of(me).look();
        assert!(loads.iter().any(|load| load.pid == me && load.role == "daemon" && load.resident_bytes > 0));
    }
}
