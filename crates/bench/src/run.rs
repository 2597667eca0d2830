//! Runs a plan: targets in turn within each round; failures are recorded, and results kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::copying::{Copier, Source};
use crate::machine;
use crate::measure::{Bench, Measured};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::record::{Case, FORMAT, Latency, Made, Measurement, Results, Skipped, TargetRecord};
use crate::target::{Target, TargetDir};
use crate::workload::Engine;
use crate::{serving, summary, turns};

/// Latencies of each case on each target, over the rounds.
pub(crate) type Latencies = BTreeMap<(String, String), Histogram<u64>>;

/// State of a run.
struct Run<'a> {
    plan: &'a Plan,
    stop: &'a AtomicBool,
    progress: Progress,
    /// `None` for a lost target.
    places: Vec<Option<TargetDir>>,
    results: Results,
    latencies: Latencies,
    /// Files to copy, while a case of the engine copy is measured.
    source: Option<Source>,
}

/// Runs a plan to its end, or until `stop` is set. An error means that nothing was measured.
pub(crate) fn run(plan: &Plan, stop: &AtomicBool) -> Result<Results> {
    plan.check()?;
    let began = Instant::now();
    let results = Results {
        format: FORMAT,
        made: Made {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: machine::COMMIT.to_owned(),
            command: std::env::args().collect(),
            began: machine::now(),
            seconds: 0.0,
            seed: plan.seed,
            title: plan.title.clone(),
            plan: plan.name.clone(),
            rounds: plan.rounds,
            baseline: plan.baseline.clone(),
            caches: Vec::new(),
        },
        machine: machine::machine(),
        targets: plan.targets.iter().map(|target| described(plan, target)).collect(),
        figures: plan.figures.clone(),
        cases: plan.cases.clone(),
        measurements: Vec::new(),
        summaries: Vec::new(),
        skipped: plan.skipped.clone(),
        ended_early: None,
        published: plan.published.clone(),
        says: Vec::new(),
    };
    // All targets are taken, or none.
    let places = plan.targets.iter().map(|t| t.take().map(Some)).collect::<Result<Vec<_>, _>>()?;
    let progress = Progress::of(plan);
    let mut run = Run { plan, stop, progress, places, results, latencies: Latencies::new(), source: None };
    for case in &plan.cases {
        if run.stopped() {
            break;
        }
        run.case(case);
    }
    run.progress.finish();
    let Run { places, mut results, latencies, .. } = run;
    for place in places.into_iter().flatten() {
        let name = place.name().to_owned();
        if let Err(e) = place.give_back() {
            results.skipped.push(Skipped::failed(format!("removing what was written to {name}"), e));
        }
    }
    if stop.load(Ordering::Relaxed) {
        results.ended_early = Some("interrupted".to_owned());
    }
    results.made.seconds = began.elapsed().as_secs_f64();
    summary::summarise(&mut results, &latencies);
    Ok(results)
}

