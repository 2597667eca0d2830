//! Runs a scenario once and says what every cut may leave.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fsstack_engine::live::Position;
use fsstack_pool::Ino;
use fsstack_sys::witness;

use crate::act::Act;
use crate::disk::{Format, Home};
use crate::engine::Engine;
use crate::model::{Object, Progress, Tree};
use crate::plan::{Begin, Plan};
use crate::record::{Kept, Recorder};

/// What an NFS client knows of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandleOf {
    pub(crate) object: Object,
    /// Its name when the handle was taken.
    pub(crate) path: PathBuf,
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
}

/// The state directory's files.
pub(crate) type Files = Vec<(PathBuf, Vec<u8>)>;

/// A scenario that was run.
#[derive(Clone)]
pub(crate) struct Recording {
    pub(crate) plan: Plan,
    pub(crate) given: Tree,
    pub(crate) kept: Kept,
    pub(crate) index: Vec<Files>,
    pub(crate) handles: Vec<HandleOf>,
    pub(crate) cuts: Vec<Cut>,
    /// What was done between the acts and the cut.
    pub(crate) between: Option<String>,
}

/// What a cut may leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The state of each disk.
    pub(crate) states: Vec<usize>,
    pub(crate) index: usize,
    /// At the latest moment at which it may be so.
    pub(crate) progress: Progress,
    /// At the latest one at which no disk lost anything, as if the daemon had been killed.
    pub(crate) whole: Option<Progress>,
    /// How many changes were lost.
    pub(crate) lost: usize,
}

impl Recording {
    /// Runs `plan`.
    pub(crate) fn of(plan: Plan) -> Self {
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
        let given = plan.tree();
        let mut handles = Vec::new();
        let mut early = None;
        match plan.begin {
            Begin::Fresh => {}
            Begin::Without(at) => early = Some(plan.mount(&paths, &state_dir, Some(at))),
            Begin::Mounted => {
                // The first mount gives the branches their ids.
                drop(plan.mount(&paths, &state_dir, None));
                let engine = plan.mount(&paths, &state_dir, None);
                add_handles(&engine, &given, &mut handles);
                early = Some(engine);
            }
        }
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
                let done = act.run(&engine);
                assert_eq!(done, Ok(()), "{}: {}", plan.name, act.typed());
                assert!(tree.apply(act, n).is_some(), "{}: {}", plan.name, act.typed());
                recorder.progress(Progress { started: n + 1, answered: n + 1 });
            }
            engine
        });
        add_handles(&engine, &tree, &mut handles);
        plan.check_moved(&paths, &tree);
        drop(engine);
        let kept = kept_by(recorder);
        let index = kept.index.iter().map(|image| files(&home, image)).collect();
        let cuts = cuts(&kept);
        Self { plan, given, kept, index, handles, cuts, between: None }
    }

    /// The cuts at which the daemon was killed, as it were, and left something to settle: once for each state of the branches.
    pub(crate) fn kills(&self) -> Vec<Cut> {
        let mut seen = BTreeSet::new();
        let is_left =
            |cut: &Cut| cut.states.iter().zip(&self.kept.disks).any(|(state, disk)| disk[*state].is_left);
        let kills = self.cuts.iter().filter(|cut| cut.whole.is_some() && is_left(cut));
        kills.filter(|cut| seen.insert(cut.states.clone())).cloned().collect()
    }

    /// The daemon is killed at `cut`, and the mount after it, without a branch maybe, is cut at any moment.
    pub(crate) fn recovered(&self, cut: &Cut, without: Option<usize>) -> Self {
        let plan = self.plan.clone();
        let progress = cut.whole.unwrap_or(cut.progress);
        let home = Home::new();
        let disks =
            cut.states.iter().enumerate().map(|(at, state)| {
                home.mount(at, &self.kept.disks[at][*state].image, plan.branches[at].format)
            });
        let disks: Vec<_> = disks.collect();
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
        let index = kept.index.iter().map(|image| files(&home, image)).collect();
        // What was there at first is on disk, and was answered or not when the daemon was killed.
        let cuts =
            cuts(&kept).into_iter().map(|cut| Cut { whole: Some(progress), progress, ..cut }).collect();
        let less = without.map(|at| format!(" without branch {at}")).unwrap_or_default();
        let states = cut.states.iter().zip(&self.kept.disks).enumerate();
        let states = states.map(|(at, (state, disk))| format!("branch {at} has: {}", disk[*state].what));
        let states = states.collect::<Vec<_>>().join("; ");
        let between = Some(format!("kill -9 ({states}); mount{less}, and the power goes meanwhile"));
        Self {
            plan: Plan { name: format!("{}; recovery is cut{less}", plan.name), ..plan },
            given: self.given.clone(),
            kept,
            index,
            handles: self.handles.clone(),
            cuts,
            between,
        }
    }
}

const START: Progress = Progress { started: 0, answered: 0 };

fn kept_by(mut recorder: Arc<Recorder>) -> Kept {
    // (A thread of the pool may be on its way out of it.)
    loop {
        match Arc::try_unwrap(recorder) {
            Ok(recorder) => return recorder.into_kept(),
            Err(shared) => recorder = shared,
        }
        std::thread::yield_now();
    }
}

/// Handles of all objects of `tree` that have none yet.
fn add_handles(engine: &Engine, tree: &Tree, handles: &mut Vec<HandleOf>) {
    for (path, object) in &tree.names {
        let entry = engine.find(path).unwrap();
        if handles.iter().all(|known| known.object != *object) {
            let (ino, generation) = (entry.ino, entry.generation);
            handles.push(HandleOf { object: *object, path: path.clone(), ino, generation });
        }
    }
}

/// All files of the state directory that lies in an image.
fn files(home: &Home, image: &crate::disk::Image) -> Files {
    let disk = home.mount(0, image, Format::Ext4);
    let mut found = Files::new();
    let mut waiting = vec![disk.path().to_owned()];
    while let Some(dir) = waiting.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                waiting.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.push((path.strip_prefix(disk.path()).unwrap().to_owned(), bytes));
            }
        }
    }
    disk.unmount();
    found
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

/// At each moment each disk may be left in any of its states since its last sync.
pub(crate) fn cuts(kept: &Kept) -> Vec<Cut> {
    let mut found: BTreeMap<(Vec<usize>, usize), Cut> = BTreeMap::new();
    for moment in &kept.moments {
        let mut some: Vec<Vec<usize>> = vec![Vec::new()];
        for (floor, now) in moment.floor.iter().zip(&moment.now) {
            some = some
                .into_iter()
                .flat_map(|states| (*floor..=*now).map(move |state| [states.clone(), vec![state]].concat()))
                .collect();
        }
        for states in some {
            let lost = moment.now.iter().zip(&states).map(|(now, state)| now - state).sum();
            let whole = (lost == 0).then_some(moment.progress);
            let (index, progress) = (moment.index, moment.progress);
            let cut = Cut { states: states.clone(), index, progress, whole, lost };
            let known = found.entry((states, index)).or_insert_with(|| cut.clone());
            // What was answered later is promised, too.
            *known = Cut { whole: whole.or(known.whole), lost: known.lost.min(lost), ..cut };
        }
    }
    found.into_values().collect()
}
