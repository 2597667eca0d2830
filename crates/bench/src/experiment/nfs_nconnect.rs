//! One NFS mount, several TCP connections: reads of 128 KiB, 128 in flight.
//!
//! Mounts given by the user are read with O_DIRECT through the kernel's client. The lab exports a pool and its branch
//! by an NFS server each, and reads them with its own client over any number of connections.

use std::num::NonZeroU32;

use anyhow::{Context, Result};
use fsstack_lab::ganesha::Ganesha;

use super::{Content, Extent, count_step, point};
use crate::plan::Plan;
use crate::published::Published;
use crate::record::{Case, Figure, Results, WorkloadShape};
use crate::target::Target;
use crate::test_bed::{Lab, TestBed};
use crate::workload::{Bytes, Engine, Op, Workload};

const SOURCE: &str = "NFS read performance with nconnect, NGX Storage (seeds/nfs-nconnect.txt)";

const PACED: &str = "paced";
const FREE: &str = "free";

/// Rate limit of a connection in the lab, if it is limited.
const PACE: Bytes = Bytes(32 << 20);

pub(super) fn content(extent: Extent) -> Content {
    let figure = Figure {
        name: "nconnect".to_owned(),
        title: "Reads of 128 KiB, 128 in flight, O_DIRECT".to_owned(),
        shape: WorkloadShape::Bars,
        x_label: String::new(),
        unit: "B/s".to_owned(),
    };
    let published = |name: &str, rate: f64| series("nconnect", name, 0.0, "1 task", rate);
    let mut content = Content {
        title: "nfs-nconnect: one mount, several TCP connections",
        figures: vec![figure],
        cases: Vec::new(),
        published: vec![published("nconnect=1", 1496.0), published("nconnect=16", 4705.0)],
        rounds: 6,
    };
    for (n, tasks) in [1_u32, 2].into_iter().enumerate() {
        let name = format!("{tasks} {}", if tasks == 1 { "task" } else { "tasks" });
        let seconds = Some(extent.pick(5.0, 60.0));
        let workload =
            Workload { engine: Engine::IoUring, direct: true, tasks: many(tasks), seconds, ..reads(extent) };
        content.case("nconnect", name.clone(), (n as f64, name), workload);
    }
    content
}

