//! Mounts the disks after a cut, and finds what is wrong.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fsstack_engine::OpError;
use fsstack_engine::answer::Entry;
use fsstack_sys::{Errno, Kind};

use crate::after::{self, RENAMED};
use crate::disk::{Disk, Home};
use crate::engine::Engine;
use crate::model::{MADE, Progress, Thing, Tree, allowed, are_attributes_done, first_is_done, is_loose};
use crate::plan::{Begin, Plan, Then};
use crate::recording::{Cut, HandleOf, Recording, put_files};
use crate::shown::{self, Shown, differences, line, logged, on_branch};

/// Age of a change that is not under way.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Kind of the fault that a name has copies of two directories.
pub(crate) const ANOTHER: &str = "another";
/// Kind of the fault that copies of a directory have other rights or attributes.
const RIGHTS: &str = "copies";

/// Fault of a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    /// The broken promise.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

pub(crate) fn fault(kind: &'static str, text: impl Into<String>) -> Fault {
    Fault { kind, text: text.into() }
}

pub(crate) type Names = BTreeMap<PathBuf, Shown>;

/// The machine after a cut.
pub(crate) struct TestBed<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) state: PathBuf,
}

impl TestBed<'_> {
    pub(crate) fn mount(&self) -> Engine {
        self.recording.plan.mount(&self.paths, &self.state, None)
    }

    /// True if all operations were answered, and nothing was lost since.
    pub(crate) fn is_answered(&self, cut: &Cut) -> bool {
        cut.lost == 0 && cut.progress.answered == self.recording.plan.acts.len()
    }

    /// True if all copies of a directory have the same attributes.
    fn are_attributes_done(&self, cut: &Cut) -> bool {
        let Plan { acts, durable, .. } = &self.recording.plan;
        are_attributes_done(&self.recording.given, acts, (cut.progress, cut.whole), durable)
    }

    /// True if the pool had shown numbers before the cut.
    fn has_shown_numbers(&self, cut: &Cut) -> bool {
        cut.progress.answered >= self.recording.plan.acts_unseen()
    }

    /// True if the order of changes of a name is not guaranteed.
    fn is_loose_at(&self, cut: &Cut, path: &Path) -> bool {
        let Plan { acts, durable, .. } = &self.recording.plan;
        is_loose(&self.recording.given, acts, cut.progress, durable, path)
    }
}

/// Verdict on a state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) faults: Vec<Fault>,
    /// Whether the first operation is done, if the tree shows it.
    pub(crate) done: Option<bool>,
}

impl From<Vec<Fault>> for Verdict {
    fn from(faults: Vec<Fault>) -> Self {
        Self { faults, done: None }
    }
}

/// Mounts the disks after `cut`.
pub(crate) fn judge(recording: &Recording, cut: &Cut, home: &Home) -> Verdict {
    let plan = &recording.plan;
    let mount = |(at, state): (usize, &usize)| {
        let format = plan.branches[at].format;
        home.mount(at, recording.disks[at][*state].image(home, at, format), format)
    };
    let disks: Vec<Disk> = cut.states.iter().enumerate().map(mount).collect();
    let state = home.path().join("state");
    let _none = fs::remove_dir_all(&state);
    fs::create_dir(&state).unwrap();
    put_files(&recording.index[cut.index], &state);
    let paths = disks.iter().map(|disk| disk.path().to_owned()).collect();
    let test_bed = TestBed { recording, paths, state };
    let verdict = match plan.then {
        Then::Mount => mounted(&test_bed, cut),
        Then::Reversed => after::reversed(&test_bed, cut).into(),
        Then::Away(away, meanwhile) => after::away(&test_bed, cut, (away, meanwhile)).into(),
    };
    disks.into_iter().for_each(Disk::unmount);
    verdict
}

pub(crate) fn mounted(test_bed: &TestBed<'_>, cut: &Cut) -> Verdict {
    let mut faults = Vec::new();
    let engine = test_bed.mount();
    let names = match shown::shown(&engine) {
        Ok(names) => names,
        Err(error) => return vec![fault("tree", error)].into(),
    };
    faults.extend(tree(test_bed.recording, cut, &names));
    faults.extend(numbers(&names));
    faults.extend(links(test_bed, &names));
    faults.extend(handles(test_bed, cut, (&engine, &names), Judged::ALL));
    if test_bed.recording.plan.begin != Begin::Mounted && test_bed.has_shown_numbers(cut) {
        faults.extend(renumbered(&test_bed.recording.handles, &names));
    }
    drop(engine);
    faults.extend(branches(test_bed, cut, &names));
    faults.extend(again(test_bed, &names));
    let Recording { given, plan, .. } = test_bed.recording;
    let done =
        first_is_done(given, &plan.acts, cut.progress.started, |tree| differences(tree, &names).is_empty());
    Verdict { faults, done }
}

fn trees(recording: &Recording, progress: Progress, whole: bool) -> Vec<Tree> {
    allowed(&recording.given, &recording.plan.acts, progress, whole, &recording.plan.durable)
}

