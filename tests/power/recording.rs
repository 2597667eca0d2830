//! Runs a scenario once, and lists all states that cuts can leave.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fsstack_engine::admin::live::Position;
use fsstack_pool::Ino;
use fsstack_sys::witness;

use crate::act::{Act, append};
use crate::disk::{Format, Home};
use crate::engine::Engine;
use crate::model::{Object, Progress, Tree};
use crate::plan::{Begin, Plan};
use crate::record::{DiskState, Files, IndexState, Kept, Moment, Recorder, files_below};

/// An object as known by an NFS client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandleOf {
    pub(crate) object: Object,
    /// Its name when the handle was made.
    pub(crate) path: PathBuf,
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
}

/// A scenario that was run.
#[derive(Clone)]
pub(crate) struct Recording {
    pub(crate) plan: Plan,
    pub(crate) given: Tree,
    /// States of each disk.
    pub(crate) disks: Arc<Vec<Vec<DiskState>>>,
    /// States of the index.
    pub(crate) index: Arc<Vec<Files>>,
    pub(crate) handles: Vec<HandleOf>,
    pub(crate) cuts: Vec<Cut>,
    /// Steps between the recorded operations and the cut.
    pub(crate) between: Option<String>,
    pub(crate) way: RecordedFrom,
}

/// Recorded part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedFrom {
    Acts,
    /// The operations are killed, and the following mount is recorded, possibly without a branch.
    Recovery(Option<usize>),
}

/// States that a cut can leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The state of each disk.
    pub(crate) states: Vec<usize>,
    pub(crate) index: usize,
    /// Latest progress at which this is possible.
    pub(crate) progress: Progress,
    /// Latest progress without any loss on a disk, as if the daemon was killed.
    pub(crate) whole: Option<Progress>,
    /// Number of lost changes.
    pub(crate) lost: usize,
}

