//! Requests for a file that is moving to another branch.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fsstack_engine::jobs::{ConsolidateOrder, Manner};
use fsstack_engine::ops::{Change, WriteTerms};
use fsstack_engine::settings::Verify;
use fsstack_engine::{Caller, Union};
use fsstack_lab::needs;
use fsstack_lab::needs::Skip;
use fsstack_pool::{BranchIx, EntryNameBuf, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{self as sys, Call, Errno, OFlags};

use crate::beside::{FILM, MovingFile, SIZE, moved_with};

/// A moving file, and requests meanwhile.
struct OnItsWay {
    test_bed: MovingFile,
    union: Arc<Union>,
    dir: Ino,
    film: Ino,
}

impl OnItsWay {
    fn new() -> Option<Self> {
        let test_bed = MovingFile::local().map_err(|skip| skip.announce()).ok()?;
        let (dir, film) = ["d", FILM].map(|path| test_bed.engine.ino(Path::new(path)).unwrap()).into();
        let union = test_bed.engine.union.clone();
        Some(Self { test_bed, union, dir, film })
    }

    /// A job waits for all requests that began before, and finds nothing to move.
    fn run_job(&self) {
        let (dir, to, manner) = (b"d".to_vec(), Some(BranchIx(0)), Manner::default());
        let order = ConsolidateOrder { dir, to, manner, window: None };
        let id = self.union.start_consolidate(order).unwrap().id;
        let is_over = || self.union.jobs().iter().any(|job| job.id == id && job.state.is_over());
        while !is_over() {
            std::thread::yield_now();
        }
    }

    #[track_caller]
    fn assert_moved_with(&self, text: &[u8]) {
        assert!(self.test_bed.left() == ([false, true], moved_with(text)));
        assert_eq!(moved(&self.union), 1);
    }
}

/// Number of files moved off the first branch.
fn moved(union: &Union) -> u64 {
    union.status().branches[0].metrics.moved_away
}

fn name(name: &str) -> EntryNameBuf {
    EntryNameBuf::from_bytes(name.as_bytes()).unwrap()
}

#[test]
fn readers_and_the_operator_do_not_wait_for_a_move() {
    needs!(root());
    let Some(it) = OnItsWay::new() else { return };
    let check = it.test_bed.write_and(|| {
        let reader = it.union.open(it.film, OFlags::RDONLY, Caller::DAEMON).unwrap();
        let mut begin = [0; 4096];
        assert_eq!(it.union.read(reader.handle, 0, &mut begin).unwrap(), begin.len());
        assert_eq!(it.union.getattr(it.film, Some(reader.handle)).unwrap().stat.size, SIZE as u64);
        it.union.release(reader.handle);
        let status = it.union.status();
        assert_eq!(status.open.stacked, 1);
        // The pool answered while the move was in progress.
        assert_eq!((begin, moved(&it.union)), ([b'm'; 4096], 0));
    });
    assert_eq!(check, Ok(4));
    it.assert_moved_with(b"more");
}

#[test]
fn a_file_that_is_removed_on_its_way_moves_no_further() {
    needs!(root());
    let Some(it) = OnItsWay::new() else { return };
    let check = it.test_bed.write_and(|| it.union.unlink(it.dir, name("film").as_name()).unwrap());
    // It was written on its old branch.
    assert_eq!((check, moved(&it.union)), (Ok(4), 0));
    assert_eq!(it.test_bed.holders(), [false, false]);
}

#[test]
fn a_file_that_is_renamed_on_its_way_is_written_under_its_new_name() {
    needs!(root());
    let Some(it) = OnItsWay::new() else { return };
    let rename = || {
        let (from, to) = (name("film"), name("other"));
        let ends = ((it.dir, from.as_name()), (it.dir, to.as_name()));
        it.union.rename(ends.0, ends.1, RenameFlags::empty()).unwrap();
    };
    assert_eq!((it.test_bed.write_and(rename), moved(&it.union)), (Ok(4), 0));
    assert_eq!(it.test_bed.holders(), [false, false]);
    assert!(fs::read(it.test_bed.source.join("d/other")).unwrap() == moved_with(b"more"));
}

#[test]
fn a_link_made_on_its_way_keeps_the_file_where_it_is() {
    needs!(root());
    let Some(it) = OnItsWay::new() else { return };
    let link = || {
        it.union.link(it.film, it.dir, name("twin").as_name()).unwrap();
    };
    assert_eq!((it.test_bed.write_and(link), moved(&it.union)), (Ok(4), 0));
    it.union.forget(it.film, 1);
    assert!(it.test_bed.left() == ([true, false], moved_with(b"more")));
}

#[test]
fn changes_of_a_moving_file_arrive_with_it() {
    needs!(root());
    let Some(it) = OnItsWay::new() else { return };
    let change = || {
        let mode = Change { mode: Some(0o604), ..Change::default() };
        it.union.setattr(it.film, None, mode, Caller::DAEMON).unwrap();
        let writer = it.union.open(it.film, OFlags::RDWR, Caller::DAEMON).unwrap();
        assert_eq!(it.union.write(writer.handle, 0, b"other", WriteTerms::default()).unwrap(), 5);
        it.union.release(writer.handle);
        assert_eq!(moved(&it.union), 1, "it was changed before it had arrived");
    };
    assert_eq!(it.test_bed.write_and(change), Ok(4));
    let mut text = moved_with(b"more");
    text[..5].copy_from_slice(b"other");
    assert!(it.test_bed.left() == ([false, true], text));
    assert_eq!(it.union.getattr(it.film, None).unwrap().stat.mode & 0o7777, 0o604);
}

/// Its writes must be synced, which the other branch cannot do.
#[test]
fn a_branch_that_refused_a_file_is_not_tried_again_at_each_write() {
    needs!(root());
    let Some(it) = OnItsWay::new() else { return };
    let film = fs::File::open(it.test_bed.source.join("d/film")).unwrap();
    let flags = sys::ioctl::getflags(film.as_fd()).unwrap_or(0);
    if sys::ioctl::setflags(film.as_fd(), flags | sys::ioctl::FS_SYNC_FL).is_err() {
        return Skip::because("needs a file system with `chattr +S` in /tmp").announce();
    }
    // A copy's mark is set before anything else.
    let is_tried = || {
        let (check, counts) = sys::count::scope(|| it.test_bed.write_when_full());
        assert_eq!(check, Err(Errno::NOSPC));
        counts.of(Call::Setxattr) > 0
    };
    let began = Instant::now();
    let is_tried_beside_a_job = |_: &u32| {
        it.run_job();
        is_tried()
    };
    let tries = (0..20).filter(is_tried_beside_a_job).count() as u64;
    assert!(tries > 0 && tries <= 1 + began.elapsed().as_secs() / 2, "{tries} tries");
    it.union.change(|settings| settings.relocation.verify = Verify::Content).unwrap();
    assert!(is_tried(), "not tried under other settings");
    assert_eq!(it.test_bed.holders(), [true, false]);
}