/// Checks that the tree is one of the allowed ones.
pub(crate) fn tree(recording: &Recording, cut: &Cut, names: &Names) -> Option<Fault> {
    let asked = [Some((false, cut.progress)), cut.whole.map(|progress| (true, progress))];
    asked.into_iter().flatten().find_map(|(whole, progress)| {
        let all = trees(recording, progress, whole);
        let wrong: Vec<Vec<String>> = all.iter().map(|tree| differences(tree, names)).collect();
        let nearest = wrong.into_iter().min_by_key(Vec::len).unwrap_or_default();
        (!nearest.is_empty())
            .then(|| fault("tree", format!("{} (shown: {})", nearest.join(", "), line(names))))
    })
}

/// Checks that a file has the number that was shown before.
pub(crate) fn renumbered(handles: &[HandleOf], names: &Names) -> Option<Fault> {
    handles.iter().find_map(|handle| {
        let is_it = |name: &&Shown| name.object == Some(handle.object) && name.text.is_some();
        let now = names.values().find(is_it)?.ino;
        let text = format!("#{} was {}, and is {}", handle.object, handle.ino.0, now.0);
        (now != handle.ino).then(|| fault("number", text))
    })
}

/// Checks that no two objects have one number.
pub(crate) fn numbers(names: &Names) -> Option<Fault> {
    let mut seen: BTreeMap<u64, (&PathBuf, &Shown)> = BTreeMap::new();
    names.iter().find_map(|(path, name)| {
        let (other, before) = *seen.entry(name.ino.0).or_insert((path, name));
        let is_same = other == path
            || (name.text.is_some() && before.text == name.text && before.object == name.object);
        (!is_same)
            .then(|| fault("number", format!("{} and {} have one number", other.display(), path.display())))
    })
}

/// Checks that a file has as many links as it has names, where files have several.
pub(crate) fn links(test_bed: &TestBed<'_>, names: &Names) -> Option<Fault> {
    let files = names.iter().filter(|(_, name)| name.text.is_some() && test_bed.recording.plan.has_links());
    let mut wrong = files.filter_map(|(path, name)| {
        let all = names.values().filter(|other| other.ino == name.ino).count();
        (all != name.links as usize)
            .then(|| fault("links", format!("{} has {all} names and {} links", path.display(), name.links)))
    });
    wrong.next()
}

/// Handles that are judged.
#[derive(Clone, Copy)]
pub(crate) struct Judged<'a> {
    /// No branch is away.
    pub(crate) is_whole: bool,
    /// All but those of which this is true.
    pub(crate) except: &'a dyn Fn(&HandleOf) -> bool,
}

impl Judged<'_> {
    /// All, with all branches.
    pub(crate) const ALL: Self = Self { is_whole: true, except: &|_| false };
}

/// Checks the handles of an exported pool, which shows `names`.
pub(crate) fn handles(
    test_bed: &TestBed<'_>,
    cut: &Cut,
    (engine, names): (&Engine, &Names),
    judged: Judged<'_>,
) -> Vec<Fault> {
    let recording = test_bed.recording;
    if !recording.plan.export || !test_bed.has_shown_numbers(cut) {
        return Vec::new();
    }
    let trees = cut
        .whole
        .map_or_else(|| trees(recording, cut.progress, false), |progress| trees(recording, progress, true));
    let is_judged = |handle: &&HandleOf| !test_bed.is_loose_at(cut, &handle.path) && !(judged.except)(handle);
    let handles = recording.handles.iter().filter(is_judged);
    handles.filter_map(|handle| opens(engine, handle, (names, judged.is_whole), &trees)).collect()
}

/// Resolves a handle once the index is complete: an index that was not closed is rebuilt from the marks.
fn at_last(engine: &Engine, handle: &HandleOf) -> Result<Entry, OpError> {
    let began = Instant::now();
    loop {
        match engine.union.lookup_self(handle.ino) {
            Err(error) if error.errno() == Errno::IO && began.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            answer => return answer,
        }
    }
}

/// Checks that a handle opens its object, or nothing. `is_whole`: no branch is away.
fn opens(
    engine: &Engine,
    handle: &HandleOf,
    (names, is_whole): (&Names, bool),
    trees: &[Tree],
) -> Option<Fault> {
    let described = |what: String| Some(fault("handle", format!("of object #{}: {what}", handle.object)));
    let is_shown = names.values().any(|name| name.object == Some(handle.object));
    let is_expected = is_whole || is_shown;
    match if is_expected { at_last(engine, handle) } else { engine.union.lookup_self(handle.ino) } {
        Ok(entry) if entry.generation == handle.generation => {
            if entry.attr.stat.is_dir() || handle.object < MADE {
                let object = shown::object(engine, entry.ino);
                let is = object == (handle.object < MADE).then_some(handle.object);
                return if is { None } else { described(format!("opens {object:?}")) };
            }
            let kind = entry.attr.stat.kind();
            let text = if kind == Kind::File {
                shown::read(engine, entry.ino).unwrap_or_default()
            } else {
                String::new()
            };
            let fits = |tree: &Tree| {
                tree.nodes.get(&handle.object).is_some_and(|node| match &node.thing {
                    Thing::File { text: whole, .. } => {
                        kind == Kind::File && shown::has_content(&text, whole, 0)
                    }
                    Thing::Link(_) => kind == Kind::Symlink,
                    Thing::Fifo => kind == Kind::Fifo,
                    Thing::Dir => false,
                })
            };
            if trees.iter().any(fits) { None } else { described(format!("opens a file with {text:?}")) }
        }
        Ok(_) if is_shown => described("is of an earlier generation, and the object is there".to_owned()),
        Err(error) if error.errno() == Errno::STALE && is_shown => {
            described("is stale, and the object is there".to_owned())
        }
        Ok(_) => None,
        Err(error) if error.errno() == Errno::STALE || !is_expected && error.errno() == Errno::IO => None,
        Err(error) => described(format!("answers {error}")),
    }
}

