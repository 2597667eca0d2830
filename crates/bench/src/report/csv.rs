//! results.csv: one line per measurement; for `gluster-volumes` with the published script's columns.

use std::fmt::Write;

use crate::record::{Measurement, Results};

/// Experiment whose published results have their own columns.
const PUBLISHED_COLUMNS: &str = "gluster-volumes";

/// The file.
pub(crate) fn csv(results: &Results) -> String {
    if results.made.plan == PUBLISHED_COLUMNS { as_published(results) } else { plain(results) }
}

fn plain(results: &Results) -> String {
    let mut text = String::from(
        "case,target,round,unit,rate,bytes,ops,seconds,start_skew_us,mean_us,p50_us,p99_us,p99.9_us,max_us,machine_cpu_seconds,cpu_seconds_by_program\n",
    );
    for m in &results.measurements {
        let unit = results.case(&m.case).map_or("", |case| case.workload.unit());
        let cpu: Vec<String> = m.used.iter().map(|u| format!("{}={:.6}", u.program, u.cpu_seconds)).collect();
        let l = &m.latency_us;
        // Writing to a String cannot fail, here and below.
        let _written = writeln!(
            text,
            "{},{},{},{unit},{:.3},{},{},{:.6},{},{:.3},{:.3},{},{},{:.3},{:.2},{}",
            quoted(&m.case),
            quoted(&m.target),
            m.round,
            m.rate,
            m.bytes,
            m.ops,
            m.seconds,
            cell(m.start_skew_us),
            l.mean,
            l.p50,
            cell(l.p99),
            cell(l.p999),
            l.max,
            m.machine_cpu_seconds,
            quoted(&cpu.join(";"))
        );
    }
    text
}

/// A time in microseconds; empty where it is not known.
fn cell(time: Option<f64>) -> String {
    time.map_or(String::new(), |us| format!("{us:.3}"))
}

/// A line per measurement: log file (volume and number of files), volume, file size, total bytes a second.
fn as_published(results: &Results) -> String {
    let mut text = String::from("logfile, volume_type, bs, bandwidth[Bytes/s]\n");
    let line = |m: &Measurement| {
        let workload = &results.case(&m.case)?.workload;
        let size = match workload.file_size.0 {
            bytes if bytes < 1 << 20 => format!("{}k", bytes >> 10),
            bytes => format!("{}M", bytes >> 20),
        };
        let log = format!("{}-{}.log", m.target, workload.tasks);
        Some(format!("{}, {}, {size}, {:.0}\n", quoted(&log), quoted(&m.target), m.rate))
    };
    results.measurements.iter().filter_map(line).for_each(|line| text += &line);
    text
}

/// Quotes a field if needed.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
