//! A bulk copy is killed before each of its calls, or the power is cut there, and it is run again.
//!
//! The copier is a child process that stops before its n-th call. The content of each disk is kept then, without and
//! with what the disk's journal would commit by itself. The pool's daemon is the real one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fsstack_lab::daemon::Process;
use fsstack_lab::shell::{Run, command};
use fsstack_lab::{self as lab, Pool, needs};
use fsstack_pool::BranchSpec;
use fsstack_sys::Kind;
use rustix::process::Signal;

use crate::disk::{Disk, Format, Home, Image};
use crate::engine::{Engine, settings};
use crate::record::commit;
use crate::run::{WORKERS, is_long, is_wanted, tally};
use crate::shown::{on_branch, read};

/// Environment variable with the copier's pid file, source and target.
const ORDER: &str = "FSSTACK_TEST_COPIER";
/// Time limit for finding a smaller tree.
const SHRINKING: Duration = Duration::from_secs(90);
/// Time limit for work of milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Rows of the operations' table, if nothing is wrong.
const ROWS: &str = "row\tbulk copy\tkilled after the answer\tdone\n\
                    row\tbulk copy\tpower cut after the answer\tdone\n\
                    row\tbulk copy\tpower cut after a sync\tdone\n";

/// The copier process: does nothing without an order.
#[test]
fn a_copier() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let [number, from, into]: [&str; 3] = order.split('\n').collect::<Vec<_>>().try_into().unwrap();
    fs::write(number, std::process::id().to_string()).unwrap();
    let arguments = ["copy", "--jobs", "1", from, into].map(OsString::from);
    assert_eq!(fsstack_cli::command::run(arguments), 0);
}

/// Names of the copied tree: type and mode, owner, and content or target.
type CopiedNames = BTreeMap<PathBuf, (u32, u32, String)>;

fn names_below(root: &Path) -> CopiedNames {
    let mut found = CopiedNames::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = path.symlink_metadata().unwrap();
        let text = match meta.file_type() {
            kind if kind.is_file() => fs::read_to_string(&path).unwrap(),
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
            _ => String::new(),
        };
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(path.strip_prefix(root).unwrap().to_owned(), (meta.mode(), meta.uid(), text));
    }
    found
}