/// Checks that the branches have nothing that is not shown, and that copies which differ are narrowed or logged.
pub(crate) fn branches(test_bed: &TestBed<'_>, cut: &Cut, names: &Names) -> Vec<Fault> {
    let is_loose = |path: &Path| {
        // A file may have been renamed since.
        let is_new = path.extension().is_some_and(|extension| extension == RENAMED);
        test_bed.is_loose_at(cut, &if is_new { path.with_extension("") } else { path.to_owned() })
    };
    let are_equal = test_bed.are_attributes_done(cut);
    let judged = || copies(&test_bed.recording.plan, &test_bed.paths, names, (&is_loose, are_equal));
    let mut faults: Vec<Fault> = judged().into_iter().filter(|fault| fault.kind != RIGHTS).collect();
    // After what is left over, which its mount may remove; before rights, which it narrows.
    faults.extend(unreported(test_bed));
    faults.extend(judged().into_iter().filter(|fault| fault.kind == RIGHTS));
    faults
}

/// Checks that the branches of `plan` have nothing that `names` does not have, where the order of changes is guaranteed, and
/// whether copies of a directory have the same attributes.
pub(crate) fn copies(
    plan: &Plan,
    paths: &[PathBuf],
    names: &Names,
    (is_loose, are_equal): (impl Fn(&Path) -> bool, bool),
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut first: BTreeMap<PathBuf, shown::OnBranch> = BTreeMap::new();
    for (at, root) in paths.iter().enumerate() {
        let (all, is_left) = on_branch(root);
        if is_left {
            faults.push(fault("left", format!("the hidden folder of branch {at}")));
        }
        for (path, copy) in all {
            if is_loose(&path) {
                continue;
            }
            let Some(shown) = first.get(&path) else {
                if !names.contains_key(&path) {
                    faults.push(fault("left", format!("{} on branch {at} is not shown", path.display())));
                }
                first.insert(path, copy);
                continue;
            };
            if shown.is_dir && copy.is_dir {
                if shown.object != copy.object {
                    faults.push(fault(
                        ANOTHER,
                        format!("{} on branch {at} is another directory", path.display()),
                    ));
                }
                // Copies that differ after a cut are narrowed.
                if copy.owner != shown.owner || copy.mode & !shown.mode != 0 {
                    let is = format!("{:o} of {:?}", copy.mode, copy.owner);
                    let what = format!("{} on branch {at} lets in more users: {is}", path.display());
                    faults.push(fault(RIGHTS, what));
                }
                if copy.attributes != shown.attributes && are_equal {
                    let has = format!("{:?}, not {:?}", copy.attributes, shown.attributes);
                    faults.push(fault(RIGHTS, format!("{} on branch {at} has {has}", path.display())));
                }
                continue;
            }
            if !plan.is_hidden(&path) {
                faults.push(fault("left", format!("{} on branch {at} is hidden", path.display())));
            }
        }
    }
    faults
}

/// Checks that copies of a directory with other rights than the first one are logged by the next mount, or equal then.
fn unreported(test_bed: &TestBed<'_>) -> Option<Fault> {
    let unlike = || shown::unlike(&test_bed.paths);
    let changed = unlike().into_values().max()?;
    // The pool passes over changes that may be under way.
    std::thread::sleep(SETTLED_AFTER.saturating_sub(changed.elapsed().unwrap_or_default()));
    let log = logged(|| drop(shown::shown(&test_bed.mount())));
    let is_silent = |path: &PathBuf| !log.contains(&format!("path=\"{}\"", path.display()));
    let silent = unlike().into_keys().find(is_silent)?;
    Some(fault(RIGHTS, format!("{} has copies with other rights, and the log says: {log}", silent.display())))
}

/// Checks that the next mount shows the same.
pub(crate) fn again(test_bed: &TestBed<'_>, names: &Names) -> Option<Fault> {
    let engine = test_bed.mount();
    match shown::shown(&engine) {
        Ok(again) if again == *names => None,
        Ok(again) => Some(fault("again", format!("the next mount shows {}", line(&again)))),
        Err(error) => Some(fault("again", error)),
    }
}
