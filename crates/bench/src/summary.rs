//! Summaries of measurements: each case on each target over its rounds.

use hdrhistogram::Histogram;

use crate::bar::pairs;
use crate::record::{Case, CpuShare, Latency, Measurement, Results, Summary};
use crate::run::Latencies;
use crate::stack::{OWN, REST};
use crate::stats::{Spread, median, paired_ratio};

/// Minimum share of the stack's CPU time for a program to be listed.
const LEAST_PART: f64 = 0.0005;

/// Points of a latency curve, as fractions of all operations.
const CURVE: &[f64] = &[
    0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995,
    0.998, 0.999, 0.9995, 0.9999, 1.0,
];

/// A quantile is given only with so many observations beyond it.
const FEWEST_BEYOND: f64 = 10.0;

impl Latency {
    /// Quantiles of nanoseconds in a histogram.
    pub(crate) fn of(latencies: &Histogram<u64>) -> Self {
        let at = |q| latencies.value_at_quantile(q) as f64 / 1e3;
        let known = |q: f64| (FEWEST_BEYOND <= (1.0 - q) * latencies.len() as f64 + 1e-6).then(|| at(q));
        Self {
            mean: latencies.mean() / 1e3,
            p50: at(0.5),
            p99: known(0.99),
            p999: known(0.999),
            max: latencies.max() as f64 / 1e3,
        }
    }
}

/// Fills in the summaries.
pub(crate) fn summarise(results: &mut Results, latencies: &Latencies) {
    let mut summaries = Vec::new();
    for case in &results.cases {
        for target in &results.targets {
            summaries.extend(one(results, case, &target.name, latencies));
        }
    }
    results.summaries = summaries;
}

fn one(results: &Results, case: &Case, target: &str, latencies: &Latencies) -> Option<Summary> {
    let mine: Vec<&Measurement> =
        results.measurements.iter().filter(|m| m.case == case.name && m.target == target).collect();
    let rates: Vec<f64> = mine.iter().map(|m| m.rate).collect();
    let rate = Spread::of(&rates)?;
    let baseline = results.baseline_of(target);
    let ratio = baseline.and_then(|b| paired_ratio(&pairs(&results.measurements, &case.name, target, b)));
    let histogram = latencies.get(&(case.name.clone(), target.to_owned()))?;
    // A thousand operations have no 99.99th percentile.
    let check = |q: &&f64| **q == 1.0 || FEWEST_BEYOND <= (1.0 - **q) * histogram.len() as f64 + 1e-6;
    let curve =
        CURVE.iter().filter(check).map(|&q| (q, histogram.value_at_quantile(q) as f64 / 1e3)).collect();
    let skews: Vec<f64> = mine.iter().filter_map(|m| m.start_skew_us).collect();
    Some(Summary {
        case: case.name.clone(),
        target: target.to_owned(),
        unit: case.workload.unit().to_owned(),
        rate,
        ratio,
        seconds: median(&mine.iter().map(|m| m.seconds).collect::<Vec<_>>()),
        cold: mine.iter().filter_map(|m| m.cold).max(),
        latency_us: Latency::of(histogram),
        latency_curve: curve,
        start_skew_us: (!skews.is_empty()).then(|| median(&skews)),
        cpu_us_each: cpu_us_each(&mine, case.workload.op.moves_data()),
        cpu: cpu(&mine),
    })
}

/// CPU time of the whole stack for each MiB, or for each operation.
fn cpu_us_each(rounds: &[&Measurement], moves_data: bool) -> Option<f64> {
    let each = |m: &&Measurement| {
        let amount = if moves_data { m.bytes as f64 / 1_048_576.0 } else { m.ops as f64 };
        let all: f64 = m.used.iter().map(|used| used.cpu_seconds).sum();
        (0.0 < amount && !m.used.is_empty()).then(|| all * 1e6 / amount)
    };
    let all: Vec<f64> = rounds.iter().filter_map(each).collect();
    (!all.is_empty()).then(|| median(&all))
}

