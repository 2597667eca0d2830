//! File systems and RAID below a branch: bonnie++'s tests (write, rewrite, read, random reads), with one task and four
//! in step, and data that compresses or not; and bonnie++ itself.

use std::num::NonZeroU32;

use anyhow::Result;
use fsstack_lab::MiB;

use super::{Content, Extent, point, skipped};
use crate::bonnie::{self, NAMES_UNIT, PROGRAM, Test};
use crate::plan::Plan;
use crate::published::Published;
use crate::record::{Figure, Results, WorkloadShape};
use crate::test_bed::{Lab, TestBed, room};
use crate::workload::{Bytes, Cache, Data, Engine, Files, Op, Pattern, Sync, Workload};

const SOURCE: &str = "Hardware RAID5 and ZFS raidz, 25 November 2013 (seeds/raidz-vs-hardware-raid5.txt)";

pub(super) fn content(extent: Extent) -> Content {
    let mut content = Content {
        title: "raid-compare: what lies under a branch",
        figures: Vec::new(),
        cases: Vec::new(),
        published: published(),
        rounds: 6,
    };
    // The published files were ten times the memory; here caches are dropped, and writes end with fsync.
    let size = extent.pick(64_u64 << 20, 80 << 30);
    for tasks in [1_u32, 4] {
        for data in [Data::Compressible, Data::Incompressible] {
            let name = format!("{data}-{tasks}");
            let title = format!("{data} data, {tasks} {}", if tasks == 1 { "task" } else { "tasks" });
            let (x_label, unit) = (String::new(), "B/s".to_owned());
            content.figures.push(Figure {
                name: name.clone(),
                title,
                shape: WorkloadShape::Bars,
                x_label,
                unit,
            });
            let base = Workload {
                data,
                tasks: NonZeroU32::new(tasks).unwrap_or(NonZeroU32::MIN),
                file_size: Bytes(size / u64::from(tasks)),
                ..Workload::default()
            };
            let seeks = Workload {
                pattern: Pattern::Random,
                block: Bytes(8 << 10),
                file_size: Bytes(extent.pick(8_u64 << 20, 1 << 30)),
                ..base.clone()
            };
            let cases = [
                ("write", Workload { op: Op::Write, sync: Sync::End, ..base.clone() }),
                ("rewrite", Workload { op: Op::Rewrite, sync: Sync::End, ..base.clone() }),
                ("read", Workload { op: Op::Read, cache: Cache::Cold, ..base.clone() }),
                ("random read", Workload { op: Op::Read, cache: Cache::Cold, ..seeks.clone() }),
                ("random write", Workload { op: Op::Rewrite, sync: Sync::End, ..seeks.clone() }),
                // `bonnie++ -b` syncs each write too: caches keep nothing back.
                ("write, each synced", Workload { pattern: Pattern::Sequential, sync: Sync::Each, ..seeks }),
            ];
            for (n, (what, workload)) in cases.into_iter().enumerate() {
                content.case(
                    &name,
                    format!("{what}, {data}, {tasks}"),
                    (n as f64, what.to_owned()),
                    workload,
                );
            }
        }
    }
    names(&mut content, extent);
    by_bonnie(&mut content, extent);
    content
}

/// Files made, looked at and removed, as by `bonnie++ -n`.
fn names(content: &mut Content, extent: Extent) {
    content.figures.push(Figure {
        name: "names".to_owned(),
        title: "Create, stat, remove: files in one directory".to_owned(),
        shape: WorkloadShape::Bars,
        x_label: String::new(),
        unit: "op/s".to_owned(),
    });
    for (n, tasks) in [1_u32, 4].into_iter().enumerate() {
        let label = format!("{tasks} {}", if tasks == 1 { "task" } else { "tasks" });
        let workload = Workload {
            engine: Engine::Metadata,
            op: Op::FileCycle,
            files: Files::Shared,
            tasks: NonZeroU32::new(tasks).unwrap_or(NonZeroU32::MIN),
            entries: NonZeroU32::new(extent.pick(250, 1024)).unwrap_or(NonZeroU32::MIN),
            ..Workload::default()
        };
        content.case("names", format!("names, {label}"), (n as f64, label), workload);
    }
}

