//! A daemon with a keeper dies at each system call of each operation: the program's answer, and what is there, are as on a local disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use fsstack_lab::{self as lab, Pool, needs, until};
use rustix::fs::{CWD, RenameFlags, copy_file_range, renameat_with};

use crate::kept::open_handles;
use crate::many_deaths::LIMIT;
use crate::scenario::{SCENARIOS, named};

/// One of so many calls kills, in the tests that are not long: another one for each operation.
const STEP: u64 = 5;
/// More calls than any of these operations makes.
const MOST_CALLS: u64 = 1000;

/// Longest time of a mount in the tests that are not long.
const SHORT_LIMIT: Duration = Duration::from_secs(330);

/// Calls of a program below a directory.
pub(crate) type Work = fn(&Path) -> io::Result<()>;

/// Each scenario by programs' calls, and further changes of what a scenario has prepared: its name, what is done, and that.
pub(crate) const ACTS: &[(&str, &str, Work)] = &[
    ("create", "create", |at| made(&at.join("d/new"), 0o644)),
    ("mkdir", "mkdir", |at| fs::create_dir(at.join("d/new"))),
    ("symlink", "symlink", |at| symlink("far/away", at.join("d/new"))),
    ("link", "link", |at| fs::hard_link(at.join("file"), at.join("d/name"))),
    ("skeleton", "skeleton", |at| made(&at.join("deep/deeper/new"), 0o600)),
    ("skeleton", "mkdir in a skeleton", |at| fs::create_dir(at.join("deep/deeper/new"))),
    ("rename_within_a_branch", "rename within a branch", |at| renamed(at, "d/from", "d/to")),
    ("rename_into_a_missing_parent", "rename into a missing parent", |at| renamed(at, "from", "d/to")),
    ("rename_over_a_file_on_an_earlier_branch", "rename over an earlier", |at| renamed(at, "from", "to")),
    ("rename_over_a_file_on_a_later_branch", "rename over a later", |at| renamed(at, "from", "to")),
    ("rename_of_a_file_with_a_hidden_copy", "rename of a hiding", |at| renamed(at, "from", "to")),
    ("rename_a_directory_of_three_branches", "rename of three", |at| renamed(at, "dir", "new/name")),
    ("rename_over_an_empty_directory_of_three_branches", "rename of three over three", |at| {
        renamed(at, "dir", "to")
    }),
    ("rename_over_an_empty_directory_of_the_last_branch", "rename of three over the last", |at| {
        renamed(at, "dir", "new/to")
    }),
    ("rename_over_an_empty_directory_elsewhere", "rename over elsewhere", |at| renamed(at, "dir", "to")),
    ("exchange_files_of_two_branches", "exchange of files", |at| exchanged(at, "a", "b")),
    ("exchange_a_file_and_a_directory", "exchange with a directory", |at| exchanged(at, "dir", "file")),
    ("unlink_with_duplicates", "unlink", |at| fs::remove_file(at.join("file"))),
    ("rmdir_of_three_branches", "rmdir", |at| fs::remove_dir(at.join("dir"))),
    ("chmod_a_directory_of_three_branches", "chmod of a directory", |at| {
        fs::set_permissions(at.join("dir"), fs::Permissions::from_mode(0o700))
    }),
    ("chmod_a_directory_of_three_branches", "chown of a directory", |at| {
        chown(at.join("dir"), Some(1), Some(2))
    }),
    ("chmod_a_file", "chmod", |at| fs::set_permissions(at.join("d/old"), fs::Permissions::from_mode(0o4755))),
    ("chmod_a_file", "chown", |at| chown(at.join("d/old"), Some(1), Some(2))),
    ("chmod_a_file", "utimens", |at| past(&File::open(at.join("d/old"))?)),
    ("chmod_a_file", "several attributes", |at| {
        // Owner and group go with the set-id bits, size with the time of change.
        let file = at.join("d/old");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6755))?;
        chown(&file, Some(3), Some(4))?;
        let file = File::options().write(true).truncate(true).open(file)?;
        file.set_len(3)?;
        past(&file)
    }),
    ("truncate", "truncate", |at| File::options().write(true).open(at.join("d/old"))?.set_len(1)),
    ("write", "write", |at| {
        let mut file = File::options().write(true).open(at.join("d/old"))?;
        file.seek(io::SeekFrom::Start(1))?;
        file.write_all(b"longer than it was")
    }),
    ("write", "append", |at| {
        let mut file = File::options().append(true).open(at.join("d/old"))?;
        file.write_all(b" and more")?;
        file.write_all(b" and more")
    }),
    ("copy_range", "copy_range", |at| {
        let (from, to) = (File::open(at.join("from"))?, File::options().write(true).open(at.join("to"))?);
        while copy_file_range(&from, None, &to, None, 1 << 20)? > 0 {}
        Ok(())
    }),
];

