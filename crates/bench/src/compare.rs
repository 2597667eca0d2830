//! `compare`: one workload, or a sweep of it, on directories that the user names.

use anyhow::{Result, bail, ensure};

use crate::arguments::{Compare, Work};
use crate::bar::Limit;
use crate::plan::{Cells, Plan, Repeated};
use crate::record::{Case, Figure, WorkloadShape};
use crate::rivals::Rivals;
use crate::workload::{Engine, Op, Workload};

/// A value of a sweep.
struct Step {
    x: f64,
    label: String,
    workload: Workload,
}

/// Makes the plan of `compare`. Its mounts last as long as the second value.
pub(crate) fn plan(given: &Compare) -> Result<(Plan, Rivals)> {
    let (figures, cases) = cases(&given.work)?;
    let mut plan = Plan {
        name: "compare".to_owned(),
        title: "Targets compared".to_owned(),
        targets: given.running.targets.clone(),
        baseline: given.running.baseline.clone().unwrap_or_default(),
        figures,
        cases,
        rounds: given.running.rounds.unwrap_or(7),
        rounds_max: 0,
        warmups: given.running.warmups.unwrap_or(1),
        bonnie_rounds: u32::MAX,
        cells: Cells { seconds: given.running.cell_seconds.unwrap_or(0.0), of: Repeated::All },
        bars: Vec::new(),
        again: None,
        disks: None,
        seed: given.running.seed,
        published: Vec::new(),
        skipped: Vec::new(),
        notes: Vec::new(),
        bears: Vec::new(),
        exports: Vec::new(),
    };
    if let (true, Some(first)) = (plan.baseline.is_empty(), plan.targets.first()) {
        plan.baseline.clone_from(&first.name);
    }
    plan.rounds_max = given.running.rounds_max.unwrap_or(plan.rounds);
    plan.check()?;
    if let Some(part) = given.bar {
        ensure!(part.is_finite() && 0.0 < part, "--bar is a part of the baseline's rate, as 0.97");
        let own: Vec<String> = plan.targets.iter().map(|target| target.name.clone()).collect();
        let cases: Vec<String> = plan.cases.iter().map(|case| case.name.clone()).collect();
        for (case, target) in cases.iter().flat_map(|case| own.iter().map(move |target| (case, target))) {
            plan.add_bar(case, case, target, Limit::RateAtLeast(part));
        }
    }
    let mut rivals = Rivals::default();
    if given.rivals {
        rivals.mount(&mut plan, &given.branches)?;
    }
    Ok((plan, rivals))
}

/// Makes a figure and its cases for each operation.
fn cases(work: &Work) -> Result<(Vec<Figure>, Vec<Case>)> {
    let ops = if work.ops.is_empty() { vec![Op::Write, Op::Read] } else { work.ops.clone() };
    let names = !ops[0].moves_data();
    let engine = work.engine.unwrap_or(if names { Engine::Metadata } else { Engine::Psync });
    let base = Workload {
        engine,
        pattern: work.pattern,
        stride: work.stride,
        block: work.block[0],
        file_size: work.file_size[0],
        tasks: work.tasks[0],
        depth: work.depth[0],
        files: work.files,
        direct: work.direct,
        registered: work.registered,
        sync: work.sync,
        data: work.data,
        cache: work.cache,
        timed: work.timed,
        seconds: work.seconds,
        rate: work.rate,
        entries: work.entries,
        connections: None,
        pace: None,
        op: ops[0],
    };
    let (x_label, steps) = sweep(work, &base)?;
    let (mut figures, mut cases) = (Vec::new(), Vec::new());
    let lines = 1 < steps.len();
    for &op in &ops {
        let figure = if lines { format!("{op} by {x_label}") } else { what(&base).to_owned() };
        let unit = Workload { op, ..base.clone() }.unit().to_owned();
        if !figures.iter().any(|f: &Figure| f.name == figure && f.unit == unit) {
            let shape = if lines { WorkloadShape::Lines } else { WorkloadShape::Bars };
            let title = if lines { format!("{op}, by {x_label}") } else { title(&base) };
            figures.push(Figure { name: figure.clone(), title, shape, x_label: x_label.clone(), unit });
        }
        for step in &steps {
            let name = if lines { format!("{op}, {} {x_label}", step.label) } else { op.to_string() };
            let x_label = if lines { step.label.clone() } else { op.to_string() };
            let workload = Workload { op, ..step.workload.clone() };
            cases.push(Case { name, figure: figure.clone(), x: step.x, x_label, workload });
        }
    }
    Ok((figures, cases))
}

fn what(base: &Workload) -> &'static str {
    if base.engine == Engine::Metadata { "operations on names" } else { "data" }
}

fn title(base: &Workload) -> String {
    let Workload { engine, block, file_size, tasks, pattern, entries, .. } = base;
    match engine {
        Engine::Metadata => format!("Operations on names, {tasks} tasks with {entries} names each"),
        _ => {
            let who =
                if tasks.get() == 1 { "1 task with".to_owned() } else { format!("{tasks} tasks, each") };
            format!("Blocks of {block}, {pattern}, {who} {file_size}, {engine}")
        }
    }
}

/// Expands the one option with several values into workloads.
fn sweep(work: &Work, base: &Workload) -> Result<(String, Vec<Step>)> {
    let long = [work.block.len(), work.file_size.len(), work.tasks.len(), work.depth.len()];
    if 1 < long.iter().filter(|&&len| 1 < len).count() {
        bail!("only one of --block, --file-size, --tasks and --depth may have several values");
    }
    let step = |x: f64, label: String, workload| Step { x, label, workload };
    let with = |change: &dyn Fn(&mut Workload)| {
        let mut workload = base.clone();
        change(&mut workload);
        workload
    };
    Ok(if 1 < work.block.len() {
        let steps = work.block.iter().map(|&b| step(b.0 as f64, b.to_string(), with(&|w| w.block = b)));
        ("block size".to_owned(), steps.collect())
    } else if 1 < work.file_size.len() {
        let steps =
            work.file_size.iter().map(|&b| step(b.0 as f64, b.to_string(), with(&|w| w.file_size = b)));
        ("file size".to_owned(), steps.collect())
    } else if 1 < work.depth.len() {
        let steps = work.depth.iter().map(|&d| step(d.get().into(), d.to_string(), with(&|w| w.depth = d)));
        ("queue depth".to_owned(), steps.collect())
    } else if 1 < work.tasks.len() {
        let steps = work.tasks.iter().map(|&t| step(t.get().into(), t.to_string(), with(&|w| w.tasks = t)));
        ("tasks".to_owned(), steps.collect())
    } else {
        (String::new(), vec![step(0.0, String::new(), base.clone())])
    })
}
