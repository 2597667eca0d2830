//! Plots of a report.

use super::{microseconds, rate, three};
use crate::plot::{Axis, Bar, Bars, Forest, Line, Lines, Mark};
use crate::published::Published;
use crate::record::{Case, Figure, Results, Summary, WorkloadShape};

/// Colours the page knows.
const COLOURS: usize = 8;

/// A plot with its legend.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) svg: String,
    /// Name, colour, whether published.
    pub(crate) legend: Vec<(String, usize, bool)>,
}

/// The plots of the results: one for each figure.
pub(crate) fn charts(results: &Results) -> Vec<Chart> {
    let mut charts = Vec::new();
    for figure in &results.figures {
        if results.cases_of(&figure.name).next().is_none() {
            continue;
        }
        match figure.shape {
            WorkloadShape::Lines => charts.push(lines(results, figure)),
            WorkloadShape::Bars => {
                let ratios = ratio_bars(results, figure);
                charts.push(ratios.unwrap_or_else(|| rate_bars(results, figure)));
            }
        }
    }
    charts
}

/// The plots behind them: rates, CPU time, latencies.
pub(crate) fn details(results: &Results) -> Vec<Chart> {
    let bars = |figure: &&Figure| {
        figure.shape == WorkloadShape::Bars
            && results.cases_of(&figure.name).next().is_some()
            && ratio_bars(results, figure).is_some()
    };
    let mut charts: Vec<Chart> =
        results.figures.iter().filter(bars).map(|figure| rate_bars(results, figure)).collect();
    charts.extend(cpu(results));
    charts.extend(latency(results));
    charts
}

/// `dt8.pool` is `pool` of the group `dt8`.
fn group_and_role(target: &str) -> (&str, &str) {
    target.rsplit_once('.').unwrap_or(("", target))
}