fn made(path: &Path, mode: u32) -> io::Result<()> {
    let mut made = File::options().write(true).create_new(true).mode(mode).open(path)?;
    made.write_all(b"content")
}

fn renamed(at: &Path, from: &str, to: &str) -> io::Result<()> {
    fs::rename(at.join(from), at.join(to))
}

fn exchanged(at: &Path, from: &str, to: &str) -> io::Result<()> {
    Ok(renameat_with(CWD, at.join(from), CWD, at.join(to), RenameFlags::EXCHANGE)?)
}

/// Gives the file times of the past.
fn past(file: &File) -> io::Result<()> {
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000);
    file.set_times(fs::FileTimes::new().set_accessed(time).set_modified(time))
}

/// Names of a tree, each with all that a program can see of it.
pub(crate) type Seen = BTreeMap<PathBuf, String>;

/// Names below `root`.
pub(crate) fn seen(root: &Path) -> Seen {
    try_seen(root).unwrap()
}

/// Like [`seen`], of a pool that may not answer.
pub(crate) fn try_seen(root: &Path) -> io::Result<Seen> {
    let mut tree = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let stat = path.symlink_metadata()?;
            let what = if stat.is_dir() {
                waiting.push(path.clone());
                let kept = rustix::fs::lgetxattr(&path, c"user.kept", &mut [0; 8][..]).is_ok();
                format!("directory, kept: {kept}")
            } else if stat.is_symlink() {
                format!("link to {}", fs::read_link(&path)?.display())
            } else {
                // Times that nobody has set differ.
                let time = if stat.mtime() < 10_000_000 { stat.mtime() } else { 0 };
                format!("{} names, time {time}, {}", stat.nlink(), fs::read_to_string(&path)?)
            };
            let name = path.strip_prefix(root).unwrap().to_owned();
            let row = format!("{:o} {}:{} {what}", stat.mode(), stat.uid(), stat.gid());
            assert_eq!(tree.insert(name, row), None, "{} is listed twice", path.display());
        }
    }
    Ok(tree)
}

/// A pool whose daemon dies at a call that a test names, and a local disk beside it.
struct KeptBed {
    pool: Pool,
    home: tempfile::TempDir,
}

