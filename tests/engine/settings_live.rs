//! Settings that change while files are open: the write path, its rules, and the explanation of the decision.

use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::admin::change::BadSettings;
use fsstack_engine::admin::status::OpenByWritePath;
use fsstack_engine::files::route::Route;
use fsstack_engine::settings::{Locks, PageCache, Settings, WritePath};
use fsstack_engine::{Caller, Pool, Union};
use fsstack_pool::{BranchSpec, Floor, Handle, Ino};
use fsstack_sys::OFlags;

use crate::passthrough_kernel::AllPassthrough;
use crate::test_bed::{TestBed, buf, settings};

/// A pool of one branch over such a kernel.
struct Pooled {
    union: Union,
    home: tempfile::TempDir,
}

impl Pooled {
    fn new(write_path: WritePath) -> Self {
        let home = tempfile::tempdir().unwrap();
        for file in ["top", "a/film", "a/b/film", "c/film"] {
            std::fs::create_dir_all(home.path().join(file).parent().unwrap()).unwrap();
            std::fs::write(home.path().join(file), "x").unwrap();
        }
        let specs = [BranchSpec::new(home.path().to_owned())];
        let pool = Pool::open(&specs, Settings { write_path, ..settings() }).unwrap();
        Self { union: Union::new(pool, Arc::new(AllPassthrough)), home }
    }

    fn ino(&self, path: &str) -> Ino {
        path.split('/').fold(Ino::ROOT, |dir, name| self.union.lookup(dir, buf(name).as_name()).unwrap().ino)
    }

    fn open(&self, path: &str, flags: OFlags) -> (Handle, Route) {
        let opened = self.union.open(self.ino(path), flags, Caller::DAEMON).unwrap();
        (opened.handle, opened.route)
    }

    /// Opens it for reading, and closes it.
    fn is_passthrough(&self, path: &str) -> bool {
        let (handle, route) = self.open(path, OFlags::RDONLY);
        self.union.release(handle);
        matches!(route, Route::Passthrough(_))
    }

    fn ask(&self, path: &str, name: &std::ffi::CStr) -> String {
        let mut value = vec![0; 4096];
        let len = self.union.getxattr(self.ino(path), name, Caller::DAEMON, &mut value).unwrap();
        value.truncate(len);
        String::from_utf8(value).unwrap()
    }

    fn why(&self, path: &str) -> String {
        self.ask(path, c"user.fsstack.why")
    }

    fn rule(&self, dir: &str, how: Option<WritePath>) {
        self.union.change(|now| now.rules = now.rules.with(dir.as_bytes(), how).unwrap()).unwrap();
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.union.destroy();
    }
}

fn ways(passthrough: usize, stacked: usize, other_way: usize) -> OpenByWritePath {
    OpenByWritePath { passthrough, stacked, other_way }
}

#[test]
fn all_that_is_asked_for_changes_at_once() {
    let pool = TestBed::new(1);
    let edit = |now: &mut Settings| {
        now.create = "mfs".parse().unwrap();
        now.floor = Floor::Bytes(1 << 30);
        now.relocate = true;
        now.passthrough_headroom = 1 << 20;
        now.page_cache = PageCache::On;
    };
    pool.union.change(edit).unwrap();
    let mut expected = settings();
    edit(&mut expected);
    assert_eq!(pool.union.pool().settings, expected);
}

#[test]
fn a_setting_that_cannot_change_is_refused_and_nothing_changes() {
    let pool = TestBed::new(1);
    let both = |now: &mut Settings| {
        now.relocate = true;
        now.locks = Locks::Branch;
    };
    assert_eq!(pool.union.change(both), Err(BadSettings::Fixed("locks")));
    assert!(!pool.union.pool().settings.relocate);
    let kept_back = |now: &mut Settings| now.page_cache = PageCache::WriteBack;
    assert_eq!(pool.union.change(kept_back), Err(BadSettings::Fixed("page-cache=writeback")));
    // This test bed has no kernel.
    let promise = pool.union.try_passthrough().unwrap_err();
    assert!(promise.to_string().ends_with(": use write-path=auto"), "{promise}");
    pool.union.change(|now| now.recheck = Duration::from_secs(2)).unwrap();
}

#[test]
fn the_switch_takes_effect_at_the_next_first_open() {
    let pool = Pooled::new(WritePath::Stacked);
    let (first, route) = pool.open("top", OFlags::RDWR);
    assert_eq!(route, Route::Direct);
    assert_eq!(pool.union.open_by_write_path(), ways(0, 1, 0));
    pool.union.change(|now| now.write_path = WritePath::Auto).unwrap();
    let (second, route) = pool.open("top", OFlags::RDWR);
    assert_eq!(route, Route::Direct, "it is open: the first open decided");
    assert_eq!(pool.union.open_by_write_path(), ways(0, 1, 1));
    let [other] = &pool.union.other_way(10)[..] else { panic!("one file goes another way") };
    assert_eq!(other.path.as_deref(), Some(&b"top"[..]));
    assert_eq!(other.would.to_string(), "passthrough: the pool's write-path=auto");
    assert_eq!(
        pool.why("top"),
        "stacked: the pool's write-path=stacked; until its last close, then passthrough: the pool's write-path=auto"
    );
    pool.union.release(first);
    assert!(!pool.is_passthrough("top"), "still open");
    pool.union.release(second);
    assert_eq!(pool.union.open_by_write_path(), ways(0, 0, 0));
    assert!(pool.is_passthrough("top"));
    let (third, _) = pool.open("top", OFlags::RDWR);
    assert_eq!(pool.union.open_by_write_path(), ways(1, 0, 0));
    assert!(
        pool.why("top")
            .starts_with("passthrough: the pool's write-path=auto; not moved from a full branch: ")
    );
    pool.union.release(third);
}