/// A name in the copied tree.
#[derive(Clone, Copy, Debug)]
enum SourceEntry {
    /// Its mode.
    Dir(u32),
    /// Size in bytes, mode, owner.
    File(usize, u32, u32),
    /// A further name of this file.
    HardLink(&'static str),
    /// A symlink of this user.
    Symlink(u32),
}

/// The copied tree, parents first.
type Source = Vec<(&'static str, SourceEntry)>;

fn source() -> Source {
    vec![
        ("d", SourceEntry::Dir(0o750)),
        ("d/e", SourceEntry::Dir(0o755)),
        ("first", SourceEntry::File(100 << 10, 0o640, 0)),
        ("d/second", SourceEntry::File(50 << 10, 0o600, 1000)),
        ("d/e/third", SourceEntry::File(5, 0o644, 1001)),
        ("d/first", SourceEntry::HardLink("first")),
        ("d/link", SourceEntry::Symlink(1000)),
    ]
}

fn make_source(source: &Source, root: &Path) {
    fs::create_dir(root).unwrap();
    for (n, (name, entry)) in source.iter().enumerate() {
        let path = root.join(name);
        let mode = |mode| fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        match entry {
            SourceEntry::Dir(bits) => {
                fs::create_dir(&path).unwrap();
                mode(*bits);
            }
            SourceEntry::File(size, bits, owner) => {
                fs::write(&path, n.to_string().repeat(*size)).unwrap();
                mode(*bits);
                lchown(&path, Some(*owner), Some(*owner)).unwrap();
            }
            SourceEntry::HardLink(first) => fs::hard_link(root.join(first), &path).unwrap(),
            SourceEntry::Symlink(owner) => {
                symlink("nowhere", &path).unwrap();
                lchown(&path, Some(*owner), Some(*owner)).unwrap();
            }
        }
    }
}

/// `source` without its `n`-th entry, if nothing depends on that.
fn without(source: &Source, n: usize) -> Option<Source> {
    let gone = source[n].0;
    let depends = |(name, entry): &(&str, SourceEntry)| {
        Path::new(name).starts_with(gone) && *name != gone
            || matches!(entry, SourceEntry::HardLink(first) if *first == gone)
    };
    let rest = || source.iter().filter(|(name, _)| *name != gone);
    (!rest().any(depends)).then(|| rest().copied().collect())
}

/// A pool of two disks, and the source of the copy.
struct Bench {
    pool: Pool,
    disks: Vec<Disk>,
    home: Home,
    /// Pairs of names of one file.
    linked: Vec<[&'static str; 2]>,
}

fn pool_over(disks: &[Disk]) -> Pool {
    let paths: Vec<String> = disks.iter().map(|disk| disk.path().display().to_string()).collect();
    let options = ["create=mfs", "minfreespace=0", "attr-timeout=0", "entry-timeout=0"];
    options.iter().fold(lab::pool().no_others().over(&paths), |pool, option| pool.option(option)).mount()
}

impl Bench {
    fn new(images: &[Image], formats: [Format; 2], source: &Source) -> Self {
        let home = Home::new();
        let mount = |(at, image): (usize, &Image)| home.mount(at, image, formats[at]);
        let disks: Vec<Disk> = images.iter().enumerate().map(mount).collect();
        let linked = source.iter().filter_map(|(name, entry)| match entry {
            SourceEntry::HardLink(first) => Some([*first, *name]),
            _ => None,
        });
        Self { pool: pool_over(&disks), disks, home, linked: linked.collect() }
    }

    fn copier(&self, source: &Path) -> Run {
        let number = self.home.path().join("copier");
        let _old = fs::remove_file(&number);
        let order = [&number, source, self.pool.path()].map(|path| path.display().to_string()).join("\n");
        let test = ["--exact", "bulk::a_copier", "--nocapture", "--test-threads=1"];
        command(std::env::current_exe().unwrap()).args(test).env(ORDER, order)
    }

    /// The copier's process, once it has stopped.
    fn stopped(&self) -> Option<Process> {
        let number = fs::read_to_string(self.home.path().join("copier")).ok()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        let is_stopped = stat.rsplit_once(')')?.1.trim_start().starts_with('T');
        Process::of(number).filter(|_| is_stopped)
    }

    fn end(self) {
        let Self { pool, disks, .. } = self;
        drop(pool);
        disks.into_iter().for_each(Disk::unmount);
    }

    fn images(&self) -> Vec<Image> {
        self.disks.iter().map(Disk::image).collect()
    }

    /// Copies until right before the `nth` call and kills the copier there. Returns the disks' content, without and
    /// with what their journals commit; `None` if there are fewer calls.
    fn killed(&self, source: &Path, nth: u64) -> Option<[Vec<Image>; 2]> {
        let run = self.copier(source).env("FSSTACK_FAULT", format!("stop:{nth}"));
        std::thread::scope(|scope| {
            let copier = scope.spawn(|| run.output().unwrap());
            let began = Instant::now();
            let stopped = loop {
                match self.stopped() {
                    Some(stopped) => break stopped,
                    None if copier.is_finished() => {
                        let ended = copier.join().unwrap();
                        assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
                        return None;
                    }
                    None => assert!(began.elapsed() < LIMIT, "call {nth} is not reached"),
                }
                std::thread::sleep(Duration::from_micros(200));
            };
            let synced = self.images();
            self.disks.iter().for_each(|disk| commit(disk.path()));
            let committed = self.images();
            stopped.signal(Signal::KILL).unwrap();
            assert_eq!(copier.join().unwrap().code, 128 + 9);
            Some([synced, committed])
        })
    }

    /// Waits until the daemon has cleaned up after a copier.
    fn cleared(&self) -> bool {
        let began = Instant::now();
        while self.disks.iter().any(|disk| on_branch(disk.path()).1) {
            if LIMIT < began.elapsed() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Copies to the end; returns what is wrong then.
    fn finished(&self, source: &Path, whole: &CopiedNames) -> Option<String> {
        let ended = self.copier(source).output().unwrap();
        let name = self.pool.at(source.file_name().unwrap());
        if ended.code != 0 {
            return Some(format!("run again: it fails: {}{}", ended.stdout, ended.stderr));
        }
        let found = names_below(&name);
        if found != *whole {
            return Some(format!("run again: {}", difference(whole, &found)));
        }
        let number = |path: &str| name.join(path).metadata().unwrap().ino();
        if let Some([one, other]) = self.linked.iter().find(|[one, other]| number(one) != number(other)) {
            return Some(format!("run again: {one} and {other} are two files"));
        }
        (!self.cleared()).then(|| "run again: a hidden folder is left".to_owned())
    }
}

fn difference(whole: &CopiedNames, found: &CopiedNames) -> String {
    let paths: BTreeSet<&PathBuf> = whole.keys().chain(found.keys()).collect();
    let described = |name: Option<&(u32, u32, String)>| match name {
        None => "not there".to_owned(),
        Some((mode, owner, text)) => format!("{mode:o} of {owner}, {} bytes", text.len()),
    };
    let differing = paths.into_iter().filter(|path| whole.get(*path) != found.get(*path));
    let lines = differing.map(|path| {
        format!("{} is {}, not {}", path.display(), described(found.get(path)), described(whole.get(path)))
    });
    lines.collect::<Vec<_>>().join("; ")
}

/// The state of both disks after a cut.
struct Left {
    images: [Image; 2],
    formats: [Format; 2],
    what: String,
    /// The copy had returned 0.
    returned: bool,
}

/// Mounts the disks after a cut, and returns what is wrong.
fn judge(left: &Left, home: &Home, whole: &CopiedNames) -> Option<String> {
    let disks: Vec<Disk> =
        left.images.iter().enumerate().map(|(at, image)| home.mount(at, image, left.formats[at])).collect();
    let specs = || disks.iter().map(|disk| BranchSpec::new(disk.path().to_owned())).collect();
    let engine = Engine::of(specs(), settings("ff"));
    let found = names_of(&engine);
    drop(engine);
    let is_left = disks.iter().any(|disk| on_branch(disk.path()).1);
    let again = names_of(&Engine::of(specs(), settings("ff")));
    disks.into_iter().for_each(Disk::unmount);
    let found = match found {
        Ok(found) => found,
        Err(error) => return Some(error),
    };
    let of_file = |mode: u32| mode & 0o170_000 == 0o100_000;
    let half = found.iter().find(|(path, name)| of_file(name.0) && whole.get(*path) != Some(*name));
    let strange = found.keys().find(|path| !whole.contains_key(*path));
    match () {
        () if half.is_some() || strange.is_some() || left.returned && found != *whole => {
            Some(difference(whole, &found))
        }
        () if is_left => Some("a hidden folder is left".to_owned()),
        () if again.as_ref() != Ok(&found) => Some(format!("the next mount shows {again:?}")),
        () => None,
    }
}

/// Judges all states; returns what is wrong.
fn judge_all(all: &[Left], whole: &CopiedNames) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let faults = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let home = Home::new();
                while let Some(left) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let wrong = judge(left, &home, whole);
                    faults.lock().unwrap().extend(wrong.map(|text| format!("{}: {text}", left.what)));
                }
            });
        }
    });
    faults.into_inner().unwrap()
}