impl KeptBed {
    fn new(write_path: &str, limit: Duration) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("local")).unwrap();
        let builder = lab::pool().tmp_branch("a").tmp_branch("b").tmp_branch("c");
        let pool = builder
            .option("transport=dev,restart=keep,create=ff,seccomp=off")
            .option(&format!("log={}", home.path().join("log").display()))
            .option(write_path)
            .helper(env!("CARGO_BIN_EXE_mount-fsstack-faulty"))
            .env("FSSTACK_TEST_DEATHS", "any")
            .env("FSSTACK_FAULT", &format!("trap:{}", home.path().join("trap").display()))
            .limit(limit)
            .mount();
        Self { pool, home }
    }

    /// Where the scenario is prepared on the local disk, as the pool shows it.
    fn prepare(&self, scenario: &str, case: &str) -> PathBuf {
        let branches = ["a", "b", "c"].map(|name| self.pool.branch(name).path().join(case));
        branches.iter().for_each(|branch| fs::create_dir(branch).unwrap());
        named(scenario).prepare(&branches.each_ref().map(PathBuf::as_path));
        let local = self.home.path().join("local").join(case);
        // A name's first branch has it.
        for branch in branches.iter().rev() {
            let copied = lab::shell::command("cp").args(["-a", "-T"]).arg(branch).arg(&local).run();
            copied.unwrap();
        }
        local
    }

    /// Does the work with a death at the `nth` call of the daemon; false if there are not so many calls.
    fn dies_at(&self, (scenario, what, work): (&str, &str, Work), nth: u64) -> bool {
        let (pool, case) = (&self.pool, format!("{what} {nth}"));
        let (local, trap) = (self.prepare(scenario, &case), self.home.path().join("trap"));
        let before = seen(&local);
        work(&local).unwrap();
        until("the daemon before", || pool.daemon().child().is_some());
        let serves = pool.daemon().child().unwrap();
        fs::write(&trap, format!("{nth} {case}")).unwrap();
        let done = work(&pool.at(&case)).map_err(|error| error.raw_os_error());
        let is_over = fs::remove_file(&trap).is_ok();
        if !is_over {
            until("the daemon dies", || !serves.lives());
        }
        let shown = seen(&pool.at(&case));
        if what.starts_with("exchange") && done == Err(Some(5)) {
            // Before and after an exchange look alike.
            assert!(shown == before || shown == seen(&local), "{case}: {shown:#?}");
            fs::remove_dir_all(pool.at(&case)).unwrap();
            fs::remove_dir_all(&local).unwrap();
            return true;
        }
        assert_eq!(done, Ok(()), "{case}\n{}", self.log());
        assert_eq!(shown, seen(&local), "{case}\n{}", self.log());
        !is_over
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// All that was done is there after a remount, and nothing else.
    fn remount_and_compare(mut self) {
        until("no handle is left over", || open_handles(&self.pool) == (0, 0));
        self.pool.remount();
        let (shown, local) = (seen(self.pool.path()), seen(&self.home.path().join("local")));
        for (name, row) in &local {
            assert_eq!(shown.get(name), Some(row), "{}", name.display());
        }
        assert_eq!(shown.len(), local.len(), "more than on the local disk");
    }
}

fn each_is_done_once_at_each_call(write_path: &str, step: u64) {
    needs!(mounting());
    let bed = KeptBed::new(write_path, if step == 1 { LIMIT } else { SHORT_LIMIT });
    let mut deaths = 0;
    for (at, act) in (0_u64..).zip(ACTS) {
        let mut calls = (1 + at % step..MOST_CALLS).step_by(usize::try_from(step).unwrap());
        let died = calls.by_ref().take_while(|nth| bed.dies_at(*act, *nth)).count();
        assert!(calls.next().is_some(), "{}: too many calls", act.1);
        deaths += died;
    }
    println!("{write_path}: {deaths} deaths");
    bed.remount_and_compare();
}

#[test]
fn requests_are_done_once_at_whichever_call_the_daemon_dies() {
    each_is_done_once_at_each_call("write-path=auto", STEP);
}

#[test]
fn stacked_requests_are_done_once_at_whichever_call_the_daemon_dies() {
    each_is_done_once_at_each_call("write-path=stacked", STEP);
}

#[test]
#[ignore = "minutes: cargo xtask test --tier long"]
fn requests_are_done_once_at_every_call_at_which_the_daemon_dies() {
    each_is_done_once_at_each_call("write-path=auto", 1);
}

#[test]
#[ignore = "minutes: cargo xtask test --tier long"]
fn stacked_requests_are_done_once_at_every_call_at_which_the_daemon_dies() {
    each_is_done_once_at_each_call("write-path=stacked", 1);
}

#[test]
fn each_scenario_is_among_them() {
    for scenario in SCENARIOS {
        assert!(ACTS.iter().any(|(name, ..)| *name == scenario.name), "{}", scenario.name);
    }
}
