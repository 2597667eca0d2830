//! Runs a scenario once and says what every cut may leave.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fsstack_pool::Ino;
use fsstack_sys::witness;

use crate::disk::{Format, Home};
use crate::engine::Engine;
use crate::model::{Object, Progress, Tree};
use crate::plan::Plan;
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
pub(crate) struct Recording {
    pub(crate) plan: Plan,
    pub(crate) given: Tree,
    pub(crate) kept: Kept,
    pub(crate) index: Vec<Files>,
    pub(crate) handles: Vec<HandleOf>,
    pub(crate) cuts: Vec<Cut>,
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
        // The first mount gives the branches their ids.
        drop(plan.mount(&paths, state.path(), None));
        let engine = plan.mount(&paths, state.path(), None);
        let given = plan.tree();
        let mut handles = Vec::new();
        add_handles(&engine, &given, &mut handles);
        for path in paths.iter().map(PathBuf::as_path).chain([state.path()]) {
            rustix::fs::syncfs(fs::File::open(path).unwrap()).unwrap();
        }
        let recorder = Arc::new(Recorder::of(disks, state));
        let mut tree = given.clone();
        witness::observed(recorder.clone(), || {
            for (n, act) in plan.acts.iter().enumerate() {
                recorder.progress(Progress { started: n + 1, answered: n });
                let done = act.run(&engine);
                assert_eq!(done, Ok(()), "{}: {}", plan.name, act.typed());
                assert!(tree.apply(act, n).is_some(), "{}: {}", plan.name, act.typed());
                recorder.progress(Progress { started: n + 1, answered: n + 1 });
            }
        });
        add_handles(&engine, &tree, &mut handles);
        plan.check_moved(&paths, &tree);
        drop(engine);
        // (A thread of the pool may be on its way out of it.)
        let mut recorder = recorder;
        let recorder = loop {
            match Arc::try_unwrap(recorder) {
                Ok(recorder) => break recorder,
                Err(shared) => recorder = shared,
            }
            std::thread::yield_now();
        };
        let kept = recorder.into_kept();
        let index = kept.index.iter().map(|image| files(&home, image)).collect();
        let cuts = cuts(&kept);
        Self { plan, given, kept, index, handles, cuts }
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