impl Recording {
    /// Runs `plan`.
    pub(crate) fn of(plan: Plan) -> Self {
        Self::tried(plan).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs `plan`, if that is possible.
    pub(crate) fn tried(plan: Plan) -> Result<Self, String> {
        let home = Home::new();
        let disks: Vec<_> = plan
            .branches
            .iter()
            .enumerate()
            .map(|(at, branch)| home.mount(at, branch.format.empty(), branch.format))
            .collect();
        let state = home.mount(disks.len(), Format::Ext4.empty(), Format::Ext4);
        let paths: Vec<PathBuf> = disks.iter().map(|disk| disk.path().to_owned()).collect();
        plan.prepare(&paths);
        let state_dir = state.path().to_owned();
        let mut given = plan.tree();
        let mut handles = Vec::new();
        let early = begin(&plan, (&paths, &state_dir), &mut given, &mut handles)?;
        for path in paths.iter().chain([&state_dir]) {
            rustix::fs::syncfs(fs::File::open(path).unwrap()).unwrap();
        }
        let recorder = Arc::new(Recorder::of(disks, state, START));
        let mut tree = given.clone();
        let engine = witness::observed(recorder.clone(), || {
            let engine = early.unwrap_or_else(|| plan.mount(&paths, &state_dir, None));
            for (n, act) in plan.acts.iter().enumerate() {
                recorder.progress(Progress { started: n + 1, answered: n });
                if let Act::Join(at) = act {
                    let spec = plan.specs(&paths, None).swap_remove(*at);
                    engine.union.add_branch(&spec, Position::Last).unwrap();
                }
                run(&plan, act, &engine, (&mut tree, n))?;
                recorder.progress(Progress { started: n + 1, answered: n + 1 });
            }
            Ok::<_, String>(engine)
        })?;
        add_handles(&engine, &tree, &mut handles);
        all_moved(&plan, &paths, &tree)?;
        drop(engine);
        let kept = kept_by(recorder);
        let (index, numbers) = index_states(&home, &kept.index);
        let cuts = cuts(&kept.moments, &numbers, plan.index_alone);
        let (disks, between) = (kept.disks.into(), None);
        Ok(Self { plan, given, disks, index, handles, cuts, between, way: RecordedFrom::Acts })
    }

    /// Cuts that equal a kill of the daemon and leave something to settle: one for each state of the branches.
    pub(crate) fn kills(&self) -> Vec<Cut> {
        let mut seen = BTreeSet::new();
        let kills = self.cuts.iter().filter(|cut| cut.whole.is_some() && self.is_left(cut));
        kills.filter(|cut| seen.insert(cut.states.clone())).cloned().collect()
    }

    /// [`Self::kills`], and the power cuts that leave something to settle: of those one of `step`.
    pub(crate) fn crashes(&self, step: usize) -> Vec<Cut> {
        let cuts = self.cuts.iter().filter(|cut| cut.whole.is_none() && self.is_left(cut));
        self.kills().into_iter().chain(cuts.step_by(step).cloned()).collect()
    }

    fn is_left(&self, cut: &Cut) -> bool {
        cut.states.iter().zip(self.disks.iter()).any(|(state, disk)| disk[*state].is_left)
    }

    /// The daemon is killed, or the power goes, at `cut`, and the following mount, possibly without a branch, is cut at any moment.
    pub(crate) fn recovered(&self, cut: &Cut, without: Option<usize>) -> Self {
        let plan = self.plan.clone();
        let progress = cut.whole.unwrap_or(cut.progress);
        let home = Home::new();
        let mount = |(at, state): (usize, &usize)| {
            let format = plan.branches[at].format;
            home.mount(at, self.disks[at][*state].image(&home, at, format), format)
        };
        let disks: Vec<_> = cut.states.iter().enumerate().map(mount).collect();
        let state = home.mount(disks.len(), Format::Ext4.empty(), Format::Ext4);
        put_files(&self.index[cut.index], state.path());
        rustix::fs::syncfs(fs::File::open(state.path()).unwrap()).unwrap();
        let paths: Vec<PathBuf> = disks.iter().map(|disk| disk.path().to_owned()).collect();
        let state_dir = state.path().to_owned();
        let recorder = Arc::new(Recorder::of(disks, state, progress));
        witness::observed(recorder.clone(), || {
            drop(plan.mount(&paths, &state_dir, without));
            recorder.progress(progress);
        });
        let kept = kept_by(recorder);
        let (index, numbers) = index_states(&home, &kept.index);
        // The initial content is on disk, and nothing of it is lost any more.
        let whole = cut.whole;
        let cuts = cuts(&kept.moments, &numbers, plan.index_alone).into_iter();
        let cuts = cuts.map(|cut| Cut { whole, progress, ..cut }).collect();
        let less = without.map(|at| format!(" without branch {at}")).unwrap_or_default();
        let states = cut.states.iter().zip(self.disks.iter()).enumerate();
        let states = states.map(|(at, (state, disk))| format!("branch {at} has: {}", disk[*state].what));
        let states = states.collect::<Vec<_>>().join("; ");
        let crash = if whole.is_some() { "kill -9" } else { "the power goes" };
        let between = Some(format!("{crash} ({states}); mount{less}, and the power goes meanwhile"));
        Self {
            plan: Plan { name: format!("{}; recovery is cut{less}", plan.name), ..plan },
            given: self.given.clone(),
            disks: kept.disks.into(),
            index,
            handles: self.handles.clone(),
            cuts,
            between,
            way: RecordedFrom::Recovery(without),
        }
    }
}

/// Runs the steps before the first operation. Returns the pool if it is mounted then.
fn begin(
    plan: &Plan,
    (paths, state_dir): (&[PathBuf], &Path),
    given: &mut Tree,
    handles: &mut Vec<HandleOf>,
) -> Result<Option<Engine>, String> {
    let mount = |without| plan.mount(paths, state_dir, without);
    match plan.begin {
        Begin::Fresh => Ok(None),
        Begin::Without(at) => Ok(Some(mount(Some(at)))),
        Begin::Again | Begin::Lost => {
            let engine = mount(None);
            for (n, act) in moves().iter().enumerate() {
                run(plan, act, &engine, (given, n))?;
            }
            all_moved(plan, paths, given)?;
            add_handles(&engine, given, handles);
            drop(engine);
            if plan.begin == Begin::Lost {
                let files = fs::read_dir(state_dir).unwrap();
                files.for_each(|entry| fs::remove_dir_all(entry.unwrap().path()).unwrap());
            }
            Ok(None)
        }
        Begin::Mounted => {
            // The first mount gives the branches their ids.
            drop(mount(None));
            let engine = mount(None);
            add_handles(&engine, given, handles);
            Ok(Some(engine))
        }
    }
}

/// Runs the `n`-th operation.
fn run(plan: &Plan, act: &Act, engine: &Engine, (tree, n): (&mut Tree, usize)) -> Result<(), String> {
    let failed = |error: String| format!("{}: {}: {error}", plan.name, act.typed());
    act.run(engine).map_err(|error| failed(error.to_string()))?;
    tree.apply(act, n).map(drop).ok_or_else(|| failed("it should have been refused".to_owned()))
}

/// Checks that files that outgrew their branch have moved.
fn all_moved(plan: &Plan, paths: &[PathBuf], tree: &Tree) -> Result<(), String> {
    let stay = [plan.unmoved(paths, tree), plan.undrained(paths)].concat();
    if stay.is_empty() { Ok(()) } else { Err(format!("{}: {stay:?} stay", plan.name)) }
}

/// Operations that move a file before the recording begins.
fn moves() -> [Act; 2] {
    [append("d/moved", &"m".repeat(400 << 10)), Act::Syncfs]
}

const START: Progress = Progress { started: 0, answered: 0 };

fn kept_by(mut recorder: Arc<Recorder>) -> Kept {
    // A thread of the pool may still be using it.
    loop {
        match Arc::try_unwrap(recorder) {
            Ok(recorder) => return recorder.into_kept(),
            Err(shared) => recorder = shared,
        }
        std::thread::yield_now();
    }
}

/// Adds handles of all objects of `tree` that have none yet.
pub(crate) fn add_handles(engine: &Engine, tree: &Tree, handles: &mut Vec<HandleOf>) {
    for (path, object) in &tree.names {
        let entry = engine.find(path).unwrap();
        if handles.iter().all(|known| known.object != *object) {
            let (ino, generation) = (entry.ino, entry.generation);
            handles.push(HandleOf { object: *object, path: path.clone(), ino, generation });
        }
    }
}

/// Distinct states of the index, and for each kept state its number among them.
fn index_states(home: &Home, kept: &[IndexState]) -> (Arc<Vec<Files>>, Vec<usize>) {
    let mut all: Vec<Files> = Vec::new();
    let numbers = kept.iter().map(|state| {
        let files = match state {
            IndexState::Cached(files) => files.clone(),
            IndexState::OnDisk(image) => {
                let disk = home.mount(0, image, Format::Ext4);
                let files = files_below(disk.path());
                disk.unmount();
                files
            }
        };
        all.iter().position(|known| *known == files).unwrap_or_else(|| {
            all.push(files);
            all.len() - 1
        })
    });
    let numbers = numbers.collect();
    (all.into(), numbers)
}

/// Puts the files into a state directory.
pub(crate) fn put_files(files: &Files, dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for (path, bytes) in files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// At each moment each disk, including the index's, may be left in any of its states since its last sync. `index` maps
/// the kept states of the index to distinct ones. Unless `index_alone` is set, its disk has exactly what was synced.
fn cuts(moments: &[Moment], index: &[usize], index_alone: bool) -> Vec<Cut> {
    let mut found: BTreeMap<(Vec<usize>, usize), Cut> = BTreeMap::new();
    for moment in moments {
        let mut some: Vec<Vec<usize>> = vec![Vec::new()];
        let ranges = moment.floor.iter().zip(&moment.now).map(|(floor, now)| *floor..=*now);
        let synced = *moment.index.start();
        let of_index = if index_alone { moment.index.clone() } else { synced..=synced };
        for range in ranges.chain([of_index.clone()]) {
            some = some
                .into_iter()
                .flat_map(|states| range.clone().map(move |state| [states.clone(), vec![state]].concat()))
                .collect();
        }
        for mut states in some {
            let Some(at) = states.pop() else { continue };
            let of_disks: usize = moment.now.iter().zip(&states).map(|(now, state)| now - state).sum();
            let lost = of_disks + (of_index.end() - at);
            let whole = (lost == 0).then_some(moment.progress);
            let (index, progress) = (index[at], moment.progress);
            let cut = Cut { states: states.clone(), index, progress, whole, lost };
            let known = found.entry((states, index)).or_insert_with(|| cut.clone());
            // Later answers are promised too.
            *known = Cut { whole: whole.or(known.whole), lost: known.lost.min(lost), ..cut };
        }
    }
    found.into_values().collect()
}
