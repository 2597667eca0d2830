//! Which GlusterFS volume type? Files from 1 KiB to 512 MiB, one and eight at once, each written by one task; and one
//! large file by NFS beside GlusterFS's own client.

use std::num::NonZeroU32;

use anyhow::Result;
use fsstack_lab::ganesha::Ganesha;

use super::{Content, Extent, point, size_step, skipped};
use crate::plan::Plan;
use crate::published::Published;
use crate::record::{Figure, Results, WorkloadShape};
use crate::rivals::first_line;
use crate::target::Target;
use crate::test_bed::{Kinds, Lab, TestBed};
use crate::workload::{Bytes, Cache, Data, Engine, Op, Sync, Timed, Workload};

const SOURCE: &str = "NFS to GlusterFS, 16 September 2023 (seeds/gluster-volume-types.txt)";

/// Smaller files measure the start of a task and not the volume, as the publication says too.
const TELLING: u64 = 2 << 20;

const NAMES: [(u32, &str); 2] = [(1, "1-file"), (8, "8-files")];

/// Figure of one large file by two clients.
const BY_NFS: &str = "by-nfs";

/// Requests that both clients submit at a time for one large file. A kernel's NFS client sends several, too; by the mount the kernel
/// passes a file's writes on one by one.
const IN_FLIGHT: u32 = 4;

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
    by_nfs(&mut content, extent);
    content
}

/// One large file, by the mount and by NFS, once in each round and with as many requests submitted: written to its end on
/// the bricks, and read with cold caches.
fn by_nfs(content: &mut Content, extent: Extent) {
    let size = Bytes(extent.pick(64 << 20, 512 << 20));
    content.figures.push(Figure {
        name: BY_NFS.to_owned(),
        title: format!("One file of {size}, by GlusterFS's client and by NFS"),
        shape: WorkloadShape::Bars,
        x_label: String::new(),
        unit: "B/s".to_owned(),
    });
    let write = Workload {
        engine: Engine::IoUring,
        file_size: size,
        sync: Sync::End,
        depth: NonZeroU32::MIN.saturating_add(IN_FLIGHT - 1),
        ..Workload::default()
    };
    let read = Workload { op: Op::Read, sync: Sync::Never, cache: Cache::Cold, ..write.clone() };
    let nfs = |workload: &Workload| Workload { engine: Engine::Nfs, ..workload.clone() };
    let cases = [
        ("write, mount", write.clone()),
        (WRITE_NFS, nfs(&write)),
        ("read, mount", read.clone()),
        ("read, NFS", nfs(&read)),
    ];
    for (n, (label, workload)) in cases.into_iter().enumerate() {
        content.case(BY_NFS, large(label), (n as f64, label.to_owned()), workload);
    }
    // The published ranges are those of all files from 2 MiB on.
    content.published.extend(RANGES.map(|(name, (low, high), _)| {
        let (x, label) = if name == "nfs" { (1.0, WRITE_NFS) } else { (0.0, "write, mount") };
        Published {
            figure: BY_NFS.to_owned(),
            series: name.to_owned(),
            relative: false,
            points: vec![point(x, label, low * 1e6, high * 1e6)],
            source: SOURCE.to_owned(),
        }
    }));
}

const WRITE_NFS: &str = "write, NFS";

/// The case of a large file.
fn large(label: &str) -> String {
    format!("large file, {label}")
}

/// Leaves the comparison with NFS out where no target is exported, and says so.
pub(super) fn without_servers(plan: &mut Plan) {
    if !plan.exports.is_empty() {
        return;
    }
    plan.cases.retain(|case| case.figure != BY_NFS);
    plan.figures.retain(|figure| figure.name != BY_NFS);
    plan.published.retain(|series| series.figure != BY_NFS);
    let known = plan.targets.iter().any(|target| target.name == "nfs")
        || plan.skipped.iter().any(|skipped| skipped.what.starts_with("nfs"));
    if !known {
        plan.skipped
            .push(skipped("nfs", "only the lab's volumes are exported: mount one and give --target nfs=DIR"));
    }
}

