//! Conditions of a figure, without which a number means nothing.

use std::fs;

use fsstack_lab::rival::Union;
use fsstack_lab::shell::command;
use serde_json::{Value, json};

/// The machine and the programs.
#[derive(Clone, Debug)]
pub(crate) struct Conditions(Vec<(&'static str, String)>);

impl Conditions {
    pub(crate) fn now(rounds: usize) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = first_line("/proc/meminfo").replace("MemTotal:", "");
        let mut content = vec![
            ("commit", said("git", &["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"])),
            ("kernel", first_line("/proc/sys/kernel/osrelease")),
            ("machine", format!("{cpus} CPUs ({}), {} memory", processor(), memory.trim())),
            ("autogroup", first_line("/proc/sys/kernel/sched_autogroup_enabled")),
            ("load at the end", first_line("/proc/loadavg")),
            ("branches", "XFS on loop devices over preallocated images in memory".to_owned()),
            ("rounds", format!("{rounds}, interleaved; medians")),
        ];
        for union in [Union::Mergerfs, Union::Mhddfs] {
            let version = said("dpkg-query", &["-W", "-f", "${Version}", union.program()]);
            content.push((union.program(), version));
        }
        Self(content)
    }

    pub(crate) fn markdown(&self) -> String {
        self.0.iter().map(|(what, is)| format!("- {what}: {is}\n")).collect()
    }

    pub(crate) fn json(&self) -> Value {
        self.0
            .iter()
            .map(|(what, is)| ((*what).to_owned(), json!(is)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_owned()
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or("unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

fn said(program: &str, arguments: &[&str]) -> String {
    let content = command(program).args(arguments).run();
    content.map_or("unknown".to_owned(), |finished| finished.stdout.trim().to_owned())
}
