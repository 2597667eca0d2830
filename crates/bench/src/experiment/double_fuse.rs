//! The cost of a second FUSE layer: `dd` of zeros in blocks of 1 MiB, and reads, through GlusterFS alone and through a union
//! file system on top of it.

use std::num::NonZeroU32;

use anyhow::Result;

use super::{Content, Extent, point};
use crate::bar::Limit;
use crate::copying::{self, BULK};
use crate::plan::Plan;
use crate::published::Published;
use crate::record::{Figure, Results, Summary, WorkloadShape};
use crate::target::Target;
use crate::test_bed::{Kinds, Lab, TestBed};
use crate::workload::{Bytes, Cache, Data, Engine, Op, Sync, Timed, Workload};

const FIGURE: &str = "double-fuse";
const COPY: &str = "copy";
const SOURCE: &str = "GlusterFS and mhddfs write speed, 4 February 2012 (seeds/glusterfs-plus-mhddfs.txt)";

pub(super) fn content(extent: Extent) -> Content {
    let size = Bytes(extent.pick(32 << 20, 1000 << 20));
    let figure = |name: &str, title: &str, unit: &str| Figure {
        name: name.to_owned(),
        title: title.to_owned(),
        shape: WorkloadShape::Bars,
        x_label: String::new(),
        unit: unit.to_owned(),
    };
    let mut content = Content {
        title: "double-fuse: what a second FUSE layer costs",
        figures: vec![
            figure(FIGURE, "1 MiB writes and reads", "B/s"),
            figure(COPY, "Files copied in", "B/s"),
            figure("names", "Operations on names", "op/s"),
        ],
        cases: Vec::new(),
        published: published(),
        rounds: 6,
    };
    let base =
        Workload { file_size: size, data: Data::Zeros, timed: Timed::WholeFile, ..Workload::default() };
    let data = [
        ("write", Workload { op: Op::Write, ..base.clone() }),
        ("read", Workload { op: Op::Read, cache: Cache::Cold, ..base.clone() }),
    ];
    for (n, (name, workload)) in data.into_iter().enumerate() {
        content.case(FIGURE, name.to_owned(), (n as f64, name.to_owned()), workload);
    }
    // The amount of one file above, in several.
    let files = extent.pick(4, 10);
    let copied = Workload {
        engine: Engine::Copy,
        op: Op::Write,
        tasks: NonZeroU32::new(files).unwrap_or(NonZeroU32::MIN),
        file_size: Bytes(size.0 / u64::from(files)),
        sync: Sync::End,
        ..Workload::default()
    };
    content.case(COPY, COPY.to_owned(), (0.0, format!("{files} files of {}", copied.file_size)), copied);
    for (n, op) in [Op::Create, Op::Stat, Op::Open].into_iter().enumerate() {
        let workload = Workload {
            engine: Engine::Metadata,
            op,
            entries: extent.pick(100, 1000).try_into().unwrap_or(base.entries),
            cache: if op == Op::Create { Cache::Warm } else { Cache::Cold },
            ..Workload::default()
        };
        content.case("names", op.to_string(), (n as f64, op.to_string()), workload);
    }
    content
}

fn published() -> Vec<Published> {
    let series = |series: &str, points, relative| Published {
        figure: FIGURE.to_owned(),
        series: series.to_owned(),
        relative,
        points,
        source: SOURCE.to_owned(),
    };
    // Reads: 70 to 80 MB/s in every combination.
    let rates = |name: &str, write: f64| {
        series(name, vec![point(0.0, "write", write, write), point(1.0, "read", 70e6, 80e6)], false)
    };
    let write = |low: f64| vec![point(0.0, "write", low, low)];
    vec![
        series("mhddfs, remote", write(15.4 / 45.9), true),
        series("mhddfs, local", write(22.9 / 21.9), true),
        rates("direct 2012, remote", 45.9e6),
        rates("direct 2012, local", 21.9e6),
        rates("mhddfs 2012, remote", 15.4e6),
        rates("mhddfs 2012, local", 22.9e6),
    ]
}

/// With XFS, one branch suffices.
fn volumes(lab: &Lab) -> &'static [&'static str] {
    match lab.kind {
        Kinds::Gluster => &["dt8", "dt2dp4rd1"],
        Kinds::Xfs => &["dt8"],
    }
}

/// Maximum number of targets: each volume alone, with three write paths of ours, and with two rivals.
pub(super) fn targets(lab: &Lab) -> usize {
    lab.count(volumes(lab)) * 6
}

/// The bars of the project: what passes calls through costs next to nothing, and what copies costs little.
pub(super) fn bars(plan: &mut Plan) {
    let cases = [("write", "writes"), ("read", "reads")];
    plan.add_rate_bars("passthrough", &cases, 0.97);
    plan.add_rate_bars("stacked", &cases, 0.85);
    for target in plan.of_role("passthrough") {
        for (case, name) in cases {
            let limit = Limit::CpuPartAtMost { program: "fsstack", part: 0.01 };
            plan.add_bar(&format!("CPU of {name}"), case, &target, limit);
        }
    }
}

