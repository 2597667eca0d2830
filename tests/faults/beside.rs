//! Changes on the branches while a file moves, by another client of the server, or a program on the disk itself.

use std::fs::{self, File, OpenOptions};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use fsstack_engine::ops::WriteTerms;
use fsstack_engine::settings::{Relocation, Settings};
use fsstack_lab::cleanup::Entry;
use fsstack_lab::needs;
use fsstack_lab::needs::Skip;
use fsstack_lab::shell::command;
use fsstack_pool::Handle;
use fsstack_sys::{Call, Errno, OFlags, fault};
use tempfile::TempDir;

use crate::engine::{Answer, Engine, settings};

pub(crate) const FILM: &str = "d/film";
/// Copied in three pieces, two a second.
pub(crate) const SIZE: usize = 3 << 20;
const SPEED: u64 = 2 << 20;

/// A file system in memory that does not count as a local disk: it is treated as a remote branch.
pub(crate) struct Served {
    pub(crate) path: PathBuf,
    _mount: Entry,
    _home: TempDir,
}

impl Served {
    pub(crate) fn mount() -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("served");
        fs::create_dir(&path).unwrap();
        let entry = Entry::mount(&path).unwrap();
        command("mount").args(["-t", "ramfs", "none"]).arg(&path).run().unwrap();
        fs::create_dir(path.join("d")).unwrap();
        Self { path, _mount: entry, _home: home }
    }
}

/// A branch with a file, and another one to which the file may move.
pub(crate) struct MovingFile {
    pub(crate) engine: Engine,
    film: Handle,
    pub(crate) source: PathBuf,
    target: PathBuf,
    _served: Option<Served>,
    _homes: Vec<TempDir>,
}

impl MovingFile {
    /// The file is on a remote branch.
    fn served() -> Self {
        let (served, home) = (Served::mount(), tempfile::tempdir().unwrap());
        Self::over(served.path.clone(), home.path().to_owned(), Some(served), vec![home])
    }

