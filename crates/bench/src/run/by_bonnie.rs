//! Cases of bonnie++ in a run: one run of the program has the figures of several cases.

use super::{CaseTurn, Run};
use crate::bonnie::{self, Shape, Test, Told};
use crate::cache;
use crate::record::{Case, Skipped};
use crate::turns;
use crate::workload::Engine;

impl Run<'_> {
    /// Measures a case of bonnie++: no warm-up, and not more rounds than it may take.
    pub(super) fn bonnie_case(&mut self, mut turn: CaseTurn<'_>) {
        for round in 0..self.plan.rounds.min(self.plan.bonnie_rounds) {
            for n in turns::in_round(round as usize, self.places.len()) {
                if self.stopped() {
                    return;
                }
                let name = &self.plan.targets[n].name;
                self.progress.round(&turn.case.name, name, Some(round));
                turn.able[n] = turn.able[n] && self.by_bonnie(n, turn.case, round);
                self.progress.done(&turn.case.workload);
            }
        }
    }

    /// Notes the case's part of the figures of bonnie++ in this round; runs it if no other case has. False if the case has
    /// no further rounds on this target.
    fn by_bonnie(&mut self, n: usize, case: &Case, round: u32) -> bool {
        let key = (n, round, bonnie::shape(&case.workload));
        if !self.bonnie.contains_key(&key) {
            let Some(ran) = self.run_bonnie(n, case) else { return false };
            self.bonnie.insert(key, ran);
            self.note_short(n, key.2);
        }
        match self.bonnie.get(&key) {
            Some(Ok(figures)) => match figures.measured(&case.workload) {
                Some(measured) => {
                    self.note(n, case, round, measured);
                    true
                }
                None => {
                    self.drop_figure(n, case);
                    false
                }
            },
            Some(Err(why)) => {
                let why = why.clone();
                self.note_failed(n, case, why);
                false
            }
            None => false,
        }
    }

    /// Runs bonnie++ on target `n`; `None` if the run is stopped.
    fn run_bonnie(&mut self, n: usize, case: &Case) -> Option<Result<Told, String>> {
        let layers = self.layers[n].clone();
        let ran = self.tried(n, case, "measuring", |bench| {
            let figures = bonnie::run(bench)?;
            cache::quiet(&layers)?;
            Ok(figures)
        });
        ran.transpose().filter(|_| !self.stopped())
    }

    /// Removes what earlier rounds measured: the rounds that are left would be the slow ones.
    fn drop_figure(&mut self, n: usize, case: &Case) {
        let target = &self.plan.targets[n].name;
        self.results.measurements.retain(|m| m.case != case.name || m.target != *target);
        self.latencies.remove(&(case.name.clone(), target.clone()));
    }

    /// Notes that a run failed which would have had a figure of the case, unless that is known.
    fn note_failed(&mut self, n: usize, case: &Case, why: String) {
        let what = format!("{} on {}", case.name, self.plan.targets[n].name);
        // The notice of a lost target is about all of its cases.
        let known = self.places[n].is_none() || self.results.skipped.iter().any(|one| one.what == what);
        if !known {
            self.results.skipped.push(Skipped::failed(what, why));
        }
    }

    /// Notes the cases for which a run of bonnie++ was too short in any round so far, in one line.
    fn note_short(&mut self, n: usize, shape: Shape) {
        let rounds = self.bonnie.iter().filter(|((of, _, like), _)| (*of, *like) == (n, shape));
        let is_short = |case: &&Case| {
            case.workload.engine == Engine::Bonnie
                && bonnie::shape(&case.workload) == shape
                && rounds.clone().any(|(_, ran)| {
                    ran.as_ref().is_ok_and(|figures| figures.measured(&case.workload).is_none())
                })
        };
        let of = self.plan.cases.iter().filter(is_short);
        let short: Vec<&str> = of.filter_map(|case| Test::of(&case.workload)).map(Test::word).collect();
        if short.is_empty() {
            return;
        }
        let target = &self.plan.targets[n].name;
        let which = format!("{} with {} on {target}: ", bonnie::PROGRAM, bonnie::described(shape));
        self.results.skipped.retain(|skipped| !skipped.what.starts_with(&which));
        self.results.skipped.push(Skipped::of(which + &short.join(", "), bonnie::TOO_SHORT));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::super::begun;
    use super::*;
    use crate::bonnie::tests::{ON_A_DISK, workload};
    use crate::plan::Plan;
    use crate::target::Target;
    use crate::{report, summary};

    /// A plan of these tests by so many processes, in three rounds.
    fn plan(dir: &Path, tests: &[Test], tasks: u32) -> Plan {
        let case = |test: &Test| Case {
            name: test.word().to_owned(),
            figure: String::new(),
            x: 0.0,
            x_label: String::new(),
            workload: workload(*test, tasks),
        };
        Plan {
            targets: vec![Target { name: "t".to_owned(), dir: dir.to_owned() }],
            cases: tests.iter().map(case).collect(),
            rounds: 3,
            bonnie_rounds: u32::MAX,
            ..Plan::default()
        }
    }

    /// Measures the plan's cases.
    fn measure(run: &mut Run<'_>) {
        for case in &run.plan.cases {
            run.bonnie_case(CaseTurn { case, able: vec![true], passes: vec![1] });
        }
    }

    #[test]
    fn a_case_that_was_too_short_in_any_round_has_no_figure() {
        let (home, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let plan = plan(home.path(), &[Test::Write, Test::Rewrite, Test::Read], 1);
        let mut run = Run::new(&plan, &stop, vec![None], begun(&plan));
        let short = ON_A_DISK.replace("826213,33", "+++++,+++");
        for (round, csv) in [ON_A_DISK, &short, ON_A_DISK].into_iter().enumerate() {
            let key = (0, u32::try_from(round).unwrap(), bonnie::shape(&plan.cases[0].workload));
            run.bonnie.insert(key, Told::of_csv(csv).map_err(|e| e.to_string()));
            run.note_short(0, key.2);
        }
        measure(&mut run);
        let of = |case: &str| run.results.measurements.iter().filter(|m| m.case == case).count();
        assert_eq!((of("write"), of("rewrite"), of("read")), (0, 3, 0));
        let short: Vec<&str> = run.results.skipped.iter().map(|skipped| skipped.what.as_str()).collect();
        assert_eq!(short, ["bonnie++ with 1 process, 4 MiB by 8 KiB and 1024 files each, on t: write, read"]);
        summary::summarise(&mut run.results, &run.latencies);
        let of: Vec<&str> = run.results.summaries.iter().map(|summary| summary.case.as_str()).collect();
        assert_eq!(of, ["rewrite"]);
    }

    #[test]
    fn a_case_that_only_the_baselines_second_target_has_is_in_no_plot() {
        let (home, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let mut plan = plan(home.path(), &[Test::Write, Test::Rewrite], 1);
        plan.targets.push(Target { name: "again".to_owned(), dir: home.path().to_owned() });
        plan.again = Some("again".to_owned());
        let mut run = Run::new(&plan, &stop, vec![None, None], begun(&plan));
        let short = ON_A_DISK.replace("826213,33", "+++++,+++");
        for round in 0..3 {
            for (at, csv) in [&short, ON_A_DISK].into_iter().enumerate() {
                let key = (at, round, bonnie::shape(&plan.cases[0].workload));
                run.bonnie.insert(key, Told::of_csv(csv).map_err(|e| e.to_string()));
            }
        }
        run.note_short(0, bonnie::shape(&plan.cases[0].workload));
        for case in &plan.cases {
            run.bonnie_case(CaseTurn { case, able: vec![true; 2], passes: vec![1; 2] });
        }
        summary::summarise(&mut run.results, &run.latencies);
        assert!(run.results.summary("write", "again").is_some());
        let shown: Vec<&str> = run.results.cases_of("").map(|case| case.name.as_str()).collect();
        assert_eq!(shown, ["rewrite"]);
    }

    #[test]
    fn the_report_has_no_start_skew_that_was_not_measured() {
        let (home, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let plan = plan(home.path(), &[Test::Write], 4);
        let mut run = Run::new(&plan, &stop, vec![None], begun(&plan));
        for round in 0..3 {
            let key = (0, round, bonnie::shape(&plan.cases[0].workload));
            run.bonnie.insert(key, Told::of_csv(ON_A_DISK).map_err(|e| e.to_string()));
        }
        measure(&mut run);
        summary::summarise(&mut run.results, &run.latencies);
        assert_eq!((run.results.measurements.len(), run.results.summaries[0].start_skew_us), (3, None));
        let said = report::says(&run.results);
        assert!(!said.iter().any(|line| line.contains("started within")), "{said:?}");
    }

    #[test]
    fn each_case_of_a_failed_run_has_its_reason() {
        let (home, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let plan = plan(home.path(), &[Test::Write, Test::Rewrite], 1);
        let place = plan.targets[0].take().unwrap();
        // The run cannot have its directory.
        fs::create_dir(place.work().join("bonnie")).unwrap();
        let mut run = Run::new(&plan, &stop, vec![Some(place)], begun(&plan));
        measure(&mut run);
        assert_eq!(run.results.measurements, []);
        let failed = &run.results.skipped;
        assert_eq!([&failed[0].what, &failed[1].what], ["write on t", "rewrite on t"]);
        assert!(failed[0].why.contains("File exists") && failed[0].failed && failed[1].failed, "{failed:?}");
        assert_eq!((failed.len(), &failed[0].why), (2, &failed[1].why));
    }
}