/// A volume, and its published ranges with one file and with eight.
type Ranges = (&'static str, (f64, f64), (f64, f64));

/// Published ranges for files of at least 2 MiB, in MB/s. NFS had a server and disks of its own.
const RANGES: [Ranges; 5] = [
    ("nfs", (40.0, 300.0), (300.0, 600.0)),
    ("dt8", (310.0, 320.0), (2100.0, 2300.0)),
    ("dp8rd2", (290.0, 290.0), (1200.0, 1600.0)),
    ("dt2dp4rd1", (300.0, 300.0), (1500.0, 1800.0)),
    ("dt4rp2", (290.0, 290.0), (1100.0, 1700.0)),
];

fn published(files: u32, figure: &str) -> Vec<Published> {
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
    RANGES.map(series).to_vec()
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
    let volumes: Vec<Target> =
        parts.dirs.iter().map(|(name, dir)| Target { name: name.clone(), dir: dir.clone() }).collect();
    test_bed.keep(parts);
    export(lab, &volumes, plan, &mut test_bed);
    Ok(test_bed)
}

/// Exports each volume by an NFS server in the lab's network.
fn export(lab: &Lab, volumes: &[Target], plan: &mut Plan, test_bed: &mut TestBed) {
    let able = match lab.kind {
        Kinds::Xfs => Err("`--lab xfs` has no volumes to export".to_owned()),
        Kinds::Gluster => Ganesha::able_for_volumes().map_err(|skip| skip.to_string()),
    };
    if let Err(why) = able {
        return plan.skipped.push(skipped("nfs", why));
    }
    for volume in volumes {
        match test_bed.export_volume(volume) {
            Ok(export) => {
                plan.exports.push(export);
                let how = format!(
                    "by NFS: nfs-ganesha with FSAL GLUSTER, a client of the volume itself, in the lab's network; NFS 4.0 by \
                     the bench's own client in user space, {IN_FLIGHT} requests in flight; the server starts anew before each cold read"
                );
                plan.notes.push((volume.name.clone(), how));
            }
            Err(e) => plan.skipped.push(skipped(&format!("nfs on {}", volume.name), first_line(&e))),
        }
    }
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
    said.extend(beside_nfs(results));
    said.push(
        "Files below 2 MiB measure the start of a task and the opening of a file, not the volume.".to_owned(),
    );
    said
}

/// Rates of one large file by NFS, relative to those by the mount.
fn beside_nfs(results: &Results) -> Option<String> {
    let rate = |label: &str, target: &str| results.summary(&large(label), target).map(|s| s.rate.median);
    let to = |op: &str, target: &str| {
        Some(rate(&format!("{op}, NFS"), target)? / rate(&format!("{op}, mount"), target)?)
    };
    let of = |target: &str| {
        let (write, read) = (to("write", target)?, to("read", target)?);
        Some(format!("{target} {write:.2} and {read:.2}"))
    };
    let parts: Vec<String> = results.contenders().filter_map(|target| of(&target.name)).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "One large file by NFS (nfs-ganesha with FSAL GLUSTER; our client of NFS 4.0 in user space) is \
             written and read at these parts of the rates of GlusterFS's own client, by both once in each round, {IN_FLIGHT} requests submitted at a time (the kernel passes a file's writes on one by one): {} (published, NFS from a server and disks of its own: \
             written at 40 to 300 MB/s, volumes at 290 to 320).",
            parts.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Cells, Repeated};
    use crate::record::Case;

    #[test]
    fn both_clients_have_as_many_requests_in_flight_and_one_pass() {
        for extent in [Extent::Quick, Extent::Full] {
            let Content { figures, cases, .. } = content(extent);
            let cells = Cells { seconds: 2.0, of: Repeated::All };
            let plan = Plan { figures, cases, cells, ..Plan::default() };
            let beside = |case: &&Case| case.figure == BY_NFS;
            assert_eq!(plan.cases.iter().filter(beside).count(), 4);
            for case in plan.cases.iter().filter(beside) {
                assert_eq!((case.workload.depth.get(), plan.repeats(case, "dt8")), (IN_FLIGHT, false));
            }
            assert!(plan.cases.iter().filter(|case| !beside(case)).all(|case| plan.repeats(case, "dt8")));
        }
    }

    #[test]
    fn targets_without_a_server_have_no_cases_by_nfs_and_the_report_says_so() {
        let Content { figures, cases, published, .. } = content(Extent::Quick);
        let mut plan = Plan { figures, cases, published, ..Plan::default() };
        let nfs = |plan: &Plan| plan.cases.iter().filter(|case| case.workload.engine == Engine::Nfs).count();
        assert_eq!(nfs(&plan), 2);
        assert!(plan.cases.iter().all(|case| case.workload.check(&case.name).is_ok()));
        without_servers(&mut plan);
        assert_eq!((nfs(&plan), plan.figures.len(), plan.skipped.len()), (0, 2, 1));
        // A reason that is known already is not replaced.
        without_servers(&mut plan);
        assert_eq!(plan.skipped.len(), 1);
    }
}
