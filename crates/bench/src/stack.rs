//! CPU time and context switches of every process in a stack, by program.
//!
//! CPU time is that of the process's CPU clock: nanoseconds, with ended threads, one call a process. Context switches are
//! read from files of each thread, outside of the time between the samples of the clocks.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::serving::Server;

/// Name of the bench's own process in results.
pub(crate) const OWN: &str = "fsstack-bench";

/// Name for kernel threads and other programs in results.
pub(crate) const REST: &str = "rest of the machine";

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
    processes: Vec<(&'static str, ProcessUse)>,
    machine_ticks: u64,
    at: Instant,
    /// Time that reading the clocks took.
    took: Duration,
}

#[derive(Clone, Debug, Default)]
struct ProcessUse {
    /// `None` if it has ended.
    cpu: Option<Duration>,
    /// Context switches by thread: voluntary and not.
    switches: BTreeMap<u32, (u64, u64)>,
}

/// Resources used between two samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// By program, the bench first; nothing if the window is too short for the clocks.
    pub(crate) used: Vec<Used>,
    /// CPU seconds of the whole machine, in ticks of 10 ms.
    pub(crate) machine_cpu_seconds: f64,
    pub(crate) seconds: f64,
}

impl Window {
    /// Two windows as one; of programs nothing if one of them tells nothing.
    pub(crate) fn and(mut self, other: Self) -> Self {
        if self.used.is_empty() || other.used.is_empty() {
            self.used.clear();
        }
        for used in other.used.iter().filter(|_| !self.used.is_empty()).cloned().collect::<Vec<_>>() {
            match self.used.iter_mut().find(|mine| mine.program == used.program) {
                Some(mine) => mine.add(&used),
                None => self.used.push(used),
            }
        }
        self.machine_cpu_seconds += other.machine_cpu_seconds;
        self.seconds += other.seconds;
        self
    }
}

/// A window must be so many times as long as reading the clocks takes.
const LEAST_WINDOW: u32 = 20;

impl Stack {
    /// Makes a stack of the bench and `servers`.
    pub(crate) fn of(servers: Vec<Server>) -> Self {
        Self { processes: [vec![(std::process::id(), OWN)], servers].concat() }
    }

    /// Takes a sample before a measurement: our own clock last, because reading costs CPU time of ours.
    pub(crate) fn sample_before(&self) -> Sample {
        let switches: Vec<_> = self.processes.iter().map(|(pid, _)| switches(*pid)).collect();
        let machine_ticks = machine_ticks();
        let began = Instant::now();
        let mut clocks: Vec<_> = self.processes.iter().rev().map(|(pid, _)| cpu(*pid)).collect();
        clocks.reverse();
        let at = Instant::now();
        self.sampled(clocks, switches, machine_ticks, (at, at.duration_since(began)))
    }

    /// Takes a sample after a measurement: our own clock first.
    pub(crate) fn sample(&self) -> Sample {
        let at = Instant::now();
        let clocks = self.processes.iter().map(|(pid, _)| cpu(*pid)).collect();
        let took = at.elapsed();
        let machine_ticks = machine_ticks();
        let switches = self.processes.iter().map(|(pid, _)| switches(*pid)).collect();
        self.sampled(clocks, switches, machine_ticks, (at, took))
    }

    fn sampled(
        &self,
        clocks: Vec<Option<Duration>>,
        switches: Vec<BTreeMap<u32, (u64, u64)>>,
        machine_ticks: u64,
        (at, took): (Instant, Duration),
    ) -> Sample {
        let each = clocks.into_iter().zip(switches).map(|(cpu, switches)| ProcessUse { cpu, switches });
        let processes = self.processes.iter().map(|(_, name)| *name).zip(each).collect();
        Sample { processes, machine_ticks, at, took }
    }
}

impl Sample {
    /// Differences to the `later` sample.
    pub(crate) fn until(&self, later: &Self) -> Window {
        let window = later.at.saturating_duration_since(self.at);
        let machine_cpu_seconds = seconds(later.machine_ticks.saturating_sub(self.machine_ticks));
        let told = self.took.max(later.took) * LEAST_WINDOW <= window;
        let used = if told { self.used_until(later) } else { Vec::new() };
        Window { used, machine_cpu_seconds, seconds: window.as_secs_f64() }
    }

    fn used_until(&self, later: &Self) -> Vec<Used> {
        let mut used: Vec<Used> = Vec::new();
        for ((name, before), (_, after)) in self.processes.iter().zip(&later.processes) {
            let one = before.until(after, name);
            match used.iter_mut().find(|entry| entry.program == *name) {
                Some(entry) => {
                    let processes = entry.processes + 1;
                    entry.add(&one);
                    entry.processes = processes;
                }
                None => used.push(one),
            }
        }
        // A program without CPU time is not part of this stack.
        used.retain(|entry| entry.program == OWN || 0.0 < entry.cpu_seconds);
        used
    }
}

impl ProcessUse {
    fn until(&self, after: &Self, program: &str) -> Used {
        let (mut voluntary_switches, mut involuntary_switches) = (0, 0);
        for (tid, now) in &after.switches {
            let then = self.switches.get(tid).copied().unwrap_or_default();
            voluntary_switches += now.0.saturating_sub(then.0);
            involuntary_switches += now.1.saturating_sub(then.1);
        }
        let cpu = self.cpu.zip(after.cpu).map(|(before, after)| after.saturating_sub(before));
        let (program, cpu_seconds) = (program.to_owned(), cpu.unwrap_or_default().as_secs_f64());
        Used { program, processes: 1, cpu_seconds, voluntary_switches, involuntary_switches }
    }
}

fn cpu(pid: u32) -> Option<Duration> {
    fsstack_sys::process::cpu_time(i32::try_from(pid).ok()?).ok()
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

/// Context switches of each thread: voluntary and not.
fn switches(pid: u32) -> BTreeMap<u32, (u64, u64)> {
    let of = |tid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        let line = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name));
            found.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
        };
        (tid, (line("voluntary_ctxt_switches:"), line("nonvoluntary_ctxt_switches:")))
    };
    numbers(&format!("/proc/{pid}/task")).into_iter().map(of).collect()
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
        let Window { used, machine_cpu_seconds, seconds } = before.until(&stack.sample());
        let own = used.iter().find(|u| u.program == OWN).unwrap();
        assert!(0.0 < own.cpu_seconds && own.processes == 1, "{used:?}");
        assert!(1 <= own.voluntary_switches);
        assert!(0.0 <= machine_cpu_seconds && 0.06 <= seconds);
    }

    #[test]
    fn a_window_that_is_shorter_than_its_clocks_tells_nothing() {
        let at = Instant::now();
        let sample = |after: u64, cpu: u64| Sample {
            processes: vec![(
                OWN,
                ProcessUse { cpu: Some(Duration::from_micros(cpu)), ..ProcessUse::default() },
            )],
            machine_ticks: 0,
            at: at + Duration::from_micros(after),
            took: Duration::from_micros(10),
        };
        let before = sample(0, 100);
        assert_eq!(before.until(&sample(150, 130)).used, []);
        let used = before.until(&sample(400, 130)).used;
        assert!((used[0].cpu_seconds - 30e-6).abs() < 1e-12, "{used:?}");
        let gone = Sample { processes: vec![(OWN, ProcessUse::default())], ..sample(400, 0) };
        assert_eq!(before.until(&gone).used[0].cpu_seconds, 0.0);
    }
}
