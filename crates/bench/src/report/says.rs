//! Findings as sentences. A comparison is stated only if the interval supports it.

use super::{microseconds, rate};
use crate::experiment;
use crate::record::{Figure, Results, Summary, WorkloadShape};
use crate::stats::Verdict;

/// Findings of the results: on the experiment's question first, then figure by figure.
pub(crate) fn says(results: &Results) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(why) = &results.ended_early {
        said.push(format!("This run ended early ({why}): what follows is what was measured until then."));
    }
    said.extend(experiment::says(results));
    for figure in &results.figures {
        match figure.shape {
            WorkloadShape::Bars => said.extend(bars(results, figure)),
            WorkloadShape::Lines => said.extend(lines(results, figure)),
        }
    }
    said.extend(cost(results));
    said.extend(starts(results));
    if let Some(published) = beside_published(results) {
        said.push(published);
    }
    said
}

/// A sentence per target: its ratio to the baseline in each case.
fn bars(results: &Results, figure: &Figure) -> Vec<String> {
    let sentence = |name: &str| {
        let baseline = results.baseline_of(name)?;
        let compared = results.cases_of(&figure.name).filter_map(|case| {
            let summary = results.summary(&case.name, name)?;
            Some(format!("{} {}", case.x_label, compared(summary)?))
        });
        let parts: Vec<String> = compared.collect();
        (!parts.is_empty())
            .then(|| format!("{}: {name} against {baseline}: {}.", figure.title, parts.join("; ")))
    };
    results.contenders().filter_map(|target| sentence(&target.name)).collect()
}

fn compared(summary: &Summary) -> Option<String> {
    let ratio = summary.ratio?;
    let word = match ratio.verdict {
        Verdict::TooFewRounds => "too few rounds for a verdict".to_owned(),
        verdict => verdict.to_string(),
    };
    Some(format!("{:.2} [{:.2}, {:.2}], {word}", ratio.value, ratio.low, ratio.high))
}

/// A sentence per target: the peak and the end of its line.
fn lines(results: &Results, figure: &Figure) -> Vec<String> {
    let sentence = |name: &str| {
        let cases: Vec<_> =
            results.cases_of(&figure.name).filter(|c| results.summary(&c.name, name).is_some()).collect();
        let value = |case: &str| results.summary(case, name).map_or(f64::NAN, |s| s.rate.median);
        let peak = cases.iter().max_by(|a, b| value(&a.name).total_cmp(&value(&b.name)))?;
        let (first, last) = (cases.first()?, cases.last()?);
        if cases.len() < 2 {
            return None;
        }
        let shown = |case: &str| rate(value(case), &figure.unit);
        let trend = match value(&last.name) / value(&peak.name) {
            _ if peak.name == last.name => "still the highest at the end".to_owned(),
            kept => format!("{:.0} % of that at {}", kept * 100.0, last.x_label),
        };
        Some(format!(
            "{}: {name} goes from {} at {} to its peak of {} at {}; {trend}.",
            figure.title,
            shown(&first.name),
            first.x_label,
            shown(&peak.name),
            peak.x_label
        ))
    };
    results.contenders().filter_map(|target| sentence(&target.name)).collect()
}

/// The share of union file systems in the stack's CPU time of transfers.
fn cost(results: &Results) -> Vec<String> {
    let most = |program: &str, target: &str| {
        let moved = |s: &&Summary| results.case(&s.case).is_some_and(|c| c.workload.op.moves_data());
        let of_target = results.summaries.iter().filter(|s| s.target == target).filter(moved);
        let parts = of_target.filter_map(|s| s.cpu.iter().find(|c| c.program == program).map(|c| c.part));
        parts.reduce(f64::max)
    };
    let sentence = |program: &str| {
        let on = |name: &str| Some(format!("{:.1} % on {name}", most(program, name)? * 100.0));
        let parts: Vec<String> = results.contenders().filter_map(|t| on(&t.name)).collect();
        let list = parts.join(", ");
        (!parts.is_empty()).then(|| {
            format!(
                "While bytes were moved, {program} used at most this part of the stack's CPU time: {list}."
            )
        })
    };
    ["fsstack", "mhddfs", "mergerfs", "glusterfs"].into_iter().filter_map(sentence).collect()
}

/// Differences of the tasks' start times, if there were several.
fn starts(results: &Results) -> Option<String> {
    let several = |s: &&Summary| results.case(&s.case).is_some_and(|c| 1 < c.workload.tasks.get());
    let skews = results.summaries.iter().filter(several).filter_map(|s| Some((s.start_skew_us?, s)));
    let (skew, most) = skews.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let shown = microseconds(skew);
    Some(format!(
        "Tasks that belong together started within {shown} of each other at most (median of rounds, {}).",
        most.case
    ))
}

fn beside_published(results: &Results) -> Option<String> {
    (!results.published.is_empty()).then(|| {
        "Published figures are drawn beside ours. They were taken on other hardware: compare ratios and shapes, not heights.".to_owned()
    })
}
