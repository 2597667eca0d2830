//! The answer of a run: a question, a sentence about the one pair that matters, bars, one table, and the conditions in a
//! line. Every report begins with it, and the terminal ends with it.

use super::rate;
use crate::bar::{DecidedBar, Decision, Measure};
use crate::experiment;
use crate::record::{Case, Results, Summary, TargetRecord, WorkloadShape};
use crate::stats::{Ratio, Verdict, resolution};
use crate::workload::{Bytes, Sync};

/// Most columns of the table.
const MOST_COLUMNS: usize = 6;

/// The answer.
pub(crate) struct FirstScreen {
    pub(crate) question: String,
    pub(crate) sentence: String,
    pub(crate) bars: Vec<(Decision, String)>,
    /// Heads of the columns: cases.
    pub(crate) columns: Vec<String>,
    /// A row for each target that is compared.
    pub(crate) rows: Vec<AnswerRow>,
    pub(crate) conditions: Vec<String>,
}

/// A target in the table.
pub(crate) struct AnswerRow {
    pub(crate) target: String,
    /// Ratio to the baseline in each column.
    pub(crate) ratios: Vec<Option<Ratio>>,
    /// CPU time of the whole stack for a MiB, in microseconds, of the first column that moves data.
    pub(crate) cpu_us: Option<f64>,
    /// Ratios that others published of such a target.
    pub(crate) published: Option<String>,
}

/// The answer of results.
pub(crate) fn answer(results: &Results) -> FirstScreen {
    let columns = columns(results);
    let compared = results.contenders().filter(|target| results.baseline_of(&target.name).is_some());
    FirstScreen {
        question: question(results),
        sentence: sentence(results),
        bars: results.bars.iter().map(|bar| (bar.decision, bar_words(bar))).collect(),
        columns: columns.iter().map(|case| case.name.clone()).collect(),
        rows: compared.map(|target| row(results, target, &columns)).collect(),
        conditions: conditions(results),
    }
}

fn question(results: &Results) -> String {
    let made = &results.made;
    match experiment::question(&made.plan) {
        Some(question) => format!("{}: {question}", made.plan),
        None if made.plan == "compare" => format!("How fast are the targets beside {}?", made.baseline),
        None => made.title.clone(),
    }
}

fn sentence(results: &Results) -> String {
    let first = || {
        let mut pairs = results.contenders().filter(|target| results.baseline_of(&target.name).is_some());
        let cases: Vec<&str> = columns(results).into_iter().map(|case| case.name.as_str()).collect();
        pairs.find_map(|target| pair(results, &target.name, &cases))
    };
    let alone = || {
        let rates = results.summaries.iter().map(|s| format!("{} {}", s.case, rate(s.rate.median, &s.unit)));
        let rates: Vec<String> = rates.take(MOST_COLUMNS).collect();
        format!("Nothing is compared: {}.", rates.join(", "))
    };
    let said = experiment::answer(results).or_else(first);
    let said = if results.summaries.is_empty() {
        "Nothing was measured.".to_owned()
    } else {
        said.unwrap_or_else(alone)
    };
    match &results.ended_early {
        Some(why) => format!("The run ended early ({why}); until then: {said}"),
        None => said,
    }
}

/// A sentence on a target and its baseline in some cases; `None` if it was measured in none of them.
pub(crate) fn pair(results: &Results, target: &str, cases: &[&str]) -> Option<String> {
    let baseline = results.baseline_of(target)?;
    let known = cases.iter().filter_map(|case| Some((*case, results.summary(case, target)?.ratio?)));
    let known: Vec<(&str, Ratio)> = known.collect();
    let shown =
        |(case, r): &(&str, Ratio)| format!("{:.2} of its {case} [{:.2}, {:.2}]", r.value, r.low, r.high);
    let list = known.iter().map(shown).collect::<Vec<_>>().join(", ");
    let any = |verdict| known.iter().any(|(_, r)| r.verdict == verdict);
    let widest = known.iter().map(|(_, r)| r.resolution()).fold(0.0, f64::max);
    let apart = format!("{target} against {baseline}: {list}");
    Some(match () {
        () if known.is_empty() => return None,
        () if any(Verdict::TooFewRounds) => format!("Too few rounds for a verdict. {apart}."),
        () if any(Verdict::Slower) && any(Verdict::Faster) => format!("It depends on the work. {apart}."),
        () if any(Verdict::Slower) => format!("It is slower. {apart}."),
        () if any(Verdict::Faster) => format!("It is faster. {apart}."),
        () if any(Verdict::Unclear) => format!(
            "No difference that this run can see. {apart}. It would have seen one of {:.0} %.",
            (widest * 100.0).ceil()
        ),
        () => format!("The same within 3 %. {apart}."),
    })
}

/// A bar and what was found.
fn bar_words(bar: &DecidedBar) -> String {
    let DecidedBar { name, target, limit, value, low, high, rounds, decision, .. } = bar;
    let percent = |part: &f64| format!("{:.1} %", part * 100.0);
    let (promise, found) = match bar.of {
        Measure::Rate => (format!("at least {limit:.2}"), format!("{value:.2} [{low:.2}, {high:.2}]")),
        Measure::CpuPart => (
            format!("at most {}", percent(limit)),
            format!("{} [{}, {}]", percent(value), percent(low), percent(high)),
        ),
    };
    let tells = match (decision, bar.of) {
        (Decision::NotDecided, Measure::Rate) => {
            format!(", can tell {:.0} %", (resolution(*low, *high) * 100.0).ceil())
        }
        _ => String::new(),
    };
    format!("{name} of {target} {promise}: {found}, {rounds} rounds{tells}")
}

