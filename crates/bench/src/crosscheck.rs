//! `crosscheck`: the same work by fio, on the same file, in turn, and the ratio of the rates.
//!
//! fio gets what would otherwise differ: aligned buffers, no scrambling of what it writes, no dropped caches, and threads.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fsstack_lab::needs;
use fsstack_lab::shell::{command, which};

use crate::arguments::CrossCheck;
use crate::machine;
use crate::measure::Bench;
use crate::report::{prepare, rate};
use crate::stack::Stack;
use crate::stats::{FEWEST_ROUNDS, Ratio, median, paired_ratio};
use crate::task::file_of;
use crate::workload::{Bytes, Engine, Op, Pattern, Workload};

/// Operations on names have no second program.
const NAMES: &str = "Operations on names: not checked, because mdtest is in no package of Debian 12.";

/// One piece of work, and how near the two programs have to come.
struct Check {
    name: &'static str,
    workload: Workload,
    /// Greatest difference, as a part.
    within: f64,
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
    let fio = fio()?;
    let place = given.target.take()?;
    let mut all = Vec::new();
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
    Ok(all.len() == 5 && all.iter().all(|rates| rates.failed.is_none()))
}

/// fio's version; installed first if that is possible.
fn fio() -> Result<String> {
    if which("fio").is_none() {
        let able = needs::root().is_ok() && which("apt-get").is_some();
        ensure!(able, "fio is not installed: `apt-get install fio`, as root");
        eprintln!("fio is not installed: installing the package fio");
        let apt =
            || command("apt-get").env("DEBIAN_FRONTEND", "noninteractive").limit(Duration::from_secs(600));
        apt().args(["update", "-qq"]).run().context("fio is not installed, and apt-get update failed")?;
        apt().args(["install", "-y", "-qq", "fio"]).run().context("installing fio")?;
    }
    Ok(command("fio").arg("--version").limit(Duration::from_secs(10)).run()?.stdout.trim().to_owned())
}

fn checks(given: &CrossCheck) -> Vec<Check> {
    let (seconds, file_size) = (Some(given.seconds), given.file_size);
    let large = Workload { seconds, file_size, op: Op::Read, ..Workload::default() };
    let small = Workload { block: Bytes(4 << 10), pattern: Pattern::Random, ..large.clone() };
    let depth = std::num::NonZeroU32::MIN.saturating_add(31);
    let queue = Workload { engine: Engine::IoUring, direct: true, depth, ..small.clone() };
    let check = |name, within, workload| Check { name, workload, within };
    vec![
        check("rewrite 1 MiB", 0.03, Workload { op: Op::Rewrite, ..large.clone() }),
        check("read 1 MiB", 0.03, large),
        check("rewrite 4 KiB at random", 0.03, Workload { op: Op::Rewrite, ..small.clone() }),
        check("read 4 KiB at random", 0.03, small),
        check("read 4 KiB at random, O_DIRECT, queue 32", 0.05, queue),
    ]
}

fn of_check(check: Check, work: &Path, given: &CrossCheck, stop: &AtomicBool) -> Rates {
    let mut rates = Rates { check, pairs: Vec::new(), failed: None };
    let Rates { check: Check { workload, .. }, pairs, .. } = &mut rates;
    let bench = Bench { workload, work, seed: given.seed, stop, export: None, copied: None };
    let stack = Stack::of(Vec::new());
    let ours = || -> Result<f64> { Ok(bench.run(&stack)?.rate(workload.unit())) };
    let theirs = || by_fio(workload, &file_of(workload, 0, work));
    let measured = bench.lay_out().and_then(|()| {
        for round in 0..=given.rounds {
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            // The two take turns to be first, so that neither always follows the other.
            let (one, other) = if round % 2 == 0 {
                let one = ours()?;
                (one, theirs()?)
            } else {
                let other = theirs()?;
                (ours()?, other)
            };
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

/// Bytes a second of the same work by fio.
fn by_fio(workload: &Workload, file: &Path) -> Result<f64> {
    let how = match (workload.op, workload.pattern) {
        (Op::Read, Pattern::Random) => "randread",
        (Op::Read, _) => "read",
        (_, Pattern::Random) => "randwrite",
        _ => "write",
    };
    let engine = if workload.engine == Engine::IoUring { "io_uring" } else { "psync" };
    let seconds = workload.seconds.context("fio goes round")?;
    let run = command("fio")
        .args(["--name=crosscheck", "--thread", "--output-format=json", "--time_based", "--group_reporting"])
        .args(["--invalidate=0", "--iomem_align=4096", "--scramble_buffers=0", "--fallocate=none"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--rw={how}"))
        .arg(format!("--bs={}", workload.block.0))
        .arg(format!("--size={}", workload.file_size.0))
        .arg(format!("--runtime={:.0}ms", seconds * 1000.0))
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--iodepth={}", workload.depth))
        .arg(format!("--direct={}", u8::from(workload.direct)));
    let done = run.limit(Duration::from_secs_f64(seconds + 120.0)).run().context("fio")?;
    of_output(&done.stdout, if workload.op == Op::Read { "read" } else { "write" })
}

/// The rate in fio's output, which may begin with notes.
fn of_output(text: &str, direction: &str) -> Result<f64> {
    let json = text.find('{').map_or("", |begin| &text[begin..]);
    let value: serde_json::Value = serde_json::from_str(json).context("reading fio's output")?;
    let rate = value["jobs"][0][direction]["bw_bytes"].as_f64();
    rate.filter(|rate| 0.0 < *rate).with_context(|| format!("fio tells no rate for {direction}"))
}

/// The result as Markdown.
fn described(given: &CrossCheck, fio: &str, all: &[Rates]) -> String {
    let machine = machine::machine();
    let (fs_type, ..) = machine::mount_of(&given.target.dir).unwrap_or_default();
    let mut text = format!(
        "fsstack-bench at {} beside {fio}: {} on {fs_type}, {} rounds of {} s in turn, file of {}, {}, {} CPUs, load {} after.\n\n",
        machine::COMMIT.get(..12).unwrap_or(machine::COMMIT),
        given.target.name,
        given.rounds,
        given.seconds,
        given.file_size,
        machine.kernel,
        machine.cpus,
        machine.load
    );
    text += "| work | fsstack-bench | fio | ratio | within |\n|---|---:|---:|---:|---|\n";
    for Rates { check, pairs, failed } in all {
        let middle = |of: fn(&(f64, f64)) -> f64| median(&pairs.iter().map(of).collect::<Vec<_>>());
        let shown = |value: f64| if value.is_nan() { "-".to_owned() } else { rate(value, "B/s") };
        let (ours, theirs) = (shown(middle(|pair| pair.0)), shown(middle(|pair| pair.1)));
        let (ratio, word) = match (failed, paired_ratio(pairs)) {
            (Some(why), _) => ("-".to_owned(), format!("not measured: {}", why.replace('|', "\\|"))),
            (None, None) => ("-".to_owned(), "no rounds".to_owned()),
            (None, Some(r)) => (
                format!("{:.2} [{:.2}, {:.2}]", r.value, r.low, r.high),
                format!("{:.0} %: {}", check.within * 100.0, near(&r, check.within, pairs.len())),
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
    fn the_rate_is_found_in_what_fio_prints() {
        let text =
            "fio: a note\n{\"jobs\": [{\"read\": {\"bw_bytes\": 123456}, \"write\": {\"bw_bytes\": 0}}]}";
        assert_eq!(of_output(text, "read").unwrap(), 123_456.0);
        assert!(of_output(text, "write").unwrap_err().to_string().contains("no rate"));
        assert!(of_output("", "read").is_err());
    }

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
