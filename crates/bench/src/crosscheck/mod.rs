//! `crosscheck`: the same work by fio, in turn, and the ratio of the rates.

mod fio;

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};

use crate::arguments::CrossCheck;
use crate::machine;
use crate::measure::Bench;
use crate::report::{prepare, rate};
use crate::stack::Stack;
use crate::stats::{FEWEST_ROUNDS, Ratio, median, paired_ratio};
use crate::target::with_dir;
use crate::task::file_of;
use crate::workload::{Bytes, Engine, Op, Pattern, Workload};

/// Remark on operations on names.
const NAMES: &str = "Operations on names: calls a second, by the mean time of a call. fio's time of `create` is that of open(2) alone, after a \
    stat(2) of each name, that of fsstack-bench is of open(2) and close(2): no bar.";

const NANOS_OF_A_SECOND: f64 = 1e9;

/// One piece of work, and how near the two programs have to come.
struct Check {
    name: &'static str,
    workload: Workload,
    /// Greatest difference, as a part. None: the two do not do quite the same.
    within: Option<f64>,
}

/// Rates of the rounds: ours, and fio's.
struct Rates {
    check: Check,
    pairs: Vec<(f64, f64)>,
    /// Why there are no more rounds.
    failed: Option<String>,
}

/// Runs the check and prints it. False if a case could not be done.
pub(crate) fn run(given: &CrossCheck, stop: &AtomicBool) -> Result<bool> {
    ensure!((0.05..=3600.0).contains(&given.seconds), "--seconds must lie between 0.05 and 3600");
    ensure!(0 < given.rounds, "no rounds: --rounds must be at least 1");
    given.out.as_deref().map(prepare).transpose()?;
    let checks = checks(given);
    checks.iter().try_for_each(|check| check.workload.check(check.name))?;
    given.target.check(2 * given.file_size.0)?;
    let fio = fio::version()?;
    let place = given.target.take()?;
    let (mut all, count) = (Vec::new(), checks.len());
    for check in checks {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        eprintln!("{}", check.name);
        all.push(of_check(check, place.work(), given, stop));
    }
    place.give_back().context("removing what was written")?;
    let text = described(given, &fio, &all);
    print!("{text}");
    if let Some(out) = &given.out {
        let file = out.join("crosscheck.md");
        fs::write(&file, &text).with_context(|| file.display().to_string())?;
    }
    Ok(all.len() == count && all.iter().all(|rates| rates.failed.is_none()))
}

fn checks(given: &CrossCheck) -> Vec<Check> {
    let (seconds, file_size) = (Some(given.seconds), given.file_size);
    let large = Workload { seconds, file_size, op: Op::Read, ..Workload::default() };
    let small = Workload { block: Bytes(4 << 10), pattern: Pattern::Random, ..large.clone() };
    let depth = NonZeroU32::MIN.saturating_add(31);
    let queue = Workload { engine: Engine::IoUring, direct: true, depth, ..small.clone() };
    let names = |op| Workload { engine: Engine::Metadata, entries: given.entries, op, ..Workload::default() };
    let check = |name, within, workload| Check { name, workload, within: Some(within) };
    vec![
        check("rewrite 1 MiB", 0.03, Workload { op: Op::Rewrite, ..large.clone() }),
        check("read 1 MiB", 0.03, large),
        check("rewrite 4 KiB at random", 0.03, Workload { op: Op::Rewrite, ..small.clone() }),
        check("read 4 KiB at random", 0.03, small),
        check("read 4 KiB at random, O_DIRECT, queue 32", 0.05, queue),
        Check { name: "create", workload: names(Op::Create), within: None },
        check("stat", 0.05, names(Op::Stat)),
        check("unlink", 0.05, names(Op::Unlink)),
    ]
}

