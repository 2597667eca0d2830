//! Runs a plan: targets in turn within each round; failures are recorded, and results kept.

mod by_bonnie;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use hdrhistogram::Histogram;
use rustix::fs::statvfs;

use crate::bar::{self, Decision, Promise};
use crate::bonnie::{Shape, Told};
use crate::cell;
use crate::copying::{Copier, Source};
use crate::machine;
use crate::measure::{Bench, Measured};
use crate::plan::{Export, Plan};
use crate::progress::Progress;
use crate::record::{Case, FORMAT, Latency, Made, Measurement, Results, Skipped, TargetRecord};
use crate::serving::Layer;
use crate::target::{Target, TargetDir};
use crate::workload::Engine;
use crate::{serving, summary, turns};

/// Latencies of each case on each target, over the rounds.
pub(crate) type Latencies = BTreeMap<(String, String), Histogram<u64>>;

/// A case while it is measured.
struct CaseTurn<'a> {
    case: &'a Case,
    /// False for a target on which it failed, or that does not have it.
    able: Vec<bool>,
    /// Passes of a cell on each target.
    passes: Vec<u32>,
}

/// State of a run.
struct Run<'a> {
    plan: &'a Plan,
    stop: &'a AtomicBool,
    progress: Progress,
    /// `None` for a lost target.
    places: Vec<Option<TargetDir>>,
    /// The file systems that each target is stacked on.
    layers: Vec<Vec<Layer>>,
    results: Results,
    latencies: Latencies,
    /// Files to copy, while a case of the engine copy is measured.
    source: Option<Source>,
    /// Figures of runs of bonnie++, by target and round; for a failed one the reason.
    bonnie: BTreeMap<(usize, u32, Shape), Result<Told, String>>,
}

/// Runs a plan to its end, or until `stop` is set. An error means that nothing was measured.
pub(crate) fn run(plan: &Plan, stop: &AtomicBool) -> Result<Results> {
    plan.check()?;
    let (began, stolen) = (Instant::now(), machine::steal_seconds());
    let results = begun(plan);
    // All targets are taken, or none.
    let places = plan.targets.iter().map(|t| t.take().map(Some)).collect::<Result<Vec<_>, _>>()?;
    let mut run = Run::new(plan, stop, places, results);
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
    results.machine.load_after = Some(machine::load());
    results.machine.steal_seconds = machine::steal_seconds().zip(stolen).map(|(now, then)| now - then);
    results.made.seconds = began.elapsed().as_secs_f64();
    let looks = bar::looks(plan.rounds, plan.rounds_max).len();
    results.bars = plan.bars.iter().filter_map(|bar| bar.decided(&results.measurements, looks)).collect();
    summary::summarise(&mut results, &latencies);
    Ok(results)
}

/// Results of a plan before the first measurement.
fn begun(plan: &Plan) -> Results {
    Results {
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
            rounds_max: plan.rounds_max,
            baseline: plan.baseline.clone(),
            disks: plan.disks.clone(),
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
        bars: Vec::new(),
        says: Vec::new(),
    }
}

