//! The general survey of a comparison of Lustre and GPFS: by tasks, file size, block size, order, names, sharing.

use std::num::NonZeroU32;

use anyhow::Result;

use super::{Content, Extent, count_step, point, size_step};
use crate::plan::Plan;
use crate::published::{Point, Published};
use crate::record::{Case, Figure, Results, WorkloadShape};
use crate::target::Target;
use crate::test_bed::{Lab, TestBed};
use crate::workload::{Bytes, Cache, Engine, Files, Op, Pattern, Workload};

/// Cases with a bar, and its name: names over four volumes.
pub(super) const BARS: &[(&str, &str)] = &[("create", "creates"), ("stat", "stats"), ("open", "opens")];

const SOURCE: &str =
    "I/O performance of cluster file systems, ISBN 978-89-6211-031-9 (seeds/lustre-gpfs-io-report.txt)";

pub(super) fn content(extent: Extent, memory: Option<Bytes>) -> Content {
    let mut content = Content {
        title: "cluster-io: the general survey",
        figures: Vec::new(),
        cases: Vec::new(),
        published: published(),
        rounds: 6,
    };
    // Published: twice the client's memory, to defeat its cache. Here caches are dropped before each read.
    let size = extent.pick(32 << 20, 2 << 30);
    let base = Workload { file_size: Bytes(size), ..Workload::default() };
    by_tasks(&mut content, extent, &base);
    by_size(&mut content, extent, memory, &base);
    by_block(&mut content, extent, &base);
    by_pattern(&mut content, &base);
    by_sharing(&mut content, &base);
    by_names(&mut content, extent);
    by_call(&mut content, extent);
    content
}