fn of_check(check: Check, work: &Path, given: &CrossCheck, stop: &AtomicBool) -> Rates {
    let mut rates = Rates { check, pairs: Vec::new(), failed: None };
    let Rates { check: Check { workload, .. }, pairs, .. } = &mut rates;
    let bench = Bench { workload, work, seed: given.seed, stop, export: None, copied: None };
    let stack = Stack::of(Vec::new());
    let ours = || -> Result<f64> {
        if workload.engine != Engine::Metadata {
            return Ok(bench.run(&stack)?.rate(workload.unit()));
        }
        let dir = work.join("names");
        let bench = bench.within(&dir);
        let calls = with_dir(&dir, || bench.lay_out().and_then(|()| Ok(bench.run(&stack)?.latencies)))?;
        Ok(NANOS_OF_A_SECOND / calls.mean())
    };
    let theirs = || match workload.engine {
        Engine::Metadata => fio::calls(workload, work, stop),
        _ => fio::bytes(workload, &file_of(workload, 0, work), stop),
    };
    let laid_out = if workload.engine == Engine::Metadata { Ok(()) } else { bench.lay_out() };
    let measured = laid_out.and_then(|()| {
        for round in 0..=given.rounds {
            // The two take turns to be first, so that neither always follows the other.
            let (one, other) = if round % 2 == 0 {
                let one = ours()?;
                (one, theirs()?)
            } else {
                let other = theirs()?;
                (ours()?, other)
            };
            // What was interrupted has no rate.
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            // The first round is a warm-up.
            if 0 < round {
                pairs.push((one, other));
            }
        }
        Ok(())
    });
    let cleared = bench.clear();
    rates.failed =
        measured.and(cleared).err().map(|e| format!("{e:#}").lines().next().unwrap_or_default().to_owned());
    rates
}

/// The result as Markdown.
fn described(given: &CrossCheck, fio: &str, all: &[Rates]) -> String {
    let machine = machine::machine();
    let (fs_type, ..) = machine::mount_of(&given.target.dir).unwrap_or_default();
    let mut text = format!(
        "fsstack-bench at {} beside {fio}: {} on {fs_type}, {} rounds of {} s in turn, file of {}, {} names, {}, {} CPUs, load {} after.\n\n",
        machine::COMMIT.get(..12).unwrap_or(machine::COMMIT),
        given.target.name,
        given.rounds,
        given.seconds,
        given.file_size,
        given.entries,
        machine.kernel,
        machine.cpus,
        machine.load
    );
    text += "| work | fsstack-bench | fio | ratio | within |\n|---|---:|---:|---:|---|\n";
    for Rates { check, pairs, failed } in all {
        let middle = |of: fn(&(f64, f64)) -> f64| median(&pairs.iter().map(of).collect::<Vec<_>>());
        let unit = check.workload.unit();
        let shown = |value: f64| if value.is_nan() { "-".to_owned() } else { rate(value, unit) };
        let (ours, theirs) = (shown(middle(|pair| pair.0)), shown(middle(|pair| pair.1)));
        let (ratio, word) = match (failed, paired_ratio(pairs)) {
            (Some(why), _) => ("-".to_owned(), format!("not measured: {}", why.replace('|', "\\|"))),
            (None, None) => ("-".to_owned(), "no rounds".to_owned()),
            (None, Some(r)) => (
                format!("{:.2} [{:.2}, {:.2}]", r.value, r.low, r.high),
                check.within.map_or_else(
                    || "-".to_owned(),
                    |within| format!("{:.0} %: {}", within * 100.0, near(&r, within, pairs.len())),
                ),
            ),
        };
        text += &format!("| {} | {ours} | {theirs} | {ratio} | {word} |\n", check.name);
    }
    text + "\n" + NAMES + "\n"
}

/// Whether the two are that near.
fn near(ratio: &Ratio, within: f64, rounds: usize) -> &'static str {
    let (least, most) = (1.0 - within, 1.0 + within);
    match () {
        () if rounds < FEWEST_ROUNDS => "not decided",
        () if least <= ratio.low && ratio.high <= most => "met",
        () if ratio.high < least || most < ratio.low => "missed",
        () => "not decided",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_are_near_only_if_the_whole_interval_is() {
        let of = |low: f64, high: f64, rounds| {
            let pairs = [(low, 1.0), (high, 1.0)];
            near(&Ratio { low, high, ..paired_ratio(&pairs).unwrap() }, 0.03, rounds)
        };
        assert_eq!(of(0.98, 1.02, 6), "met");
        assert_eq!(of(0.80, 0.90, 6), "missed");
        assert_eq!((of(0.95, 1.02, 6), of(0.98, 1.02, 5)), ("not decided", "not decided"));
    }
}
