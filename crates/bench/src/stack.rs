//! CPU time and context switches of every process in a stack, by program.
//!
//! Nanoseconds come from each thread's `schedstat`. If a thread ended meanwhile, which would lose its share, or the
//! kernel lacks such statistics, the process's `stat` is used: it includes ended threads, in ticks of 10 ms.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

use crate::serving::Server;

/// Name of the bench's own process in results.
pub(crate) const OWN: &str = "fsstack-bench";

/// Resources that one program used during a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Used {
    pub(crate) program: String,
    /// Processes of that name.
    pub(crate) processes: u32,
    pub(crate) cpu_seconds: f64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
}

impl Used {
    /// Adds what the same program used in another pass.
    pub(crate) fn add(&mut self, other: &Self) {
        self.processes = self.processes.max(other.processes);
        self.cpu_seconds += other.cpu_seconds;
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
    }
}

/// The measured processes.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    processes: Vec<Server>,
}

/// Resources used by all of them at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    processes: Vec<(u32, &'static str, Process)>,
    machine_ticks: u64,
}

#[derive(Clone, Debug, Default)]
struct Process {
    ticks: u64,
    /// By thread.
    threads: BTreeMap<u32, Thread>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    nanoseconds: Option<u64>,
    voluntary: u64,
    involuntary: u64,
}

impl Stack {
    /// Makes a stack of the bench and `servers`.
    pub(crate) fn of(servers: Vec<Server>) -> Self {
        Self { processes: [vec![(std::process::id(), OWN)], servers].concat() }
    }

    /// Takes a sample before a measurement: the others first, because reading them costs CPU time of ours.
    pub(crate) fn sample_before(&self) -> Sample {
        let mut sample = self.sample();
        if let Some((pid, _, ours)) = sample.processes.first_mut() {
            *ours = process(*pid);
        }
        sample
    }

    /// Takes a sample after a measurement: ourselves first.
    pub(crate) fn sample(&self) -> Sample {
        let processes = self.processes.iter().map(|&(pid, name)| (pid, name, process(pid))).collect();
        Sample { processes, machine_ticks: machine_ticks() }
    }
}

impl Sample {
    /// Differences to the `later` sample: by program, the bench first, and of the whole machine in seconds.
    pub(crate) fn until(&self, later: &Self) -> (Vec<Used>, f64) {
        let mut used: Vec<Used> = Vec::new();
        for ((_, name, before), (_, _, after)) in self.processes.iter().zip(&later.processes) {
            let (cpu, voluntary, involuntary) = before.until(after);
            let entry = match used.iter_mut().find(|entry| entry.program == *name) {
                Some(entry) => entry,
                None => {
                    let empty = Used {
                        program: (*name).to_owned(),
                        processes: 0,
                        cpu_seconds: 0.0,
                        voluntary_switches: 0,
                        involuntary_switches: 0,
                    };
                    used.push(empty);
                    let last = used.len() - 1;
                    &mut used[last]
                }
            };
            entry.processes += 1;
            entry.cpu_seconds += cpu;
            entry.voluntary_switches += voluntary;
            entry.involuntary_switches += involuntary;
        }
        // A program without CPU time is not part of this stack.
        used.retain(|entry| entry.program == OWN || 0.0 < entry.cpu_seconds);
        (used, seconds(later.machine_ticks.saturating_sub(self.machine_ticks)))
    }
}

impl Process {
    fn until(&self, after: &Self) -> (f64, u64, u64) {
        let (mut nanoseconds, mut voluntary, mut involuntary) = (0, 0, 0);
        let ended = self.threads.keys().any(|tid| !after.threads.contains_key(tid));
        let mut exact = !ended && !after.threads.is_empty();
        for (tid, now) in &after.threads {
            let then = self.threads.get(tid).copied().unwrap_or_default();
            match now.nanoseconds {
                Some(ran) => nanoseconds += ran.saturating_sub(then.nanoseconds.unwrap_or(0)),
                None => exact = false,
            }
            voluntary += now.voluntary.saturating_sub(then.voluntary);
            involuntary += now.involuntary.saturating_sub(then.involuntary);
        }
        let by_thread = nanoseconds as f64 / 1e9;
        let by_ticks = seconds(after.ticks.saturating_sub(self.ticks));
        (if exact { by_thread } else { by_thread.max(by_ticks) }, voluntary, involuntary)
    }
}

/// CPU seconds of ended child processes.
pub(crate) fn children_seconds() -> f64 {
    seconds(stat_fields("self", [13, 14]).iter().sum())
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64
}

/// The numbers among the names of a directory of /proc.
fn numbers(dir: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Fields of a process's stat, counted from the first after its name.
fn stat_fields<const N: usize>(pid: &str, which: [usize; N]) -> [u64; N] {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything, so fields count from its end.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    which.map(|n| fields.get(n).and_then(|field| field.parse().ok()).unwrap_or(0))
}

fn process(pid: u32) -> Process {
    let tasks = numbers(&format!("/proc/{pid}/task"));
    Process {
        ticks: stat_fields(&pid.to_string(), [11, 12]).iter().sum(),
        threads: tasks.into_iter().map(|tid| (tid, thread(pid, tid))).collect(),
    }
}

fn thread(pid: u32, tid: u32) -> Thread {
    let of = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}")).unwrap_or_default();
    let status = of("status");
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        found.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    };
    Thread {
        nanoseconds: of("schedstat").split_whitespace().next().and_then(|n| n.parse().ok()),
        voluntary: line("voluntary_ctxt_switches:"),
        involuntary: line("nonvoluntary_ctxt_switches:"),
    }
}

/// Ticks in which any CPU was busy.
fn machine_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map(|n| n.parse().unwrap_or(0)).collect();
    // user nice system, then idle and iowait, then irq softirq steal; guest time is part of user.
    [0, 1, 2, 5, 6, 7].iter().filter_map(|&n: &usize| ticks.get(n)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_work_is_counted() {
        let stack = Stack::of(Vec::new());
        let before = stack.sample();
        let began = std::time::Instant::now();
        let mut sum = 0_u64;
        while began.elapsed().as_millis() < 60 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        let (used, machine) = before.until(&stack.sample());
        let own = used.iter().find(|u| u.program == OWN).unwrap();
        assert!(0.0 < own.cpu_seconds && own.processes == 1, "{used:?}");
        assert!(1 <= own.voluntary_switches);
        assert!(0.0 <= machine);
    }

    #[test]
    fn a_thread_that_ended_is_counted_by_ticks() {
        let thread = |ns| Thread { nanoseconds: Some(ns), ..Thread::default() };
        let before = Process { ticks: 100, threads: [(1, thread(10)), (2, thread(0))].into() };
        let after = Process { ticks: 150, threads: [(1, thread(1_000_000_010))].into() };
        assert_eq!(before.until(&after).0, 1.0);
        let after = Process { ticks: 150 + 400, ..after };
        assert!(4.0 <= before.until(&after).0);
    }
}