/// bonnie++ itself with the published options, one process and four in step.
fn by_bonnie(content: &mut Content, extent: Extent) {
    let size = extent.pick(BONNIE_QUICK, 80 << 30);
    for tasks in [1_u32, 4] {
        let who = if tasks == 1 { "1 process" } else { "4 processes" };
        // Four make them for minutes where each is synced to a real disk: a quick run leaves that out.
        let names = tasks == 1 || extent == Extent::Full;
        let tests = Test::ALL.into_iter().filter(|test| names || test.asked().0.moves_data());
        for (n, test) in tests.enumerate() {
            let (op, pattern) = test.asked();
            let workload = Workload {
                engine: Engine::Bonnie,
                op,
                pattern,
                block: Bytes(8 << 10),
                file_size: Bytes(size / u64::from(tasks)),
                tasks: NonZeroU32::new(tasks).unwrap_or(NonZeroU32::MIN),
                entries: NonZeroU32::new(if names { NAMES_UNIT } else { 1 }).unwrap_or(NonZeroU32::MIN),
                ..Workload::default()
            };
            let (figure, label) = match test {
                Test::Write | Test::Rewrite | Test::Read => {
                    (format!("bonnie-{tasks}"), test.word().to_owned())
                }
                Test::Seeks => ("bonnie-seeks".to_owned(), format!("seeks, {who}")),
                _ => ("bonnie-names".to_owned(), format!("{}, {who}", test.word())),
            };
            let name = format!("{PROGRAM} {}, {who}", test.word());
            content.case(&figure, name, (n as f64, label), workload);
        }
    }
    bonnie_figures(content);
}

/// Figures of bonnie++, with the options of their runs in the titles.
fn bonnie_figures(content: &mut Content) {
    let figures = [
        ("bonnie-1", "1 process", "B/s"),
        ("bonnie-4", "4 processes in step", "B/s"),
        ("bonnie-seeks", "seeks", "op/s"),
        ("bonnie-names", "1024 files a process", "op/s"),
    ];
    for (name, what, unit) in figures {
        let of = content.cases.iter().filter(|case| case.figure == name);
        let mut options: Vec<String> = of.map(|case| bonnie::options(&case.workload)).collect();
        options.dedup();
        content.figures.push(Figure {
            name: name.to_owned(),
            title: format!("{PROGRAM} {}, {what}", options.join(" and ")),
            shape: WorkloadShape::Bars,
            x_label: String::new(),
            unit: unit.to_owned(),
        });
    }
}

/// Bytes that bonnie++ writes in a quick run.
const BONNIE_QUICK: u64 = 256 << 20;

/// Leaves bonnie++ out where it is not installed, and says so.
pub(super) fn without_missing_program(plan: &mut Plan, installed: Result<(), String>) {
    if let Err(why) = installed {
        plan.cases.retain(|case| case.workload.engine != Engine::Bonnie);
        plan.figures.retain(|figure| !figure.name.starts_with("bonnie"));
        plan.published.retain(|series| !series.figure.starts_with("bonnie"));
        plan.skipped.push(skipped(PROGRAM, why));
    }
}

/// The publication gives its bars as pictures, and these in words: what compression did to raidz ("more than double",
/// "hardly anything", "nearly three times"), and that hardware RAID5 did as raidz ("hardly a difference").
fn published() -> Vec<Published> {
    let series = |figure: &str, series: &str, points: &[(f64, &str, f64)]| Published {
        figure: figure.to_owned(),
        series: series.to_owned(),
        relative: true,
        points: points.iter().map(|(x, label, ratio)| point(*x, label, *ratio, *ratio)).collect(),
        source: SOURCE.to_owned(),
    };
    vec![
        series("compressible-1", "lz4 to raidz", &[(0.0, "write", 2.0), (2.0, "read", 1.0)]),
        series("compressible-4", "lz4 to raidz", &[(0.0, "write", 3.0)]),
        series("compressible-1", "RAID5 to raidz", &[(0.0, "write", 1.0), (2.0, "read", 1.0)]),
        series("bonnie-1", "lz4 to raidz", &[(0.0, "write", 2.0), (2.0, "read", 1.0)]),
        series("bonnie-4", "lz4 to raidz", &[(0.0, "write", 3.0)]),
        series("bonnie-1", "RAID5 to raidz", &[(0.0, "write", 1.0), (2.0, "read", 1.0)]),
    ]
}

/// File systems that the lab makes: single disks, and four as one file system with parity, with and without compression.
pub(super) const KINDS: [&str; 6] =
    ["xfs", "ext4", "btrfs-raid5", "btrfs-raid5-zstd", "zfs-raidz", "zfs-raidz-lzjb"];