    /// Both are local disks.
    pub(crate) fn local() -> Result<Self, Skip> {
        let (home, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm"));
        let memory = memory.map_err(|e| Skip::because(format!("needs /dev/shm: {e}")))?;
        let paths = (home.path().to_owned(), memory.path().to_owned());
        fs::create_dir(paths.0.join("d")).unwrap();
        Ok(Self::over(paths.0, paths.1, None, vec![home, memory]))
    }

    fn over(source: PathBuf, target: PathBuf, served: Option<Served>, homes: Vec<TempDir>) -> Self {
        fs::create_dir(target.join("d")).unwrap();
        fs::write(source.join(FILM), vec![b'm'; SIZE]).unwrap();
        let speed = NonZeroU64::new(SPEED);
        let relocation = Relocation { speed, ..Relocation::to_the_roomiest() };
        let settings = Settings { relocation, ..settings("ff") };
        let engine = Engine::over([&*source, &*target].into_iter(), settings);
        let film = engine.open(Path::new(FILM), OFlags::RDWR).unwrap();
        // The thread becomes the writer, which is a call of its own on ext4.
        engine.union.write(film, 0, b"m", WriteTerms::default()).unwrap();
        Self { engine, film, source, target, _served: served, _homes: homes }
    }

    fn write(&self) -> Answer<usize> {
        let answer = self.engine.union.write(self.film, SIZE as u64, b"more", WriteTerms::default());
        answer.map_err(|error| error.errno())
    }

    /// Writes to the full branch, so that the file moves, and runs `act` meanwhile.
    pub(crate) fn write_and(&self, act: impl FnOnce() + Send) -> Answer<usize> {
        thread::scope(|scope| {
            scope.spawn(|| {
                // After the file's last timestamp, and after its first piece was copied.
                thread::sleep(Duration::from_millis(300));
                act();
            });
            self.write_when_full()
        })
    }

    /// Writes to the full branch.
    pub(crate) fn write_when_full(&self) -> Answer<usize> {
        let (answer, failed) = fault::fail(1, Errno::NOSPC, || self.write());
        assert_eq!(failed, Some(Call::Write));
        answer
    }

    /// Whether each of the branches has the file.
    pub(crate) fn holders(&self) -> [bool; 2] {
        [&self.source, &self.target].map(|branch| branch.join(FILM).exists())
    }

    /// The branches that have the file, and the first copy's content.
    pub(crate) fn left(&self) -> ([bool; 2], Vec<u8>) {
        let copies = [&self.source, &self.target].map(|branch| fs::read(branch.join(FILM)));
        let holders = copies.each_ref().map(Result::is_ok);
        (holders, copies.into_iter().find_map(Result::ok).unwrap())
    }
}

/// The moving file, opened directly on its branch for writing.
fn opened_past_the_pool(branch: &Path) -> File {
    OpenOptions::new().write(true).open(branch.join(FILM)).unwrap()
}

pub(crate) fn moved_with(text: &[u8]) -> Vec<u8> {
    let mut all = vec![b'm'; SIZE];
    all.extend_from_slice(text);
    all
}

#[test]
fn bytes_that_another_client_appends_while_a_file_moves_are_kept() {
    needs!(mounting());
    let test_bed = MovingFile::served();
    let append = || opened_past_the_pool(&test_bed.source).write_all_at(b"appended", SIZE as u64).unwrap();
    assert_eq!(test_bed.write_and(append), Err(Errno::NOSPC));
    assert!(test_bed.left() == ([true, false], moved_with(b"appended")));
}

#[test]
fn a_file_that_another_client_cuts_while_it_moves_is_not_filled_up() {
    needs!(mounting());
    let test_bed = MovingFile::served();
    let cut = || opened_past_the_pool(&test_bed.source).set_len(10).unwrap();
    assert_eq!(test_bed.write_and(cut), Err(Errno::NOSPC));
    assert!(test_bed.left() == ([true, false], vec![b'm'; 10]));
}

#[test]
fn bytes_that_another_client_overwrites_while_a_file_moves_are_kept() {
    needs!(mounting());
    let test_bed = MovingFile::served();
    let overwrite = || opened_past_the_pool(&test_bed.source).write_all_at(b"other", 0).unwrap();
    assert_eq!(test_bed.write_and(overwrite), Err(Errno::NOSPC));
    let (holders, text) = test_bed.left();
    assert!(holders == [true, false] && text.starts_with(b"otherm"));
}

#[test]
fn a_server_may_tell_another_time_for_the_same_content() {
    needs!(mounting());
    let test_bed = MovingFile::served();
    let touch = || opened_past_the_pool(&test_bed.source).set_modified(std::time::SystemTime::now()).unwrap();
    assert_eq!(test_bed.write_and(touch), Ok(4));
    assert!(test_bed.left() == ([false, true], moved_with(b"more")));
}

#[test]
fn a_file_that_comes_to_the_target_while_one_moves_there_stays() {
    needs!(root());
    let test_bed = match MovingFile::local() {
        Ok(test_bed) => test_bed,
        Err(skip) => return skip.announce(),
    };
    let outsider = test_bed.target.join(FILM);
    assert_eq!(test_bed.write_and(|| fs::write(&outsider, "another").unwrap()), Err(Errno::NOSPC));
    assert_eq!(fs::read(&outsider).unwrap(), b"another");
    assert!(test_bed.left() == ([true; 2], vec![b'm'; SIZE]));
    let film = test_bed.engine.ino(Path::new(FILM)).unwrap();
    let mut why = [0; 256];
    let len = test_bed
        .engine
        .union
        .getxattr(film, c"user.fsstack.why", fsstack_engine::Caller::DAEMON, &mut why)
        .unwrap();
    let why = String::from_utf8_lossy(&why[..len]);
    assert!(why.contains("hides files of its name"), "{why}");
}