fn many(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

fn reads(extent: Extent) -> Workload {
    Workload {
        op: Op::Read,
        block: Bytes(128 << 10),
        file_size: Bytes(extent.pick(32 << 20, 20 << 30)),
        depth: many(128),
        ..Workload::default()
    }
}

/// A published rate in MiB/s.
fn series(figure: &str, name: &str, x: f64, x_label: &str, mebibytes: f64) -> Published {
    let rate = mebibytes * 1_048_576.0;
    Published {
        figure: figure.to_owned(),
        series: name.to_owned(),
        relative: false,
        points: vec![point(x, x_label, rate, rate)],
        source: SOURCE.to_owned(),
    }
}

/// A pool over one branch, and another directory of that branch, each with its own server.
pub(super) fn test_bed(lab: &Lab, plan: &mut Plan) -> Result<TestBed> {
    Ganesha::able().map_err(|skip| anyhow::anyhow!("nfs-nconnect: --lab {skip}"))?;
    let mut test_bed = TestBed::default();
    let parts = lab.xfs(1)?;
    let (_, branch) = parts.dirs.first().context("the lab made no branch")?;
    let options = "nfs-export,minfreespace=1M";
    let pool = test_bed.pool("pool", &[branch], options)?;
    for target in [Target { name: "branch".to_owned(), dir: branch.clone() }, pool] {
        plan.exports.push(test_bed.export(&target)?);
        plan.notes.push((target.name.clone(), "shown by nfs-ganesha, NFS 4.0, on the loopback".to_owned()));
        plan.targets.push(target);
    }
    plan.disks = Some(parts.disks.clone());
    test_bed.keep(parts);
    Ok(test_bed)
}

/// A pool behind an NFS server reads nearly what its branch does there.
pub(super) fn bars(plan: &mut Plan) {
    let free = |plan: &Plan, case: &str| plan.cases.iter().any(|known| known.name == case);
    for connections in [1, 16] {
        let (case, name) = (free_case(connections), format!("reads, {connections}"));
        if free(plan, &case) {
            plan.add_rate_bars("pool", &[(&case, &name)], 0.9);
        }
    }
}

fn free_case(connections: u32) -> String {
    format!("{FREE}, {connections} connections")
}

/// Replaces the cases of the kernel's client by those of the lab's.
pub(super) fn over_connections(extent: Extent, plan: &mut Plan) {
    let (mut figures, mut cases) = (Vec::new(), Vec::new());
    let paced = format!("by connections that carry {PACE} a second each");
    let ways = [(PACED, Some(PACE), paced), (FREE, None, "by connections without a limit".to_owned())];
    for (name, pace, how) in ways {
        figures.push(Figure {
            name: name.to_owned(),
            title: format!("Reads of 128 KiB, 128 in flight, {how}"),
            shape: WorkloadShape::Lines,
            x_label: "connections".to_owned(),
            unit: "B/s".to_owned(),
        });
        for count in [1_u32, 2, 4, 8, 16] {
            let (connections, seconds) = (Some(many(count)), Some(extent.pick(1.0, 60.0)));
            let workload = Workload { engine: Engine::Nfs, connections, pace, seconds, ..reads(extent) };
            let ((x, x_label), figure) = (count_step(count), name.to_owned());
            cases.push(Case { name: format!("{name}, {count} connections"), figure, x, x_label, workload });
        }
    }
    (plan.figures, plan.cases) = (figures, cases);
    plan.published = [("nconnect=1", 1.0, "1", 1496.0), ("nconnect=16, 2 jobs", 16.0, "16", 4705.0)]
        .map(|(name, x, label, rate)| series(FREE, name, x, label, rate))
        .to_vec();
}

/// Gain from connections with a limit each, and cost of the pool over its branch.
pub(super) fn says(results: &Results) -> Vec<String> {
    let rate = |connections: u32, target: &str| {
        let summary = results.summary(&format!("{PACED}, {connections} connections"), target);
        summary.map(|s| s.rate.median)
    };
    let gain =
        |target: &str| Some((rate(4, target)? / rate(1, target)?, rate(16, target)? / rate(1, target)?));
    let mut said: Vec<String> = results
        .contenders()
        .filter_map(|target| {
            let (four, sixteen) = gain(&target.name)?;
            Some(format!(
                "{}: with {PACE} a second for each connection, 4 connections read {four:.2} and 16 read {sixteen:.2} times what 1 reads (published, on a link of 40 Gbit/s: 16 with two jobs, 3.14).",
                target.name
            ))
        })
        .collect();
    for connections in [1, 16] {
        let case = free_case(connections);
        let ratio = results.summary(&case, "pool").and_then(|s| s.ratio);
        said.extend(ratio.map(|r| {
            format!(
                "Without a limit, the pool by {connections} {} reads {:.2} [{:.2}, {:.2}] of what its branch does.",
                if connections == 1 { "connection" } else { "connections" },
                r.value, r.low, r.high
            )
        }));
    }
    said.extend(of_mounts(results));
    said
}

/// Findings on the user's mounts, named `<mount>.nconnect<connections>`.
fn of_mounts(results: &Results) -> Vec<String> {
    let mut said = Vec::new();
    for case in &results.cases {
        let rate = |group: &str, connections: u32| {
            let summary = results.summary(&case.name, &format!("{group}.nconnect{connections}"));
            summary.map(|s| s.rate.median)
        };
        let groups = results.contenders().filter_map(|target| target.name.strip_suffix(".nconnect1"));
        for group in groups {
            let Some(one) = rate(group, 1) else { continue };
            let more = [2, 4, 8, 16].into_iter().filter_map(|n| Some((n, rate(group, n)? / one)));
            let more: Vec<String> = more.map(|(n, times)| format!("{n} connections {times:.2}")).collect();
            if !more.is_empty() {
                said.push(format!(
                    "{group}, {}: times what 1 connection reads: {}.",
                    case.name,
                    more.join(", ")
                ));
            }
            // A pool has its branch's name with another prefix.
            let Some(branch) = group.strip_prefix("pool").map(|rest| format!("branch{rest}")) else {
                continue;
            };
            let beside =
                [1, 2, 4, 8, 16].into_iter().filter_map(|n| Some((n, rate(group, n)? / rate(&branch, n)?)));
            let beside: Vec<String> = beside.map(|(n, ratio)| format!("{n} {ratio:.2}")).collect();
            if !beside.is_empty() {
                said.push(format!(
                    "{group} to {branch}, {}, by connections: {}.",
                    case.name,
                    beside.join(", ")
                ));
            }
        }
    }
    said
}
