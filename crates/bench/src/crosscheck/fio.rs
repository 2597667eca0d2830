//! fio, as a second opinion on rates.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fsstack_lab::needs;
use fsstack_lab::shell::{Finished, Run, command, which};

use super::NANOS_OF_A_SECOND;
use crate::target::with_dir;
use crate::workload::{Engine, Op, Pattern, Workload};

/// Limit of a run of fio on names.
const FIO_NAMES_TIMEOUT: Duration = Duration::from_secs(3600);

/// fio's version. It is installed first if that is possible.
///
/// # Errors
/// It cannot be installed.
pub(super) fn version() -> Result<String> {
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

/// Bytes a second of `workload` on `file`.
///
/// fio gets what would otherwise differ: aligned buffers, no scrambling of what it writes, no dropped caches, and threads.
///
/// # Errors
/// fio fails, or prints no rate.
pub(super) fn bytes(workload: &Workload, file: &Path, stop: &AtomicBool) -> Result<f64> {
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
    let done = finished(run.limit(Duration::from_secs_f64(seconds + 120.0)), stop)?;
    let direction = if workload.op == Op::Read { "read" } else { "write" };
    of_output(&done.stdout, |job| job[direction]["bw_bytes"].as_f64())
}

/// Calls a second of an operation on names, in an empty directory of `work`, by the mean time of a call.
///
/// # Errors
/// fio has no such operation, fails, or prints no times.
pub(super) fn calls(workload: &Workload, work: &Path, stop: &AtomicBool) -> Result<f64> {
    let engine = match workload.op {
        Op::Create => "filecreate",
        Op::Stat => "filestat",
        Op::Unlink => "filedelete",
        op => bail!("fio does not time {op}"),
    };
    let dir = work.join("fio");
    let run = |engine: &str| {
        let run = command("fio")
            .dir(&dir)
            .args(["--name=crosscheck", "--thread", "--output-format=json", "--rw=write", "--openfiles=1"])
            // Names of a byte, by which fio counts them; relative ones, so that the kernel walks no path.
            .args(["--filename_format=name$filenum", "--filesize=1", "--bs=1", "--fallocate=none"])
            .args(["--file_service_type=sequential", "--create_on_open=1"])
            .arg(format!("--nrfiles={}", workload.entries))
            .arg(format!("--ioengine={engine}"))
            .limit(FIO_NAMES_TIMEOUT);
        finished(run, stop)
    };
    let done = with_dir(&dir, || {
        if workload.op != Op::Create {
            run("filecreate")?;
        }
        run(engine)
    })?;
    let nanos = of_output(&done.stdout, |job| {
        let calls = &job["write"]["clat_ns"];
        (calls["N"].as_u64() == Some(u64::from(workload.entries.get()))).then(|| calls["mean"].as_f64())?
    })?;
    Ok(NANOS_OF_A_SECOND / nanos)
}

/// Runs fio to its end, unless the check is stopped.
fn finished(run: Run, stop: &AtomicBool) -> Result<Finished> {
    let done = run.output_unless(&|| stop.load(Ordering::Relaxed)).context("fio")?;
    done.context("interrupted")?.check().context("fio")
}

/// A positive number of the only job in fio's output, which may begin with notes.
fn of_output(text: &str, find: impl Fn(&serde_json::Value) -> Option<f64>) -> Result<f64> {
    let json = text.find('{').map_or("", |begin| &text[begin..]);
    let value: serde_json::Value = serde_json::from_str(json).context("reading fio's output")?;
    find(&value["jobs"][0]).filter(|number| 0.0 < *number).context("fio prints no rate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_in_what_fio_prints() {
        let text =
            "fio: a note\n{\"jobs\": [{\"read\": {\"bw_bytes\": 123456}, \"write\": {\"bw_bytes\": 0}}]}";
        assert_eq!(of_output(text, |job| job["read"]["bw_bytes"].as_f64()).unwrap(), 123_456.0);
        assert!(
            of_output(text, |job| job["write"]["bw_bytes"].as_f64())
                .unwrap_err()
                .to_string()
                .contains("no rate")
        );
        assert!(of_output("", |job| job.as_f64()).is_err());
    }
}
