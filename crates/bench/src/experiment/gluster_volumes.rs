//! Which GlusterFS volume type? Files from 1 KiB to 512 MiB, one and eight at once, each written by one task.

use std::num::NonZeroU32;

use anyhow::Result;

use super::{Content, Extent, point, size_step, skipped};
use crate::plan::Plan;
use crate::published::Published;
use crate::record::{Figure, Results, WorkloadShape};
use crate::target::Target;
use crate::test_bed::{Lab, TestBed};
use crate::workload::{Bytes, Data, Timed, Workload};

const SOURCE: &str = "NFS to GlusterFS, 16 September 2023 (seeds/gluster-volume-types.txt)";

/// Smaller files measure the start of a task and not the volume, as the publication says too.
const TELLING: u64 = 2 << 20;

const NAMES: [(u32, &str); 2] = [(1, "1-file"), (8, "8-files")];

pub(super) fn content(extent: Extent) -> Content {
    let (last, step) = extent.pick((16_u64 << 20, 2), (512 << 20, 1));
    let figure = |files: u32, name: &str| Figure {
        name: name.to_owned(),
        title: if files == 1 { "One file".to_owned() } else { format!("{files} files together") },
        shape: WorkloadShape::Lines,
        x_label: "size of a file".to_owned(),
        unit: "B/s".to_owned(),
    };
    let mut content = Content {
        title: "gluster-volumes: which volume type",
        figures: NAMES.map(|(files, name)| figure(files, name)).to_vec(),
        cases: Vec::new(),
        published: NAMES.into_iter().flat_map(|(files, name)| published(files, name)).collect(),
        rounds: 6,
    };
    for (files, figure) in NAMES {
        let mut size = 1_u64 << 10;
        while size <= last {
            let workload = Workload {
                block: Bytes(size.min(1 << 20)),
                file_size: Bytes(size),
                tasks: NonZeroU32::MIN.saturating_add(files - 1),
                data: Data::Zeros,
                timed: Timed::WholeFile,
                ..Workload::default()
            };
            let x = size_step(size);
            content.case(figure, format!("{files} x {}", x.1), x, workload);
            size <<= step;
        }
    }
    content
}

/// A volume, and its published ranges with one file and with eight.
type Ranges = (&'static str, (f64, f64), (f64, f64));

/// Published ranges for files of at least 2 MiB, in MB/s.
fn published(files: u32, figure: &str) -> Vec<Published> {
    let ranges = [
        ("nfs", (40.0, 300.0), (300.0, 600.0)),
        ("dt8", (310.0, 320.0), (2100.0, 2300.0)),
        ("dp8rd2", (290.0, 290.0), (1200.0, 1600.0)),
        ("dt2dp4rd1", (300.0, 300.0), (1500.0, 1800.0)),
        ("dt4rp2", (290.0, 290.0), (1100.0, 1700.0)),
    ];
    let series = |(name, one, eight): Ranges| {
        let (low, high) = if files == 1 { one } else { eight };
        let at = |bytes: u64| {
            let (x, label) = size_step(bytes);
            point(x, &label, low * 1e6, high * 1e6)
        };
        Published {
            figure: figure.to_owned(),
            series: name.to_owned(),
            relative: false,
            points: vec![at(TELLING), at(16 << 20)],
            source: SOURCE.to_owned(),
        }
    };
    ranges.map(series).to_vec()
}

const VOLUMES: [&str; 4] = ["dt8", "dp8rd2", "dt4rp2", "dt2dp4rd1"];

/// How many targets the lab will have.
pub(super) fn targets(lab: &Lab) -> usize {
    lab.count(&VOLUMES) + 1
}

/// The volumes, and a pool over all but one of them.
pub(super) fn test_bed(lab: &Lab, plan: &mut Plan) -> Result<TestBed> {
    let parts = lab.parts(&VOLUMES)?;
    let mut test_bed = TestBed::default();
    for (name, dir) in &parts.dirs {
        plan.targets.push(Target { name: name.clone(), dir: dir.clone() });
    }
    let pooled: Vec<_> =
        parts.dirs.iter().filter(|(name, _)| name != "dp8rd2").map(|(_, dir)| dir.as_path()).collect();
    plan.targets.push(test_bed.pool("pool", &pooled, "create=pfrd,minfreespace=1M")?);
    plan.notes.extend(parts.notes.clone());
    plan.bears.extend(parts.bears.clone());
    plan.disks = Some(parts.disks.clone());
    test_bed.keep(parts);
    plan.skipped.push(skipped(
        "nfs",
        "the lab has no NFS server with a client here: mount one and give --target nfs=DIR",
    ));
    Ok(test_bed)
}

/// The publication's decision with our figures: the fastest, and the fastest that survives a failure.
pub(super) fn says(results: &Results) -> Vec<String> {
    let telling = |case: &str| {
        results.case(case).is_some_and(|c| TELLING <= c.workload.file_size.0 && c.workload.tasks.get() == 8)
    };
    let mean = |target: &str| {
        let logs: Vec<f64> = results
            .summaries
            .iter()
            .filter(|s| s.target == target && telling(&s.case))
            .map(|s| s.rate.median.ln())
            .collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    };
    let mut ranked: Vec<(f64, &str)> =
        results.contenders().filter_map(|t| Some((mean(&t.name)?, t.name.as_str()))).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let Some((best, first)) = ranked.first().copied() else { return Vec::new() };
    let shown: Vec<String> = ranked.iter().map(|(rate, name)| format!("{name} {:.2}", rate / best)).collect();
    let mut said = vec![format!(
        "Eight files of 2 MiB and more together, relative to the fastest ({first}): {} (published, to dt8: dp8rd2 0.64, dt2dp4rd1 0.75, dt4rp2 0.64, nfs 0.20).",
        shown.join(", ")
    )];
    let bears = |name: &str| {
        results.targets.iter().any(|t| t.name == name && t.bears.is_some_and(|bricks| 0 < bricks))
    };
    if let Some((_, name)) = ranked.iter().find(|(_, name)| bears(name)) {
        said.push(format!(
            "The fastest volume that bears the loss of a brick is {name}; the publication chose dt2dp4rd1."
        ));
    }
    said.push(
        "Files below 2 MiB measure the start of a task and the opening of a file, not the volume.".to_owned(),
    );
    said
}