/// Each volume by itself, and through each union file system stacked on a directory of it.
pub(super) fn test_bed(lab: &Lab, plan: &mut Plan) -> Result<TestBed> {
    let mut test_bed = TestBed::default();
    let mut add = |group: &str, dir: &std::path::Path| -> Result<()> {
        plan.targets.push(Target { name: format!("{group}direct"), dir: dir.to_owned() });
        for path in ["passthrough", "stacked"] {
            let options = format!("write-path={path},minfreespace=1M");
            plan.targets.push(test_bed.pool(&format!("{group}{path}"), &[dir], &options)?);
        }
        let (bulk, pool) = (format!("{group}{BULK}"), plan.targets.last().map(|target| target.dir.clone()));
        match (copying::operator(), pool) {
            (Ok(_), Some(dir)) => plan.targets.push(Target { name: bulk, dir }),
            (Err(why), _) => plan.skipped.push(super::skipped(&bulk, why)),
            (Ok(_), None) => {}
        }
        for (name, mounted) in test_bed.rivals(group, &[dir])? {
            match mounted {
                Ok(target) => plan.targets.push(target),
                Err(why) => plan.skipped.push(super::skipped(&name, why)),
            }
        }
        Ok(())
    };
    let parts = lab.parts(volumes(lab))?;
    let single = parts.dirs.len() == 1;
    for (name, dir) in &parts.dirs {
        add(&if single { String::new() } else { format!("{name}.") }, dir)?;
    }
    plan.notes.extend(parts.notes.clone());
    plan.bears.extend(parts.bears.clone());
    plan.disks = Some(parts.disks.clone());
    test_bed.keep(parts);
    Ok(test_bed)
}

/// Ratio of mhddfs's writes, here and as published.
pub(super) fn beside_mhddfs(results: &Results) -> Option<String> {
    let of = |s: &&Summary| s.case == "write" && s.target.rsplit('.').next() == Some("mhddfs");
    let ratio = results.summaries.iter().find(of)?.ratio?;
    Some(format!("mhddfs has {:.2} of the writes (published: 0.34 remote, 1.05 local).", ratio.value))
}

/// CPU use of a program as top(1) showed it, in percent of a CPU, for a remote client and on the server itself.
type PublishedUse = (&'static str, [f64; 2]);

/// The published tables of top(1): role of the target, MB/s remote and local, programs; both bricks together.
const USED: [(&str, [f64; 2], &[PublishedUse]); 2] = [
    ("direct", [45.9, 21.9], &[("glusterfs", [24.3, 103.8]), ("glusterfsd", [68.0, 194.5])]),
    (
        "mhddfs",
        [15.4, 22.9],
        &[("glusterfs", [106.7, 121.2]), ("glusterfsd", [42.8, 105.9]), ("mhddfs", [19.9, 16.6])],
    ),
];

/// CPU time of each program for a megabyte written, here and as published.
fn cpu_beside(results: &Results) -> Vec<String> {
    let of_role = |(role, rates, programs): &(&str, [f64; 2], &[PublishedUse])| {
        let of = |s: &&Summary| s.case == "write" && s.target.rsplit('.').next() == Some(role);
        let summary = results.summaries.iter().find(of)?;
        let beside = |(program, percent): &PublishedUse| {
            let here = summary.cpu.iter().find(|share| share.program == *program)?;
            // Percent of a CPU at MB/s: ten milliseconds each.
            let [remote, local] = [0, 1].map(|n| 10.0 * percent[n] / rates[n]);
            let here = 1e9 * here.cpus / summary.rate.median;
            Some(format!("{program} {here:.1} ms ({remote:.0} remote, {local:.0} local)"))
        };
        let all: Vec<String> = programs.iter().filter_map(beside).collect();
        let target = &summary.target;
        (!all.is_empty()).then(|| {
            format!("CPU time for each MB written to {target}, published in parentheses: {}.", all.join(", "))
        })
    };
    USED.iter().filter_map(of_role).collect()
}

/// The ratio that the project is judged by, with the published one.
pub(super) fn says(results: &Results) -> Vec<String> {
    let mut said = cpu_beside(results);
    for summary in results.summaries.iter().filter(|s| s.case == "write") {
        let Some(ratio) = summary.ratio else { continue };
        let role = summary.target.rsplit('.').next().unwrap_or_default();
        if ["passthrough", "mhddfs"].contains(&role) {
            said.push(format!(
                "The published mhddfs kept 0.34 of GlusterFS's write speed for a remote client and 1.05 on the server itself; here {} keeps {:.2} [{:.2}, {:.2}].",
                summary.target, ratio.value, ratio.low, ratio.high
            ));
        }
    }
    for summary in results.summaries.iter().filter(|s| s.case == COPY && s.target.ends_with(BULK)) {
        let pool = summary.target.replace(BULK, "stacked");
        let beside = results.summary(COPY, &pool).and_then(|s| s.ratio);
        if let (Some(ratio), Some(beside)) = (summary.ratio, beside) {
            said.push(format!(
                "A bulk copy by `fsstack copy` ({}) has {:.2} [{:.2}, {:.2}] of the rate of cp to the branch past the pool, as the publication's author did it; cp into {pool} {:.2} [{:.2}, {:.2}].",
                summary.target, ratio.value, ratio.low, ratio.high, beside.value, beside.low, beside.high
            ));
        }
    }
    said
}