/// Rounds shorter than this tell nothing of the rest of the machine, whose time is known in ticks of 10 ms.
const LEAST_FOR_REST: f64 = 0.5;

/// Busy CPUs outside of the stack: kernel threads, other programs.
fn rest(rounds: &[&Measurement]) -> Option<CpuShare> {
    let of = |m: &&&Measurement| LEAST_FOR_REST <= m.sampled_seconds && !m.used.is_empty();
    let cpus = |m: &&Measurement| {
        let stack: f64 = m.used.iter().map(|used| used.cpu_seconds).sum();
        (m.machine_cpu_seconds - stack).max(0.0) / m.sampled_seconds
    };
    let all: Vec<f64> = rounds.iter().filter(of).map(cpus).collect();
    (!all.is_empty()).then(|| CpuShare {
        program: REST.to_owned(),
        cpus: median(&all),
        part: 0.0,
        switches: 0.0,
    })
}

/// Medians over rounds of each program's use, and of the rest of the machine.
fn cpu(rounds: &[&Measurement]) -> Vec<CpuShare> {
    // A round too short to tell CPU times has none.
    let rounds: Vec<&Measurement> = rounds.iter().copied().filter(|m| !m.used.is_empty()).collect();
    let mut programs: Vec<&str> = Vec::new();
    for used in rounds.iter().flat_map(|m| &m.used) {
        if !programs.contains(&used.program.as_str()) {
            programs.push(&used.program);
        }
    }
    let share = |program: &str| {
        let each =
            |of: &dyn Fn(&Measurement) -> f64| median(&rounds.iter().map(|m| of(m)).collect::<Vec<_>>());
        let used = |m: &Measurement| m.used.iter().find(|u| u.program == program).cloned();
        let seconds = |m: &Measurement| used(m).map_or(0.0, |u| u.cpu_seconds);
        // Older results have no such time.
        let window = |m: &Measurement| if 0.0 < m.sampled_seconds { m.sampled_seconds } else { m.seconds };
        let all = |m: &Measurement| m.used.iter().map(|u| u.cpu_seconds).sum::<f64>();
        let switches = |m: &Measurement| used(m).map_or(0, |u| u.voluntary_switches + u.involuntary_switches);
        CpuShare {
            program: program.to_owned(),
            cpus: each(&|m| seconds(m) / window(m).max(1e-9)),
            part: each(&|m| if 0.0 < all(m) { seconds(m) / all(m) } else { 0.0 }),
            switches: each(&|m| switches(m) as f64 / window(m).max(1e-9)),
        }
    };
    // Another mount's daemon that woke once is not part of this stack.
    let shares = programs.into_iter().map(share).filter(|s| s.program == OWN || LEAST_PART <= s.part);
    shares.chain(rest(&rounds)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Used;

    #[test]
    fn cpu_is_the_median_of_rounds_and_parts_are_of_the_stack() {
        let used = |program: &str, cpu_seconds| Used {
            program: program.to_owned(),
            processes: 1,
            cpu_seconds,
            voluntary_switches: 3,
            involuntary_switches: 1,
        };
        let round = |own, other| Measurement {
            machine_cpu_seconds: own + other + 1.0,
            ..Measurement::example(vec![used("own", own), used("other", other)])
        };
        let rounds = [round(1.0, 1.0), round(1.0, 3.0), round(1.0, 1.0)];
        let shares = cpu(&rounds.iter().collect::<Vec<_>>());
        assert_eq!((shares[0].cpus, shares[0].part, shares[0].switches), (0.5, 0.5, 2.0));
        assert_eq!(shares[1].program, "other");
        assert_eq!((shares[2].program.as_str(), shares[2].cpus), (REST, 0.5));
        // 2 s of CPU time for an operation.
        assert_eq!(cpu_us_each(&rounds.iter().collect::<Vec<_>>(), false), Some(2e6));
    }
}
