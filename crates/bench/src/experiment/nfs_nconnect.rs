//! One NFS mount, several TCP connections: reads of 128 KiB, 128 in flight, O_DIRECT.

use std::num::NonZeroU32;

use super::{Content, Extent, point};
use crate::published::Published;
use crate::record::{Figure, Shape};
use crate::workload::{Bytes, Engine, Op, Workload};

const SOURCE: &str = "NFS read performance with nconnect, NGX Storage (seeds/nfs-nconnect.txt)";

/// Why there is no `--lab` for it.
pub(super) const NO_GROUND: &str = "nfs-nconnect: --lab makes no NFS mounts: mount the exports yourself and give --target nconnect1=DIR --target nconnect16=DIR";

pub(super) fn content(extent: Extent) -> Content {
    let figure = Figure {
        name: "nconnect".to_owned(),
        title: "Reads of 128 KiB, 128 in flight, O_DIRECT".to_owned(),
        shape: Shape::Bars,
        x_label: String::new(),
        unit: "B/s".to_owned(),
    };
    let published = |series: &str, mebibytes: f64| Published {
        figure: "nconnect".to_owned(),
        series: series.to_owned(),
        relative: false,
        points: vec![point(0.0, "1 task", mebibytes * 1_048_576.0, mebibytes * 1_048_576.0)],
        source: SOURCE.to_owned(),
    };
    let mut content = Content {
        title: "nfs-nconnect: one mount, several TCP connections",
        figures: vec![figure],
        cases: Vec::new(),
        published: vec![published("nconnect=1", 1496.0), published("nconnect=16", 4705.0)],
        rounds: 5,
    };
    for (n, tasks) in [1_u32, 2].into_iter().enumerate() {
        let workload = Workload {
            engine: Engine::IoUring,
            op: Op::Read,
            block: Bytes(128 << 10),
            file_size: Bytes(extent.pick(256 << 20, 20 << 30)),
            tasks: NonZeroU32::new(tasks).unwrap_or(NonZeroU32::MIN),
            depth: NonZeroU32::new(128).unwrap_or(NonZeroU32::MIN),
            direct: true,
            seconds: Some(extent.pick(5.0, 60.0)),
            ..Workload::default()
        };
        let name = format!("{tasks} {}", if tasks == 1 { "task" } else { "tasks" });
        content.case("nconnect", name.clone(), (n as f64, name), workload);
    }
    content
}