/// Describes a target from the mount table and the plan.
fn described(plan: &Plan, target: &Target) -> TargetRecord {
    let mut record = machine::target(target);
    record.notes = serving::versions(&target.dir, plan.export(&target.name).map(|export| export.pid));
    // Facts about a volume hold for targets on it: those of dt8 for dt8.pool.
    let about = |known: &str| {
        target.name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    record.bears = plan.bears.iter().find(|(name, _)| about(name)).map(|(_, bricks)| *bricks);
    record.notes.extend(plan.notes.iter().filter(|(name, _)| about(name)).map(|(_, note)| note.clone()));
    record
}

impl Run<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn case(&mut self, case: &Case) {
        self.progress.case(&case.name);
        let targets = self.places.len();
        let copies = case.workload.engine == Engine::Copy;
        if copies && !self.lay_out_source(case) {
            return;
        }
        // Without targets on which this case failed, and those that exist for copies only.
        let bulk = |target: &Target| Copier::of(&target.name) == Copier::Bulk;
        let mut able: Vec<bool> = self.plan.targets.iter().map(|target| copies || !bulk(target)).collect();
        for (n, able) in able.iter_mut().enumerate().filter(|(_, able)| **able) {
            *able = self.step(n, case, "laying out", |bench| bench.lay_out()).is_some();
        }
        for round in 0..self.plan.warmups + self.plan.rounds {
            for n in turns::in_round(round.saturating_sub(self.plan.warmups), targets) {
                if self.stopped() {
                    break;
                }
                let name = &self.plan.targets[n].name;
                self.progress.round(&case.name, name, round);
                if able[n] {
                    match self.step(n, case, "measuring", |bench| bench.round()) {
                        // Interrupted: not a complete round.
                        Some(_) if self.stopped() => {}
                        Some(measured) if self.plan.warmups <= round => self.note(n, case, round, measured),
                        Some(_) => {}
                        None => able[n] = false,
                    }
                }
                self.progress.done(&case.workload);
            }
        }
        for n in 0..targets {
            self.step(n, case, "removing files", |bench| bench.clear());
        }
        self.source = None;
    }

    /// Writes the copy source once for all targets. False if that failed.
    fn lay_out_source(&mut self, case: &Case) -> bool {
        let made = Source::with_room(case.workload.footprint()).and_then(|source| {
            let (workload, work, seed) = (&case.workload, source.path(), self.plan.seed);
            let bench = Bench { workload, work, seed, stop: self.stop, export: None, copied: None };
            bench.lay_out_source().map(|()| source)
        });
        match made {
            Ok(source) => self.source = Some(source),
            Err(e) => self.results.skipped.push(Skipped::failed(case.name.clone(), format!("{e:#}"))),
        }
        self.source.is_some()
    }

    /// Runs a step on target `n`. A failure is recorded, and the target is lost if its directory is gone.
    fn step<T>(
        &mut self,
        n: usize,
        case: &Case,
        what: &str,
        work: impl FnOnce(&Bench<'_>) -> Result<T>,
    ) -> Option<T> {
        let place = self.places[n].as_ref()?;
        let seed = self.plan.seed;
        let target = &self.plan.targets[n];
        let export = self.plan.export(&target.name).map(|export| (export, target.dir.as_path()));
        let copied = self.source.as_ref().map(|source| (source.path(), Copier::of(&target.name)));
        let (workload, stop) = (&case.workload, self.stop);
        let bench = Bench { workload, work: place.work(), seed, stop, export, copied };
        let error = match work(&bench) {
            Ok(done) => return Some(done),
            Err(e) => e,
        };
        let name = &target.name;
        let skipped = match place.lives() {
            Ok(()) => Skipped::failed(format!("{} on {name}", case.name), format!("{what}: {error:#}")),
            Err(gone) => {
                // Dropping it would only report what cannot be reached.
                if let Some(lost) = self.places[n].take() {
                    std::mem::forget(lost);
                }
                self.results.ended_early.get_or_insert_with(|| format!("target {name} vanished: {gone}"));
                Skipped::failed(
                    format!("target {name}, from {} on", case.name),
                    format!("it vanished: {error:#}; what was written to it could not be removed"),
                )
            }
        };
        self.progress.tell(&format!("fsstack-bench: {}: {}", skipped.what, skipped.why));
        self.results.skipped.push(skipped);
        None
    }

    fn note(&mut self, n: usize, case: &Case, round: u32, measured: Measured) {
        let target = self.plan.targets[n].name.clone();
        if let Some(dropped) = measured.dropped {
            let how = format!("cold caches of {target}: {dropped}");
            if !self.results.made.caches.contains(&how) {
                self.results.made.caches.push(how);
            }
        }
        self.results.measurements.push(Measurement {
            case: case.name.clone(),
            target: target.clone(),
            round: round - self.plan.warmups,
            rate: measured.rate(case.workload.unit()),
            bytes: measured.bytes,
            ops: measured.ops,
            seconds: measured.seconds,
            start_skew_us: measured.start_skew_seconds * 1e6,
            latency_us: Latency::of(&measured.latencies),
            used: measured.used,
            machine_cpu_seconds: measured.machine_cpu_seconds,
        });
        match self.latencies.entry((case.name.clone(), target)) {
            std::collections::btree_map::Entry::Vacant(none) => drop(none.insert(measured.latencies)),
            std::collections::btree_map::Entry::Occupied(mut known) => {
                // Same bounds, so it cannot fail.
                let _same_bounds = known.get_mut().add(&measured.latencies);
            }
        }
    }
}
