//! Conditions of a figure, without which a number means nothing.

use fsstack_bench::machine::machine;
use fsstack_lab::rival::Union;
use fsstack_lab::shell::command;
use serde_json::{Value, json};

/// The machine and the programs.
#[derive(Clone, Debug)]
pub(crate) struct Conditions(Vec<(&'static str, String)>);

impl Conditions {
    pub(crate) fn now(rounds: usize) -> Self {
        let machine = machine();
        let memory = machine.memory_bytes as f64 / f64::from(1 << 30);
        let mut content = vec![
            ("commit", said("git", &["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"])),
            ("kernel", machine.kernel),
            ("machine", format!("{} CPUs ({}), {memory:.1} GiB memory", machine.cpus, machine.cpu)),
            ("clock", machine.clock_source.unwrap_or_else(|| "unknown".to_owned())),
            ("autogroup", known("/proc/sys/kernel/sched_autogroup_enabled")),
            ("load at the end", machine.load),
            ("branches", "XFS on loop devices over preallocated images in memory".to_owned()),
            ("rounds", format!("{rounds}, interleaved, in balanced order; medians")),
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

/// The line in a file of the kernel.
fn known(path: &str) -> String {
    std::fs::read_to_string(path).map_or("unknown".to_owned(), |text| text.trim().to_owned())
}

fn said(program: &str, arguments: &[&str]) -> String {
    let content = command(program).args(arguments).run();
    content.map_or("unknown".to_owned(), |finished| finished.stdout.trim().to_owned())
}