fn tasks(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

fn tasks_of(count: u32) -> String {
    format!("{count} {}", if count == 1 { "task" } else { "tasks" })
}

/// The write and the read of a workload; reads find nothing in caches.
fn both(base: &Workload) -> [Workload; 2] {
    let read = Workload { op: Op::Read, cache: Cache::Cold, ..base.clone() };
    [Workload { op: Op::Write, ..base.clone() }, read]
}

fn figure(content: &mut Content, name: &str, title: &str, shape: WorkloadShape, x_label: &str, unit: &str) {
    let (name, title) = (name.to_owned(), title.to_owned());
    content.figures.push(Figure { name, title, shape, x_label: x_label.to_owned(), unit: unit.to_owned() });
}

fn by_tasks(content: &mut Content, extent: Extent, base: &Workload) {
    for op in ["write", "read"] {
        figure(
            content,
            &format!("tasks-{op}"),
            &format!("By tasks, {op}"),
            WorkloadShape::Lines,
            "tasks",
            "B/s",
        );
    }
    // Each task does the same work, as published: 2 GB there.
    let each = Bytes(extent.pick(4 << 20, base.file_size.0));
    for &count in extent.pick(&[1, 4, 16, 60][..], &[1, 2, 4, 8, 16, 32, 60]) {
        for workload in both(&Workload { tasks: tasks(count), file_size: each, ..base.clone() }) {
            let (figure, name) =
                (format!("tasks-{}", workload.op), format!("{} by {}", workload.op, tasks_of(count)));
            content.case(&figure, name, count_step(count), workload);
        }
    }
}

fn by_size(content: &mut Content, extent: Extent, memory: Option<Bytes>, base: &Workload) {
    // This figure measures the cache: the file was read once before. Files that do not fit show its end.
    figure(content, "size-read", "By file size, read again", WorkloadShape::Lines, "file size", "B/s");
    let sizes = extent.pick(&[1_u64, 4, 16, 64][..], &[64, 128, 256, 512, 1024, 2048, 4096]);
    let around =
        |memory: Bytes| [8, 4, 2, 1].map(|part| (memory.0 >> 20) / part).into_iter().chain([memory.0 >> 19]);
    for mebibytes in memory.map_or_else(|| sizes.to_vec(), |memory| around(memory).collect()) {
        let workload = Workload { op: Op::Read, file_size: Bytes(mebibytes << 20), ..base.clone() };
        let x = size_step(mebibytes << 20);
        content.case("size-read", format!("read again, file of {}", x.1), x, workload);
    }
}

fn by_block(content: &mut Content, extent: Extent, base: &Workload) {
    for op in ["write", "read"] {
        figure(
            content,
            &format!("block-{op}"),
            &format!("By block size, {op}"),
            WorkloadShape::Lines,
            "block size",
            "B/s",
        );
    }
    for &kibibytes in extent.pick(&[4_u64, 64, 1024][..], &[4, 16, 64, 256, 1024, 4096, 16384]) {
        let size = base.file_size.0.min(extent.pick(16 << 20, u64::MAX)) & !((kibibytes << 10) - 1);
        for workload in
            both(&Workload { block: Bytes(kibibytes << 10), file_size: Bytes(size), ..base.clone() })
        {
            let x = size_step(kibibytes << 10);
            content.case(
                &format!("block-{}", workload.op),
                format!("{} in blocks of {}", workload.op, x.1),
                x,
                workload,
            );
        }
    }
}

fn by_pattern(content: &mut Content, base: &Workload) {
    figure(content, "pattern", "By access pattern", WorkloadShape::Bars, "", "B/s");
    for (n, pattern) in [Pattern::Sequential, Pattern::Random, Pattern::Strided].into_iter().enumerate() {
        for workload in both(&Workload { pattern, ..base.clone() }) {
            let name = format!("{} {pattern}", workload.op);
            content.case("pattern", name.clone(), (n as f64, name), workload);
        }
    }
}

fn by_sharing(content: &mut Content, base: &Workload) {
    figure(
        content,
        "sharing",
        "A file for each of 4 tasks, or one shared by all",
        WorkloadShape::Bars,
        "",
        "B/s",
    );
    let each = Bytes(base.file_size.0 / 4);
    for (n, files) in [Files::PerTask, Files::Shared].into_iter().enumerate() {
        for workload in both(&Workload { files, tasks: tasks(4), file_size: each, ..base.clone() }) {
            let name = format!("{} {files}", workload.op);
            content.case("sharing", name.clone(), (n as f64, name), workload);
        }
    }
}

fn by_names(content: &mut Content, extent: Extent) {
    for (files, place) in [(Files::Shared, "one directory"), (Files::PerTask, "a directory each")] {
        for (op, kind) in [(Op::FileCycle, "files"), (Op::DirCycle, "directories")] {
            let name = format!("names-{kind}-{files}");
            let title = format!("Create, stat, remove: {kind} in {place}");
            figure(content, &name, &title, WorkloadShape::Lines, "tasks", "op/s");
            for &count in extent.pick(&[1, 4][..], &[1, 2, 4, 8, 16, 32, 60]) {
                let workload = Workload {
                    engine: Engine::Metadata,
                    op,
                    files,
                    tasks: tasks(count),
                    // A directory is made on every brick of a volume.
                    entries: tasks(extent.pick(25, 100)),
                    ..Workload::default()
                };
                let case = format!("{kind} in {place}, {}", tasks_of(count));
                content.case(&name, case, count_step(count), workload);
            }
        }
    }
}

/// Beyond the survey: single calls, as made by a program that walks a tree.
fn by_call(content: &mut Content, extent: Extent) {
    figure(content, "calls", "Calls on names, 1 task", WorkloadShape::Bars, "", "op/s");
    for (n, op) in [Op::Create, Op::Stat, Op::Open].into_iter().enumerate() {
        let workload = Workload {
            engine: Engine::Metadata,
            op,
            entries: tasks(extent.pick(200, 1000)),
            // Names that were not just made are uncached.
            cache: if op == Op::Create { Cache::Warm } else { Cache::Cold },
            ..Workload::default()
        };
        content.case("calls", op.to_string(), (n as f64, op.to_string()), workload);
    }
}

/// Published figures given as text; the curves have no numbers.
fn published() -> Vec<Published> {
    let series = |figure: &str, series: &str, points: Vec<Point>| Published {
        figure: figure.to_owned(),
        series: series.to_owned(),
        relative: false,
        points,
        source: SOURCE.to_owned(),
    };
    let flat = |from: u32, to: u32, value: f64| {
        [from, to].map(|n| point(n.into(), &n.to_string(), value, value)).to_vec()
    };
    vec![
        series("tasks-write", "Lustre", flat(2, 60, 180e6)),
        series("tasks-read", "Lustre", flat(4, 60, 140e6)),
        series("tasks-write", "GPFS, its peak", flat(2, 2, 180e6)),
        series("tasks-read", "GPFS, its peak", flat(2, 2, 140e6)),
        series("names-directories-shared", "Lustre", flat(60, 60, 400.0)),
        series("names-files-shared", "Lustre", flat(60, 60, 300.0)),
        series("names-directories-shared", "GPFS", flat(60, 60, 50.0)),
        series("names-files-shared", "GPFS", flat(60, 60, 50.0)),
        series("names-directories-per-task", "GPFS", flat(60, 60, 8000.0)),
        series("names-files-per-task", "GPFS", flat(60, 60, 8000.0)),
        series("names-directories-per-task", "Lustre", flat(60, 60, 400.0)),
        series("names-files-per-task", "Lustre", flat(60, 60, 300.0)),
    ]
}

/// One volume directly, and a pool over four.
pub(super) fn test_bed(lab: &Lab, plan: &mut Plan) -> Result<TestBed> {
    let parts = lab.parts(&["dt2dp4rd1", "dt8", "dt4rp2", "dp8rd2"])?;
    let mut test_bed = TestBed::default();
    if let Some((_, dir)) = parts.dirs.first() {
        plan.targets.push(Target { name: "direct".to_owned(), dir: dir.clone() });
    }
    let all: Vec<_> = parts.dirs.iter().map(|(_, dir)| dir.as_path()).collect();
    plan.targets.push(test_bed.pool("pool", &all, "create=ff,minfreespace=1M")?);
    plan.notes.extend(parts.notes.clone());
    plan.disks = Some(parts.disks.clone());
    test_bed.keep(parts);
    Ok(test_bed)
}

/// Checks the published findings against our figures; a sentence or two per target.
pub(super) fn says(results: &Results) -> Vec<String> {
    results.contenders().filter_map(|target| says_of(results, &target.name)).collect()
}

fn says_of(results: &Results, name: &str) -> Option<String> {
    let rates = |figure: &str| rates_of(results, figure, name);
    let part = |of: &str, to: &str| {
        let median = |case: &str| results.summary(case, name).map(|s| s.rate.median);
        Some(median(of)? / median(to)?)
    };
    let peak =
        |figure: &str| rates(figure).into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(label, _)| label);
    let ends = |figure: &str| {
        let all = rates(figure);
        Some((all.first()?.1, all.last()?.1))
    };
    let small = |op: &str| ends(&format!("block-{op}")).map(|(small, large)| 100.0 * small / large);
    let apart = |kind: &str| {
        let last = |how: &str| ends(&format!("names-{kind}-{how}")).map(|(_, last)| last);
        Some(last("per-task")? / last("shared")?)
    };
    let again = rates("size-read");
    let fastest = again.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let cached = fastest / rates("pattern").iter().find(|(label, _)| label == "read sequential")?.1;
    let by_pattern = |op: &str| {
        let to = format!("{op} sequential");
        Some((part(&format!("{op} random"), &to)?, part(&format!("{op} strided"), &to)?))
    };
    let ((random_write, strided_write), (random_read, strided_read)) =
        (by_pattern("write")?, by_pattern("read")?);
    // The largest file does not fit into a limited memory.
    let beyond = results.machine.memory_limit_bytes.map(|limit| {
        let part = again.last().map_or(0.0, |(_, rate)| rate / fastest);
        format!(
            " A file of twice the memory ({}) is read again at {part:.2} of the best rate (published: cliffs at 700 and 500 MB, the clients' caches).",
            Bytes(limit)
        )
    });
    Some(format!(
        "{name}: most is written by {} and read by {} at a time (published: Lustre 2 and 4, GPFS 2 and 2). A file that is in the cache is read {cached:.1} times as \
         fast as one that is not (published: several times). In the smallest blocks it writes {:.0} % and reads {:.0} % of what it does in the largest \
         (published: Lustre falls, GPFS does not). Random and strided, to sequential: writes {random_write:.2} and {strided_write:.2}, reads {random_read:.2} and {strided_read:.2} \
         (published: writes alike, reads lower). A directory for each task makes files {:.1} and directories {:.1} times as fast as one for all (published, with 60 tasks: Lustre 1, GPFS 160).{}",
        peak("tasks-write")?,
        peak("tasks-read")?,
        small("write")?,
        small("read")?,
        apart("files")?,
        apart("directories")?,
        beyond.unwrap_or_default(),
    ))
}

/// The cases of a figure by their labels, with what the target has in them.
fn rates_of(results: &Results, figure: &str, target: &str) -> Vec<(String, f64)> {
    let rate = |case: &Case| Some((case.x_label.clone(), results.summary(&case.name, target)?.rate.median));
    results.cases_of(figure).filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_sizes_lie_around_a_limited_memory() {
        let sizes = |memory| {
            let content = content(Extent::Quick, memory);
            let cases = content.cases.iter().filter(|case| case.figure == "size-read");
            cases.map(|case| case.x_label.clone()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(None), ["1 MiB", "4 MiB", "16 MiB", "64 MiB"]);
        assert_eq!(sizes(Some(Bytes(512 << 20))), ["64 MiB", "128 MiB", "256 MiB", "512 MiB", "1 GiB"]);
    }
}
