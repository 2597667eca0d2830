//! `fsstack support`: one text with what a bug report needs. Names are left out unless they are asked for.

mod mount_options;
mod names;

use super::args::Support;
use super::pool::Pool;
use super::{Failed, doctor, pool, show};
use fsstack_control::ClientError;
use fsstack_control::api::{JobRequest, RecentLine, SlowRequest};
use fsstack_pool::Printable;
use fsstack_sys::mounts;
use names::Names;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

pub(crate) fn run(wish: &Support) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    // Refused to other users at once.
    if let Err(error @ ClientError::Denied(_)) = pool.client().status() {
        return Err(error.into());
    }
    let names = Names::new(&pool, wish.with_names);
    let text = bundle(&pool, &names);
    let Some(path) = &wish.output else { return show::text(&text) };
    let failed = |error: std::io::Error| Failed::system(Printable::path(path), &error);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

fn bundle(pool: &Pool, names: &Names) -> String {
    let client = pool.client();
    let mut text = String::new();
    section(&mut text, "fsstack");
    let kept = if names.are_kept() { "as they are" } else { "left out" };
    let _ = writeln!(text, "command: {}\nnames: {kept}", env!("CARGO_PKG_VERSION"));
    section(&mut text, "machine");
    text.push_str(&machine());
    section(&mut text, "branches' mounts");
    text.push_str(&mounts_of(pool, names));
    section(&mut text, "status");
    text.push_str(&json(names, client.status()));
    section(&mut text, "options");
    match client.keys() {
        Ok(keys) => keys.keys.iter().for_each(|key| {
            let _ = writeln!(text, "{}={}", key.key, names.option(&key.key, &key.value));
        }),
        Err(error) => text.push_str(&failure(names, &error)),
    }
    section(&mut text, "doctor");
    for finding in doctor::findings(pool).findings {
        let (about, found) = (names.text(&finding.about), names.text(&finding.text));
        let _ = writeln!(text, "{:?}  {about}: {found}", finding.level);
    }
    section(&mut text, "jobs");
    text.push_str(&json(names, client.jobs(&JobRequest::Show { job: None })));
    section(&mut text, "slow calls");
    text.push_str(&json(names, client.slow_calls(&SlowRequest::default())));
    section(&mut text, "metrics");
    match client.metrics() {
        Ok(metrics) => metrics.lines().for_each(|line| text.push_str(&(names.labels(line) + "\n"))),
        Err(error) => text.push_str(&failure(names, &error)),
    }
    section(&mut text, "log");
    match client.log_lines() {
        Ok(lines) => lines.lines.iter().for_each(|line| text.push_str(&log_line(names, line))),
        Err(error) => text.push_str(&failure(names, &error)),
    }
    text
}

fn section(text: &mut String, title: &str) {
    let _ = writeln!(text, "\n== {title} ==");
}

fn failure(names: &Names, error: &ClientError) -> String {
    names.text(&error.to_string()) + "\n"
}

fn json<T: Serialize>(names: &Names, answer: Result<T, ClientError>) -> String {
    let value = match answer {
        Ok(answer) => serde_json::to_value(answer),
        Err(error) => return failure(names, &error),
    };
    match value.and_then(|value| serde_json::to_string_pretty(&names.json(value))) {
        Ok(text) => text + "\n",
        Err(error) => format!("{error}\n"),
    }
}

/// Kernel, distribution, memory, and the settings of FUSE. The host's name is not in it.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let first = |text: &str, key: &str| {
        text.lines().find(|line| line.starts_with(key)).unwrap_or_default().trim().to_owned()
    };
    let mut text = format!("kernel: {}\n", read("/proc/sys/kernel/osrelease").trim());
    let _ = writeln!(text, "{}", first(&read("/etc/os-release"), "PRETTY_NAME="));
    let _ = writeln!(text, "{}", first(&read("/proc/meminfo"), "MemTotal:"));
    let cpus = fsstack_sync::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let _ = writeln!(text, "cpus: {cpus}, {}", std::env::consts::ARCH);
    for place in ["/proc/sys/fs/fuse", "/sys/module/fuse/parameters"] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let value = fs::read_to_string(entry.path()).unwrap_or_default();
            let _ = writeln!(text, "{}: {}", entry.path().display(), value.trim());
        }
    }
    text
}

/// File systems of the branches.
fn mounts_of(pool: &Pool, names: &Names) -> String {
    let table = mounts::list().unwrap_or_default();
    let mut text = String::new();
    for branch in &pool.entry.branches {
        let path = branch.path();
        let shown = names.text(&Printable::path(&path).to_string());
        let _ = match fsstack_control::local_locks::mount_of(&path, &table) {
            Some(mount) => {
                let kind = Printable::os(&mount.fs_type).to_string();
                let (kind, all) = if names.are_kept() {
                    (kind, [mount.options.clone(), mount.super_options.clone()])
                } else {
                    let all = [&mount.options, &mount.super_options];
                    (mount_options::kind(&kind), all.map(|options| mount_options::masked(options)))
                };
                writeln!(text, "{shown}: {kind}, {}", all.join(", "))
            }
            None => writeln!(text, "{shown}: not in the mount table"),
        };
    }
    text
}

/// A line of the log. Without names only what cannot hold one: messages may quote any.
fn log_line(names: &Names, line: &RecentLine) -> String {
    let RecentLine { time, level, source, message, fields } = line;
    let mut text = format!("{time} {level} {source}");
    if names.are_kept() {
        let _ = write!(text, " {message}");
    }
    for field in fields {
        let value = match field.name.as_str() {
            _ if names.are_kept() => field.value.clone(),
            "error" | "branch" => names.text(&field.value),
            _ => continue,
        };
        let _ = write!(text, " {}={value}", field.name);
    }
    text + "\n"
}