/// The copied tree as the pool shows it.
fn names_of(engine: &Engine) -> Result<CopiedNames, String> {
    let mut found = CopiedNames::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(dir) = waiting.pop() {
        let names = engine
            .list(&dir, usize::MAX)
            .map_err(|error| format!("listing of {}: {error}", dir.display()))?;
        for path in names.into_iter().map(|name| dir.join(name)) {
            let failed = |error| format!("{}: {error}", path.display());
            let entry = engine.find(&path).map_err(failed)?;
            let text = match entry.attr.stat.kind() {
                Kind::File => read(engine, entry.ino).map_err(failed)?,
                Kind::Symlink => "nowhere".to_owned(),
                _ => String::new(),
            };
            if entry.attr.stat.is_dir() {
                waiting.push(path.clone());
            }
            let Ok(name) = path.strip_prefix("tree") else {
                return Err(format!("{} is there", path.display()));
            };
            found.insert(name.to_owned(), (entry.attr.stat.mode, entry.attr.stat.uid, text));
        }
    }
    Ok(found)
}

/// Result of a copy that is cut at its calls.
struct CutCopy {
    judged: usize,
    /// Number of the copier's calls.
    calls: u64,
    faults: Vec<String>,
}

/// Kills a copy of `source` before each call, and cuts it there: at every `step`-th. An interrupted copy is completed after one
/// of `again` cuts, too.
fn cut(source: &Source, formats: [Format; 2], (step, again): (u64, usize)) -> CutCopy {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    make_source(source, &root);
    let whole = names_below(&root);
    let bench = Bench::new(&formats.map(|format| format.empty().clone()), formats, source);
    let mut faults = Vec::new();
    let mut all: Vec<Left> = Vec::new();
    let mut keep = |left: Left| {
        if all.iter().all(|known| known.images != left.images || known.returned != left.returned) {
            all.push(left);
        }
    };
    let (mut calls, mut kills) = (0, 0);
    for nth in (1..).step_by(usize::try_from(step).unwrap()) {
        let Some([synced, committed]) = bench.killed(&root, nth) else { break };
        (calls, kills) = (nth, kills + 1);
        for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let image = |at: usize, which: usize| [&synced, &committed][which][at].clone();
            let what = format!("cut before call {nth}, committed: {a} {b}");
            keep(Left { images: [image(0, a), image(1, b)], formats, what, returned: false });
        }
        faults.extend(bench.finished(&root, &whole).map(|text| format!("killed before call {nth}; {text}")));
        let images = bench.images().try_into().unwrap();
        let what = format!("killed before call {nth}, run again, cut");
        keep(Left { images, formats, what, returned: true });
        fs::remove_dir_all(bench.pool.at("tree")).unwrap();
    }
    bench.end();
    faults.extend(judge_all(&all, &whole));
    for left in all.iter().filter(|left| !left.returned).step_by(again) {
        let bench = Bench::new(&left.images, formats, source);
        let wrong = bench.finished(&root, &whole);
        faults.extend(wrong.map(|text| format!("{}; {text}", left.what)));
        bench.end();
    }
    CutCopy { judged: all.len() + kills, calls, faults }
}

