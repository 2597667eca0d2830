//! Activity of the branches' disks from /sys, which includes passthrough.

use fsstack_control::api::{BranchLoad, BranchStatus, DiskLoad};
use fsstack_sync::time::Instant;
use std::collections::HashMap;
use std::fs;

/// Unit of the counters in /sys, whatever the disk's sector size.
const SECTOR: u64 = 512;

/// Last counters of each branch's disk, with their time.
#[derive(Debug, Default)]
pub(super) struct Disks {
    before: HashMap<String, (Instant, Account)>,
    /// Counter file of each branch's disk; looked up once, as a branch may hang.
    files: HashMap<String, Option<String>>,
}

/// Counters of a disk since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    reads: u64,
    read_sectors: u64,
    read_ms: u64,
    writes: u64,
    written_sectors: u64,
    write_ms: u64,
    busy_ms: u64,
}

impl Disks {
    pub(super) fn look(&mut self, branches: &[BranchStatus]) -> Vec<BranchLoad> {
        let loads =
            branches.iter().map(|branch| BranchLoad { branch: branch.path.clone(), disk: self.load(branch) });
        loads.collect()
    }

    fn load(&mut self, branch: &BranchStatus) -> Option<DiskLoad> {
        let path = &branch.path;
        let file = self
            .files
            .entry(path.clone())
            .or_insert_with(|| if branch.local { account_of(path) } else { None });
        let now = (Instant::now(), parse(&fs::read_to_string(file.as_deref()?).ok()?)?);
        let before = self.before.insert(path.clone(), now);
        Some(before.map_or_else(DiskLoad::default, |before| between(before, now)))
    }
}

/// Finds the counter file of the disk that `path` is on.
fn account_of(path: &str) -> Option<String> {
    let stat = rustix::fs::stat(path).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let file = format!("/sys/dev/block/{major}:{minor}/stat");
    fs::exists(&file).is_ok_and(|there| there).then_some(file)
}

fn parse(text: &str) -> Option<Account> {
    let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    let [reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, _, busy_ms, ..] =
        fields.as_slice()
    else {
        return None;
    };
    Some(Account {
        reads: *reads,
        read_sectors: *read_sectors,
        read_ms: *read_ms,
        writes: *writes,
        written_sectors: *written_sectors,
        write_ms: *write_ms,
        busy_ms: *busy_ms,
    })
}

fn between((began, from): (Instant, Account), (ended, to): (Instant, Account)) -> DiskLoad {
    let seconds = ended.duration_since(began).as_secs_f64().max(1e-3);
    let of = |field: fn(&Account) -> u64| to_float(field(&to).saturating_sub(field(&from)));
    let (reads, writes) = (of(|a| a.reads), of(|a| a.writes));
    let calls = reads + writes;
    let waited_ms = of(|a| a.read_ms) + of(|a| a.write_ms);
    DiskLoad {
        read_bytes: of(|a| a.read_sectors) * to_float(SECTOR) / seconds,
        written_bytes: of(|a| a.written_sectors) * to_float(SECTOR) / seconds,
        reads: reads / seconds,
        writes: writes / seconds,
        latency_us: (0.5 < calls).then(|| waited_ms * 1000.0 / calls),
        busy: (of(|a| a.busy_ms) / 1000.0 / seconds).min(1.0),
    }
}

/// Exact below 2^53, which no count per second reaches.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn to_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rates_are_a_second_s() {
        let from = parse("10 0 100 5 0 0 0 0 0 50 55 0 0 0 0 0 0").unwrap();
        let to = parse("30 0 2148 25 20 0 4096 60 0 1050 85").unwrap();
        let began = Instant::now();
        let load = between((began, from), (began + Duration::from_secs(2), to));
        assert_eq!((load.reads, load.writes), (10.0, 10.0));
        assert_eq!((load.read_bytes, load.written_bytes), (524_288.0, 1_048_576.0));
        assert_eq!((load.latency_us, load.busy), (Some(2000.0), 0.5));
    }

    #[test]
    fn a_quiet_disk_has_no_latency() {
        let now = (Instant::now(), Account::default());
        assert_eq!(between(now, now).latency_us, None);
        assert_eq!(parse("1 2 3"), None);
    }
}
