//! `plan FILE.toml`: users' own workloads, and built-in ones.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::arguments::Running;
use crate::plan::{Cells, Plan, Repeated};
use crate::record::{Case, Figure, WorkloadShape};
use crate::target::Target;
use crate::workload::Workload;

/// Built-in plans: name and text.
pub(crate) const BUILT_IN: &[(&str, &str)] = &[
    ("media-server", include_str!("../plans/media-server.toml")),
    ("mail-spool", include_str!("../plans/mail-spool.toml")),
    ("checkpoint", include_str!("../plans/checkpoint.toml")),
    ("source-tree", include_str!("../plans/source-tree.toml")),
];

/// A plan file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenPlan {
    title: String,
    #[serde(default)]
    rounds: Option<u32>,
    #[serde(default)]
    warmups: u32,
    #[serde(default)]
    targets: Vec<WrittenTarget>,
    /// The workload that each case begins with.
    #[serde(default)]
    all: toml::Table,
    case: Vec<toml::Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTarget {
    name: String,
    dir: std::path::PathBuf,
}

/// Reads a plan from a file, or the built-in one of that name; targets on the command line override the file's.
pub(crate) fn plan(file: &Path, running: &Running) -> Result<Plan> {
    let built_in = BUILT_IN.iter().find(|(name, _)| file == Path::new(name));
    let (name, text) = match built_in {
        Some((name, text)) if !file.exists() => ((*name).to_owned(), (*text).to_owned()),
        _ => {
            let text = fs::read_to_string(file).with_context(|| {
                let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
                format!("{}: no such plan (built in: {})", file.display(), names.join(", "))
            })?;
            (file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), text)
        }
    };
    parse(&name, &text, running).with_context(|| file.display().to_string())
}

fn parse(name: &str, text: &str, running: &Running) -> Result<Plan> {
    let written: WrittenPlan =
        toml::from_str(text).map_err(|e| anyhow::anyhow!("{}", e.to_string().trim_end()))?;
    let mut plan = Plan {
        name: name.to_owned(),
        title: written.title,
        targets: running.targets.clone(),
        baseline: running.baseline.clone().unwrap_or_default(),
        figures: Vec::new(),
        cases: Vec::new(),
        rounds: running.rounds.or(written.rounds).unwrap_or(7),
        rounds_max: 0,
        warmups: running.warmups.unwrap_or(written.warmups),
        bonnie_rounds: u32::MAX,
        cells: Cells { seconds: running.cell_seconds.unwrap_or(0.0), of: Repeated::All },
        bars: Vec::new(),
        again: None,
        disks: None,
        seed: running.seed,
        published: Vec::new(),
        skipped: Vec::new(),
        notes: Vec::new(),
        bears: Vec::new(),
        exports: Vec::new(),
    };
    plan.rounds_max = running.rounds_max.unwrap_or(plan.rounds);
    if plan.targets.is_empty() {
        for WrittenTarget { name, dir } in written.targets {
            let target: Target = format!("{name}={}", dir.display()).parse().map_err(anyhow::Error::msg)?;
            plan.targets.push(target);
        }
    }
    if let (true, Some(first)) = (plan.baseline.is_empty(), plan.targets.first()) {
        plan.baseline.clone_from(&first.name);
    }
    ensure!(!written.case.is_empty(), "no [[case]]");
    for table in written.case {
        let case = case(table, &written.all)?;
        let unit = case.workload.unit();
        if !plan.figures.iter().any(|figure| figure.name == case.figure) {
            let title = plan.title.clone() + if unit == "B/s" { ": data" } else { ": names" };
            let (name, x_label) = (case.figure.clone(), String::new());
            plan.figures.push(Figure {
                name,
                title,
                shape: WorkloadShape::Bars,
                x_label,
                unit: unit.to_owned(),
            });
        }
        plan.cases.push(case);
    }
    Ok(plan)
}

/// Parses a case: its name, and its differences from the common workload.
fn case(mut table: toml::Table, all: &toml::Table) -> Result<Case> {
    let Some(toml::Value::String(name)) = table.remove("name") else { bail!("a [[case]] has no name") };
    for (key, value) in all {
        table.entry(key).or_insert_with(|| value.clone());
    }
    let workload: Workload =
        table.try_into().map_err(|e: toml::de::Error| anyhow::anyhow!("case {name}: {}", e.message()))?;
    workload.check(&name)?;
    Ok(Case { figure: workload.unit().to_owned(), x: 0.0, x_label: name.clone(), name, workload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> Running {
        let (targets, baseline, rounds) = (Vec::new(), None, None);
        Running {
            targets,
            baseline,
            rounds,
            warmups: None,
            rounds_max: None,
            cell_seconds: None,
            seed: 1,
            out: None,
        }
    }

    #[test]
    fn the_built_in_plans_are_plans() {
        for (name, text) in BUILT_IN {
            let plan = parse(name, text, &running()).unwrap();
            assert!(!plan.cases.is_empty() && !plan.title.is_empty(), "{name}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let refusal = |text: &str| format!("{:#}", parse("p", text, &running()).unwrap_err());
        assert!(refusal("title = 't'\ncase = []").contains("no [[case]]"));
        assert!(refusal("title = 't'\n[[case]]\nop = 'read'").contains("no name"));
        assert!(
            refusal("title = 't'\n[[case]]\nname = 'a'\nblok = 1").contains("case a: unknown field `blok`")
        );
        assert!(refusal("title = 't'\n[[case]]\nname = 'a'\nblock = '1Q'").contains("1Q"));
        assert!(refusal("titel = 't'").contains("titel"));
        assert!(refusal("= ").contains("line 1"));
    }

    #[test]
    fn a_case_changes_the_common_workload() {
        let text =
            "title = 't'\n[all]\nblock = '4K'\ntasks = 2\n[[case]]\nname = 'a'\nblock = '8K'\nop = 'read'";
        let plan = parse("p", text, &running()).unwrap();
        let workload = &plan.cases[0].workload;
        assert_eq!((workload.block.0, workload.tasks.get()), (8192, 2));
    }
}