/// A file system of each available kind.
pub(super) fn test_bed(lab: &Lab, plan: &mut Plan) -> Result<TestBed> {
    let largest = |bonnie: bool| {
        let of = plan.cases.iter().filter(|case| (case.workload.engine == Engine::Bonnie) == bonnie);
        of.map(|case| case.workload.footprint()).max().unwrap_or(0)
    };
    let needed = largest(false).saturating_mul(KINDS.len() as u64).max(largest(true));
    room(needed)?;
    let mut test_bed = TestBed::default();
    // Each must hold everything, in case all share one disk. All images together are to fit into memory.
    for (name, made) in test_bed.disks(&KINDS, MiB(((needed / 2 * 3) >> 20).max(512)), lab.limit) {
        match made {
            Ok(target) => plan.targets.push(target),
            Err(why) => plan.skipped.push(skipped(&name, why)),
        }
    }
    test_bed.keep_memory(lab.hold_memory(&test_bed.about_disks)?);
    plan.disks = Some(test_bed.about_disks.clone());
    Ok(test_bed)
}

/// Effect of compression, compared with the published one.
pub(super) fn says(results: &Results) -> Vec<String> {
    let to = |case: &str, compressed: &str, plain: &str| {
        let rate = |name: &str| results.summary(case, name).map(|s| s.rate.median);
        Some(rate(compressed)? / rate(plain)?)
    };
    let pairs = [("zfs-raidz-lzjb", "zfs-raidz"), ("btrfs-raid5-zstd", "btrfs-raid5")];
    let sentence = |(compressed, plain): (&str, &str)| {
        let writes = |data: &str, tasks: u32| to(&format!("write, {data}, {tasks}"), compressed, plain);
        Some(format!(
            "Compression: {compressed} writes data that compresses {:.2} times as fast as {plain} with one task and {:.2} times with four (published, lz4 and raidz: more \
             than 2, nearly 3), and data that does not compress {:.2} times. It saves transfers to disks: where these are files in memory, it only costs.",
            writes("compressible", 1)?,
            writes("compressible", 4)?,
            writes("incompressible", 1)?,
        ))
    };
    let by_bonnie = |(compressed, plain): (&str, &str)| {
        let writes = |who: &str| to(&format!("{PROGRAM} write, {who}"), compressed, plain);
        let parts = [("1 process", "2"), ("4 processes", "3")];
        let parts = parts.map(|(who, published)| {
            Some(format!("{who} {:.2} times (published, lz4 and raidz: {published})", writes(who)?))
        });
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| {
            format!(
                "By {PROGRAM} itself, whose data compresses, {compressed} writes beside {plain}: {}.",
                parts.join(", ")
            )
        })
    };
    let synced = |kind: &&str| {
        let rate = |case: &str| results.summary(case, kind).map(|s| s.rate.median);
        let parts = [1, 4].map(|tasks| {
            let case = |what: &str| format!("{what}, incompressible, {tasks}");
            Some(rate(&case("write, each synced"))? / rate(&case("write"))?)
        });
        let [one, four] = parts;
        Some(format!(
            "Write-through: {kind} writes blocks of 8 KiB, each synced, at {:.3} of the rate of 1 MiB synced at the end, with four tasks {:.3} (published: write-back is faster).",
            one?, four?
        ))
    };
    let bonnie = pairs.into_iter().filter_map(by_bonnie);
    pairs.into_iter().filter_map(sentence).chain(bonnie).chain(KINDS.iter().filter_map(synced)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_have_the_options_of_their_runs() {
        let titles = |extent| {
            let figures = content(extent).figures.into_iter().map(|figure| figure.title);
            figures.filter(|title| title.starts_with(PROGRAM)).collect::<Vec<_>>()
        };
        let quick = [
            "bonnie++ -f -b -n 1, 1 process",
            "bonnie++ -f -b -n 0, 4 processes in step",
            "bonnie++ -f -b -n 1 and -f -b -n 0, seeks",
            "bonnie++ -f -b -n 1, 1024 files a process",
        ];
        assert_eq!(titles(Extent::Quick), quick);
        assert!(titles(Extent::Full).iter().all(|title| title.starts_with("bonnie++ -f -b -n 1, ")));
    }

    #[test]
    fn a_missing_program_leaves_its_cases_out_with_the_command_that_installs_it() {
        let Content { figures, cases, published, .. } = content(Extent::Quick);
        let mut plan = Plan { figures, cases, published, ..Plan::default() };
        let all = (plan.figures.len(), plan.cases.len(), plan.published.len());
        without_missing_program(&mut plan, Ok(()));
        assert_eq!((plan.figures.len(), plan.cases.len(), plan.published.len()), all);
        assert!(plan.cases.iter().all(|case| plan.figures.iter().any(|figure| figure.name == case.figure)));
        without_missing_program(&mut plan, Err("it is not installed: `apt-get install bonnie++`".into()));
        assert_eq!((plan.figures.len(), plan.cases.len(), plan.published.len()), (all.0 - 4, all.1 - 11, 3));
        assert_eq!(plan.skipped, [skipped(PROGRAM, "it is not installed: `apt-get install bonnie++`")]);
    }
}