/// The groups of targets, in their order; one without a name where there are none.
fn target_groups(results: &Results) -> Vec<&str> {
    let mut groups: Vec<&str> = Vec::new();
    for target in results.contenders() {
        let (group, _) = group_and_role(&target.name);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// Targets with the same role have the same colour in all groups.
pub(super) fn colour_of(results: &Results, target: &str) -> usize {
    let mut roles: Vec<&str> = Vec::new();
    for target in results.contenders() {
        let (_, role) = group_and_role(&target.name);
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
    roles.iter().position(|role| *role == group_and_role(target).1).unwrap_or(0) % COLOURS
}

/// Published series of a figure: one named like a target has its colour, others their own in all figures.
fn published<'a>(
    results: &'a Results,
    figure: &'a Figure,
    relative: bool,
) -> impl Iterator<Item = (usize, &'a Published)> {
    let of = move |p: &&Published| p.figure == figure.name && p.relative == relative;
    results.published.iter().filter(of).map(move |p| (published_colour(results, &p.series), p))
}

fn published_colour(results: &Results, series: &str) -> usize {
    // As "GPFS" in "GPFS, its peak".
    let whose = |series: &'_ str| series.split(", its").next().unwrap_or_default().to_owned();
    let is_target = |name: &str| results.targets.iter().any(|target| target.name == name);
    if is_target(series) {
        return colour_of(results, series);
    }
    let mut others: Vec<String> = Vec::new();
    for name in results.published.iter().map(|p| whose(&p.series)).filter(|name| !is_target(name)) {
        if !others.contains(&name) {
            others.push(name);
        }
    }
    let at = others.iter().position(|name| *name == whose(series)).unwrap_or(0);
    (results.contenders().count() + at) % COLOURS
}

fn lines(results: &Results, figure: &Figure) -> Chart {
    let (mut lines, mut legend) = (Vec::new(), Vec::new());
    for target in results.contenders() {
        let colour = colour_of(results, &target.name);
        let of = |case: &Case| results.summary(&case.name, &target.name).map(|s| (case.x, s.rate));
        let points = results.cases_of(&figure.name).filter_map(of);
        let points: Vec<_> = points.map(|(x, r)| (x, r.median, r.lower_quartile, r.upper_quartile)).collect();
        if !points.is_empty() {
            lines.push(Line { colour, mark: Mark::Measured, points });
            legend.push((target.name.clone(), colour, false));
        }
    }
    for (colour, series) in published(results, figure, false) {
        // Only the two ends of the range were published.
        for end in ends(series) {
            let points = series.points.iter().zip(end).map(|(p, y)| (p.x, y, y, y)).collect();
            lines.push(Line { colour, mark: Mark::Published, points });
        }
        legend.push((format!("{} (published)", series.series), colour, true));
    }
    let x_marks = results.cases_of(&figure.name).map(|case| (case.x, case.x_label.clone())).collect();
    let svg = Lines {
        title: &figure.title,
        x_title: &figure.x_label,
        x_axis: Axis::Log,
        y_axis: Axis::Log,
        x_marks,
        y_words: &|value| rate(value, &figure.unit),
        lines,
    }
    .svg();
    let note = "Medians of the rounds; whiskers are quartiles. Both axes are logarithmic.".to_owned();
    Chart { title: figure.title.clone(), note, svg, legend }
}

/// The lines of a published series: its values, or the lower and the upper ends of its ranges.
fn ends(series: &Published) -> Vec<Vec<f64>> {
    let (low, high): (Vec<f64>, Vec<f64>) = series.points.iter().map(|p| (p.low, p.high)).unzip();
    if low == high { vec![low] } else { vec![low, high] }
}

/// The values of a case's bars, by target.
type BarValues<'a> = dyn Fn(&Summary) -> Option<(f64, f64, f64)> + 'a;

fn groups(results: &Results, figure: &Figure, relative: bool, of: &BarValues<'_>) -> Vec<(String, Vec<Bar>)> {
    let mut drawn = Vec::new();
    for case in results.cases_of(&figure.name) {
        for group in target_groups(results) {
            let bars = group_bars(results, case, group, of);
            if !bars.is_empty() {
                let on = if group.is_empty() { String::new() } else { format!(" on {group}") };
                drawn.push((case.x_label.clone() + &on, bars));
            }
        }
        let mut others = Vec::new();
        for (colour, series) in published(results, figure, relative) {
            for point in series.points.iter().filter(|p| p.x_label == case.x_label) {
                let (name, low, high) = (series.series.clone(), point.low, point.high);
                others.push(Bar { name, colour, published: true, value: high, low, high });
            }
        }
        match drawn.last_mut().filter(|_| target_groups(results).len() == 1) {
            Some((_, bars)) => bars.extend(others),
            None if !others.is_empty() => drawn.push((format!("{}, published", case.x_label), others)),
            None => {}
        }
    }
    drawn
}

fn group_bars(results: &Results, case: &Case, group: &str, of: &BarValues<'_>) -> Vec<Bar> {
    let targets = results.contenders().filter(|t| group_and_role(&t.name).0 == group);
    let bar = |name: &str| {
        let (value, low, high) = results.summary(&case.name, name).and_then(of)?;
        let (_, role) = group_and_role(name);
        let colour = colour_of(results, name);
        Some(Bar { name: role.to_owned(), colour, published: false, value, low, high })
    };
    targets.filter_map(|target| bar(&target.name)).collect()
}

fn rate_bars(results: &Results, figure: &Figure) -> Chart {
    let of = |s: &Summary| Some((s.rate.median, s.rate.lower_quartile, s.rate.upper_quartile));
    let groups = groups(results, figure, false, &of);
    let words = |value: f64| if value == 0.0 { "0".to_owned() } else { rate(value, &figure.unit) };
    let svg = Bars { title: &figure.title, groups, words: &words, mark: None }.svg();
    let note = "Medians of the rounds; the lines at the ends of the bars are quartiles.".to_owned();
    Chart { title: figure.title.clone(), note, svg, legend: Vec::new() }
}

/// Ratios to the baseline; none where there is nothing to compare.
fn ratio_bars(results: &Results, figure: &Figure) -> Option<Chart> {
    let groups = groups(results, figure, true, &|s| s.ratio.map(|r| (r.value, r.low, r.high)));
    if groups.is_empty() {
        return None;
    }
    let baseline = &results.made.baseline;
    let role = baseline.rsplit('.').next().unwrap_or(baseline);
    let title = format!("{}, relative to {role}", figure.title);
    let svg = Forest { title: &title, groups }.svg();
    let outlined = published(results, figure, true).next().is_some();
    let mut note = "1 is as fast as the baseline. Lines: 95 % interval. The axis is logarithmic.".to_owned();
    if outlined {
        note += " Dots in outline were published by others, on other hardware.";
    }
    Some(Chart { title, note, svg, legend: Vec::new() })
}

/// Latencies: a plot per case and group of targets.
fn latency(results: &Results) -> Vec<Chart> {
    let mut charts = Vec::new();
    for figure in &results.figures {
        let cases: Vec<&Case> = results.cases_of(&figure.name).collect();
        // All cases of a comparison; the middle one of a sweep.
        let shown: Vec<&Case> = match figure.shape {
            WorkloadShape::Bars => cases,
            WorkloadShape::Lines => cases.get(cases.len() / 2).copied().into_iter().collect(),
        };
        let groups = target_groups(results);
        let each = |case| groups.iter().filter_map(move |group| latency_of(results, case, group));
        charts.extend(shown.into_iter().flat_map(each));
    }
    charts
}

/// The latencies of a case in a group of targets; `None` where none were observed.
fn latency_of(results: &Results, case: &Case, group: &str) -> Option<Chart> {
    let (mut lines, mut legend) = (Vec::new(), Vec::new());
    for target in results.contenders().filter(|t| group_and_role(&t.name).0 == group) {
        let Some(summary) = results.summary(&case.name, &target.name) else { continue };
        let colour = colour_of(results, &target.name);
        // x is 1 / (1 - q): one in so many operations is slower. The maximum has no place on that axis.
        let curve = summary.latency_curve.iter().filter(|(q, _)| *q < 1.0);
        let points = curve.map(|&(q, us)| (1.0 / (1.0 - q), us.max(0.001), us, us)).collect();
        lines.push(Line { colour, mark: Mark::Measured, points });
        legend.push((target.name.clone(), colour, false));
    }
    if lines.iter().all(|line: &Line| line.points.is_empty()) {
        return None;
    }
    let on = if group.is_empty() { String::new() } else { format!(" on {group}") };
    let title = format!("Latency: {}{on}", case.name);
    let most = lines.iter().flat_map(|line: &Line| &line.points).map(|p| p.0).fold(2.0, f64::max);
    let marks = [(2.0, "50 %"), (10.0, "90 %"), (100.0, "99 %"), (1000.0, "99.9 %"), (10000.0, "99.99 %")];
    let svg = Lines {
        title: &title,
        x_title: "of the operations took no longer",
        x_axis: Axis::Log,
        y_axis: Axis::Log,
        x_marks: marks
            .into_iter()
            .filter(|m| m.0 <= most * 1.01)
            .map(|(x, words)| (x, words.to_owned()))
            .collect(),
        y_words: &microseconds,
        lines,
    }
    .svg();
    Some(Chart { title, note: "Lower is better. All rounds together.".to_owned(), svg, legend })
}

/// Busy CPUs by program and case, for figures with several programs.
fn cpu(results: &Results) -> Option<Chart> {
    let mut programs: Vec<&str> = Vec::new();
    for share in results.summaries.iter().flat_map(|s| &s.cpu) {
        if !programs.contains(&share.program.as_str()) {
            programs.push(&share.program);
        }
    }
    if programs.len() < 2 {
        return None;
    }
    let group = |s: &Summary| {
        let bar = |share: &crate::record::CpuShare| Bar {
            name: share.program.clone(),
            colour: programs.iter().position(|p| *p == share.program).unwrap_or(0) % COLOURS,
            published: false,
            value: share.cpus,
            low: share.cpus,
            high: share.cpus,
        };
        (format!("{} on {}", s.case, s.target), s.cpu.iter().map(bar).collect())
    };
    // A sweep has too many cases for one plot: the first and last of each figure are shown.
    let ends = results.figures.iter().flat_map(|figure| {
        let cases: Vec<&Case> = results.cases_of(&figure.name).collect();
        match figure.shape {
            WorkloadShape::Bars => cases,
            WorkloadShape::Lines => cases.last().copied().into_iter().collect(),
        }
    });
    let groups =
        ends.flat_map(|case| results.summaries.iter().filter(move |s| s.case == case.name)).map(group);
    let title = "CPUs kept busy, by program".to_owned();
    let svg = Bars { title: &title, groups: groups.collect(), words: &three, mark: None }.svg();
    let note = "1 is one whole CPU. fsstack-bench is the program that reads and writes.".to_owned();
    Some(Chart { title, note, svg, legend: Vec::new() })
}