/// Describes a target from the mount table and the plan.
fn described(plan: &Plan, target: &Target) -> TargetRecord {
    let mut record = machine::target(target);
    record.notes = serving::versions(&target.dir, plan.export(&target.name).and_then(Export::pid));
    // Facts about a volume hold for targets on it: those of dt8 for dt8.pool.
    let about = |known: &str| {
        target.name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    record.again = plan.again.as_deref() == Some(target.name.as_str());
    record.bears = plan.bears.iter().find(|(name, _)| about(name)).map(|(_, bricks)| *bricks);
    record.notes.extend(plan.notes.iter().filter(|(name, _)| about(name)).map(|(_, note)| note.clone()));
    record
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, stop: &'a AtomicBool, places: Vec<Option<TargetDir>>, results: Results) -> Self {
        let progress = Progress::of(plan);
        let layers = plan.targets.iter().map(|target| serving::layers(&target.dir)).collect();
        let (latencies, bonnie) = (Latencies::new(), BTreeMap::new());
        Self { plan, stop, progress, places, layers, results, latencies, source: None, bonnie }
    }
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
        // Some targets exist for copies only.
        let bulk = |target: &Target| Copier::of(&target.name) == Copier::Bulk;
        let nfs = case.workload.engine == Engine::Nfs;
        let shown = |target: &Target| !nfs || self.plan.export(&target.name).is_some();
        let able = |target| shown(target) && (copies || !bulk(target));
        let able: Vec<bool> = self.plan.targets.iter().map(able).collect();
        let mut turn = CaseTurn { case, able, passes: vec![1; targets] };
        if case.workload.is_kept() {
            for n in 0..targets {
                turn.able[n] =
                    turn.able[n] && self.step(n, case, "laying out", |bench| bench.lay_out()).is_some();
            }
        }
        if case.workload.engine == Engine::Bonnie {
            return self.bonnie_case(turn);
        }
        for _ in 0..self.plan.warmups {
            self.round(&mut turn, None, &turns::in_round(0, targets));
        }
        let looks = bar::looks(self.plan.rounds, self.plan.rounds_max);
        let mut first = 0;
        for (n, &until) in looks.iter().enumerate() {
            let of: Vec<usize> =
                if n == 0 { (0..targets).collect() } else { self.undecided(case, looks.len()) };
            if of.is_empty() || self.stopped() {
                break;
            }
            if 0 < n {
                self.progress.more(&case.workload, u64::from(until - first) * of.len() as u64);
            }
            for round in first..until {
                let order: Vec<usize> = turns::of(&of, round as usize).copied().collect();
                self.round(&mut turn, Some(round), &order);
            }
            first = until;
        }
        if case.workload.is_kept() {
            for n in 0..targets {
                self.step(n, case, "removing files", |bench| bench.clear());
            }
        }
        self.source = None;
    }

    /// Measures the targets in this order; `None` stands for a round that does not count.
    fn round(&mut self, turn: &mut CaseTurn<'_>, round: Option<u32>, order: &[usize]) {
        let case = turn.case;
        for &n in order {
            if self.stopped() {
                return;
            }
            let name = self.plan.targets[n].name.clone();
            self.progress.round(&case.name, &name, round);
            if turn.able[n] {
                let (passes, layers) = (turn.passes[n], self.layers[n].clone());
                match self.step(n, case, "measuring", |bench| bench.cell(passes, &layers).measured()) {
                    // Interrupted: not a complete round.
                    Some(_) if self.stopped() => {}
                    Some(measured) => match round {
                        Some(round) => self.note(n, case, round, measured),
                        None if self.plan.repeats(case, &name) => {
                            let free =
                                statvfs(&self.plan.targets[n].dir).map_or(0, |s| s.f_bavail * s.f_frsize);
                            let wanted = self.plan.cells.seconds;
                            turn.passes[n] = cell::passes(&case.workload, wanted, measured.seconds, free);
                        }
                        None => {}
                    },
                    None => turn.able[n] = false,
                }
            }
            self.progress.done(&case.workload);
        }
    }

    /// Targets of the case's bars that are not decided yet, and their baselines.
    fn undecided(&self, case: &Case, looks: usize) -> Vec<usize> {
        let of_case = self.plan.bars.iter().filter(|bar| bar.case == case.name);
        let decided = |bar: &&Promise| bar.decided(&self.results.measurements, looks).map(|bar| bar.decision);
        let open: Vec<&Promise> = of_case.filter(|bar| decided(bar) == Some(Decision::NotDecided)).collect();
        let about = |name: &str| open.iter().any(|bar| bar.target == name || bar.baseline == name);
        (0..self.plan.targets.len()).filter(|&n| about(&self.plan.targets[n].name)).collect()
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
        self.tried(n, case, what, work).ok()
    }

    /// Like [`Self::step`], with the recorded reason of a failure.
    fn tried<T>(
        &mut self,
        n: usize,
        case: &Case,
        what: &str,
        work: impl FnOnce(&Bench<'_>) -> Result<T>,
    ) -> Result<T, String> {
        let place = self.places[n].as_ref().ok_or("the target vanished")?;
        let seed = self.plan.seed;
        let target = &self.plan.targets[n];
        let export = self.plan.export(&target.name).map(|export| (export, target.dir.as_path()));
        let copied = self.source.as_ref().map(|source| (source.path(), Copier::of(&target.name)));
        let (workload, stop) = (&case.workload, self.stop);
        let bench = Bench { workload, work: place.work(), seed, stop, export, copied };
        let error = match work(&bench) {
            Ok(done) => return Ok(done),
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
        let why = skipped.why.clone();
        self.results.skipped.push(skipped);
        Err(why)
    }

    fn note(&mut self, n: usize, case: &Case, round: u32, measured: Measured) {
        let target = self.plan.targets[n].name.clone();
        if let Some(cold) = measured.cold {
            let how = format!("{target}: {cold}");
            if !self.results.made.caches.contains(&how) {
                self.results.made.caches.push(how);
            }
        }
        self.results.measurements.push(Measurement {
            case: case.name.clone(),
            target: target.clone(),
            round,
            rate: measured.rate(case.workload.unit()),
            bytes: measured.bytes,
            ops: measured.ops,
            seconds: measured.seconds,
            passes: measured.passes,
            start_skew_us: measured.start_skew_seconds.map(|seconds| seconds * 1e6),
            latency_us: Latency::of(&measured.latencies),
            used: measured.window.used,
            machine_cpu_seconds: measured.window.machine_cpu_seconds,
            sampled_seconds: measured.window.seconds,
            cold: measured.cold,
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