/// Makes the tree as small as possible while it is wrong; returns it with its fault.
fn smallest<T>(source: Source, fault: T, mut wrong: impl FnMut(&Source) -> Option<T>) -> (Source, T) {
    let (mut smallest, began) = ((source, fault), Instant::now());
    'smaller: loop {
        for source in (0..smallest.0.len()).rev().filter_map(|n| without(&smallest.0, n)) {
            if SHRINKING < began.elapsed() {
                return smallest;
            }
            if let Some(fault) = wrong(&source) {
                smallest = (source, fault);
                continue 'smaller;
            }
        }
        return smallest;
    }
}

/// Judges copies of the whole tree.
fn judged(family: &str, formats: [Format; 2], steps: (u64, usize)) {
    if !is_wanted(family) {
        return;
    }
    let CutCopy { judged, calls, faults } = cut(&source(), formats, steps);
    assert!(calls > 20, "{calls} calls");
    println!("{calls} calls");
    tally(family, (1, judged, faults.len()), if faults.is_empty() { ROWS } else { "" });
    if !faults.is_empty() {
        let wrong =
            |source: &Source| Some(cut(source, formats, (1, 1)).faults).filter(|faults| !faults.is_empty());
        let (source, faults) = smallest(source(), faults, wrong);
        panic!("fsstack copy of this tree to {formats:?}: {source:?}\n{}", faults.join("\n"));
    }
}

#[test]
fn a_bulk_copy_is_killed_or_cut_at_each_call_and_run_again() {
    needs!(mounting(), loops());
    judged("bulk copy", [Format::Ext4; 2], (1, if is_long() { 1 } else { 16 }));
}

#[test]
fn a_bulk_copy_to_xfs_is_killed_or_cut_and_run_again() {
    needs!(mounting(), loops());
    let steps = if is_long() { (1, 1) } else { (8, 32) };
    judged("bulk copy, XFS and ext4", [Format::Xfs, Format::Ext4], steps);
}

#[test]
fn a_tree_is_shrunk_to_the_names_that_its_fault_needs() {
    let is_wrong = |source: &Source| source.iter().any(|(name, _)| *name == "d/first").then_some(());
    let (smallest, ()) = smallest(source(), (), is_wrong);
    let names: Vec<&str> = smallest.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["d", "first", "d/first"]);
}