/// Cases for the table: all of a figure of bars, the last of a sweep, those with a bar first if there are too many.
fn columns(results: &Results) -> Vec<&Case> {
    let mut all: Vec<&Case> = Vec::new();
    for figure in &results.figures {
        let cases: Vec<&Case> = results.cases_of(&figure.name).collect();
        match figure.shape {
            WorkloadShape::Bars => all.extend(cases),
            WorkloadShape::Lines => all.extend(cases.last()),
        }
    }
    if MOST_COLUMNS < all.len() {
        let has_bar = |case: &Case| results.bars.iter().any(|bar| bar.case == case.name);
        // Stable: the plan's order stays.
        all.sort_by_key(|case| !has_bar(case));
        all.truncate(MOST_COLUMNS);
    }
    all
}

fn row(results: &Results, target: &TargetRecord, columns: &[&Case]) -> AnswerRow {
    let of = |case: &&Case| results.summary(&case.name, &target.name);
    let moves = columns.iter().find(|case| case.workload.op.moves_data());
    let role = target.name.rsplit('.').next().unwrap_or_default();
    let told = results.published.iter().filter(|p| p.relative);
    let told = told.filter(|p| p.series.split(',').next() == Some(role)).flat_map(|p| &p.points);
    let told: Vec<String> = told.map(|point| format!("{:.2}", point.low)).collect();
    AnswerRow {
        target: target.name.clone(),
        ratios: columns.iter().map(|case| of(case)?.ratio).collect(),
        cpu_us: moves.and_then(of).and_then(|s| s.cpu_us_each),
        published: (!told.is_empty()).then(|| told.join(" / ")),
    }
}

/// Conditions to know before believing a figure.
fn conditions(results: &Results) -> Vec<String> {
    let (made, machine) = (&results.made, &results.machine);
    let mut all = vec![format!("{} CPUs, {}", machine.cpus, machine.kernel)];
    all.extend(machine.memory_limit_bytes.map(|limit| format!("held to {} of memory", Bytes(limit))));
    all.extend(made.disks.clone());
    all.push(cells(results));
    let rounds = || results.summaries.iter().map(|s| s.rate.rounds);
    let (least, most) = (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0));
    all.push(if least < most { format!("{least} to {most} rounds") } else { format!("{most} rounds") });
    all.push(tells(results));
    let writes = results.cases.iter().any(|c| c.workload.op.moves_data() && c.workload.sync == Sync::Never);
    if writes {
        all.push("writes without fsync".to_owned());
    }
    let warm = |s: &&Summary| s.cold.is_some_and(|cold| !cold.is_cold());
    let mut not_cold: Vec<String> =
        results.summaries.iter().filter(warm).map(|s| format!("{} on {}", s.case, s.target)).collect();
    not_cold.dedup();
    if let Some(first) = not_cold.first() {
        all.push(format!("{} cells not cold, first {first}", not_cold.len()));
    }
    let after = machine.load_after.as_ref().map_or(String::new(), |load| format!(" before, {load} after"));
    all.push(format!("load {}{after}", machine.load));
    let load: f64 = machine.load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    if machine.cpus as f64 * 0.5 < load {
        all.push("other programs ran".to_owned());
    }
    all
}

fn cells(results: &Results) -> String {
    let seconds = || results.summaries.iter().map(|s| s.seconds);
    let (least, most) = (seconds().fold(f64::INFINITY, f64::min), seconds().fold(0.0, f64::max));
    let with_bar = |s: &&Summary| results.bars.iter().any(|bar| bar.case == s.case && bar.target == s.target);
    let of_bars = results.summaries.iter().filter(with_bar).map(|s| s.seconds).reduce(f64::min);
    let of_bars = of_bars.map_or(String::new(), |least| format!(", those of bars from {least:.1} s"));
    if results.summaries.is_empty() {
        "no cells".to_owned()
    } else {
        format!("cells of {least:.2} to {most:.2} s{of_bars}")
    }
}

/// Resolution of the run, by the baseline measured twice.
fn tells(results: &Results) -> String {
    let all: Vec<(&str, &Ratio)> = results.resolutions().collect();
    let widest = all.iter().max_by(|a, b| a.1.resolution().total_cmp(&b.1.resolution()));
    let Some((case, ratio)) = widest else { return "the baseline was measured once".to_owned() };
    let apart = |(_, r): &&(&str, &Ratio)| matches!(r.verdict, Verdict::Faster | Verdict::Slower);
    let wrong: Vec<&str> = all.iter().filter(apart).map(|(case, _)| *case).collect();
    let wrong = match wrong.as_slice() {
        [] => String::new(),
        cases => format!(
            "; told apart in {} of {}, as 1 in 20 is by chance: {}",
            cases.len(),
            all.len(),
            cases.join(", ")
        ),
    };
    let middle = crate::stats::median(&all.iter().map(|(_, r)| r.resolution()).collect::<Vec<_>>());
    format!(
        "the baseline to itself: tells {:.0} % apart (median of cases; widest {:.0} %, {case}){wrong}",
        middle * 100.0,
        ratio.resolution() * 100.0
    )
}

/// The answer on a terminal.
pub(crate) fn plain(answer: &FirstScreen) -> String {
    let mut text = format!("\n{}\n  {}\n", answer.question, answer.sentence);
    answer.bars.iter().for_each(|(decision, words)| text += &format!("  {decision}: {words}\n"));
    text + &format!("  ({})\n", answer.conditions.join("; "))
}