#[test]
fn the_rule_of_the_nearest_directory_wins_and_is_shown() {
    let pool = Pooled::new(WritePath::Passthrough);
    pool.rule("/a", Some(WritePath::Stacked));
    pool.rule("a/b/", Some(WritePath::Auto));
    assert!(pool.is_passthrough("top"));
    assert!(!pool.is_passthrough("a/film"));
    assert!(pool.is_passthrough("a/b/film"));
    assert_eq!(pool.why("top"), "passthrough: the pool's write-path=passthrough");
    assert_eq!(pool.why("a/film"), "stacked: the rule /a=stacked for its directory");
    assert_eq!(pool.why("a/b/film"), "passthrough: the rule /a/b=auto for its directory");
    assert_eq!(pool.ask("a/film", c"user.fsstack.write-path"), "stacked");
    // A rule applies to a path: files moved out lose it, files moved in get it.
    let none = fsstack_sys::at::RenameFlags::empty();
    let (a, c) = (pool.ino("a"), pool.ino("c"));
    let (film, moved) = (buf("film"), buf("moved"));
    pool.union.rename((a, film.as_name()), (c, moved.as_name()), none).unwrap();
    pool.union.rename((c, film.as_name()), (a, film.as_name()), none).unwrap();
    assert!(pool.is_passthrough("c/moved"));
    assert!(!pool.is_passthrough("a/film"));
    pool.rule("a", None);
    assert!(pool.is_passthrough("a/film"));
}

#[test]
fn auto_tells_why_it_is_stacked() {
    let pool = Pooled::new(WritePath::Auto);
    let path = pool.home.path().join("top");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let answer = pool.why("top");
    assert!(answer.ends_with("but a write must take set-uid, set-gid or capabilities from it"), "{answer}");
    pool.union.change(|now| now.passthrough_headroom = u64::MAX).unwrap();
    let (handle, route) = pool.open("c/film", OFlags::RDWR);
    assert_eq!(route, Route::Direct);
    let answer = pool.why("c/film");
    assert!(answer.contains("available, less than passthrough-headroom="), "{answer}");
    pool.union.change(|now| now.passthrough_headroom = 0).unwrap();
    assert_eq!(pool.union.open_by_write_path(), ways(0, 1, 1));
    pool.union.release(handle);
    let bare = TestBed::new(1);
    bare.union.change(|now| now.write_path = WritePath::Auto).unwrap();
    let film = bare.write("film", "x");
    let open = bare.open(film, OFlags::RDONLY).unwrap();
    let mut value = [0; 200];
    let len = bare.union.getxattr(film, c"user.fsstack.why", Caller::DAEMON, &mut value).unwrap();
    let answer = String::from_utf8_lossy(&value[..len]).into_owned();
    assert_eq!(answer, "stacked: the pool's write-path=auto, but this mount has no passthrough");
    bare.close(open);
}

/// A mapping keeps the file open on the branch, like a descriptor.
#[test]
fn a_file_that_may_be_mapped_by_passthrough_is_stacked_beside_it() {
    for page_cache in [PageCache::Off, PageCache::On] {
        let stacked = if page_cache == PageCache::On { Route::Cached } else { Route::Direct };
        let pool = Pooled::new(WritePath::Passthrough);
        let mapped = std::fs::File::open(pool.home.path().join("top")).unwrap();
        assert!(pool.is_passthrough("top"));
        let edit = |now: &mut Settings| (now.write_path, now.page_cache) = (WritePath::Stacked, page_cache);
        pool.union.change(edit).unwrap();
        let open = |path: &str| pool.open(path, OFlags::RDWR);
        // This file was never open by passthrough.
        assert_eq!(open("a/film").1, stacked);
        let (first, route) = open("top");
        assert_eq!((route, open("top").1), (Route::DirectBeside(1), Route::DirectBeside(1)));
        assert_eq!(pool.ask("top", c"user.fsstack.write-path"), "stacked");
        pool.union.release(first);
        drop(mapped);
        // It may have been mapped through the open handles.
        assert_eq!(open("top").1, Route::DirectBeside(1));
    }
}

#[test]
fn a_file_that_is_not_mapped_any_more_is_stacked_as_any_file() {
    let pool = Pooled::new(WritePath::Passthrough);
    assert!(pool.is_passthrough("top"));
    pool.union.change(|now| now.write_path = WritePath::Stacked).unwrap();
    assert_eq!(pool.open("top", OFlags::RDWR).1, Route::Direct);
}
