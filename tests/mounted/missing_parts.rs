//! A branch that answers without one of its subvolumes: names that it does not find are unknown. The volume is another
//! pool with the virtual file by which a volume's client describes its bricks.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use fsstack_lab::pool::{Builder, Pool};
use fsstack_lab::{self as lab, needs, until};
use fsstack_sys::OFlags;

use crate::handles;
use crate::script::{log_with, sh};

const EIO: Option<i32> = Some(5);
const ENOENT: Option<i32> = Some(2);

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn names(path: &Path) -> io::Result<usize> {
    fs::read_dir(path)?.try_fold(0, |count, entry| entry.map(|_| count + 1))
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn uncached(pool: Builder) -> Builder {
    pool.option("write-path=stacked").option("attr-timeout=0").option("entry-timeout=0")
}

/// A volume of two bricks, with a file on each.
struct Volume {
    pool: Pool,
    private: PathBuf,
    lost: PathBuf,
}

impl Volume {
    fn mount() -> Self {
        let mut pool =
            uncached(lab::pool().tmp_branch("brick").option("subtype=glusterfs").no_others()).unmounted();
        let brick = pool.branch("brick").path().to_owned();
        let layer = brick.join(".meta/graphs/active/v-dht");
        fs::create_dir_all(&layer).unwrap();
        fs::create_dir(brick.join("dir")).unwrap();
        fs::write(brick.join("dir/one"), "one").unwrap();
        fs::write(brick.join("dir/two"), "two").unwrap();
        let volume = Self {
            private: layer.join("private"),
            lost: brick.with_file_name("lost"),
            pool: {
                pool.remount();
                pool
            },
        };
        volume.say(1);
        volume
    }

    fn say(&self, state: u8) {
        let text = format!(
            "[xlator.cluster.dht.v-dht.priv]\nsubvol_cnt=2\nsubvolumes[0]=protocol/client.v-client-0\n\
             subvolumes[1]=protocol/client.v-client-1\nsubvolume_status[0]=1\nsubvolume_status[1]={state}\n"
        );
        fs::write(&self.private, text).unwrap();
    }

    /// Makes the brick with `dir/two` fail silently.
    fn lose(&self) {
        fs::rename(self.private.ancestors().nth(5).unwrap().join("dir/two"), &self.lost).unwrap();
        self.say(0);
    }

    fn find_again(&self) {
        fs::rename(&self.lost, self.private.ancestors().nth(5).unwrap().join("dir/two")).unwrap();
        self.say(1);
    }

    fn below(&self) -> Builder {
        uncached(lab::pool().tmp_branch("b").over(&[self.pool.path().to_str().unwrap()]).option("create=ff"))
    }
}

#[test]
fn a_name_that_a_volume_without_a_brick_does_not_find_is_an_error() {
    needs!(mounting());
    let volume = Volume::mount();
    let pool = volume.below().mount();
    assert_eq!(pool.read("dir/two"), b"two");
    assert_eq!(errno(fs::read(pool.at("dir/nowhere"))), ENOENT);
    volume.lose();
    for name in ["dir/two", "dir/nowhere"] {
        assert_eq!(errno(fs::read(pool.at(name))), EIO, "{name}");
        assert_eq!(errno(create_new(&pool.at(name))), EIO, "{name}");
    }
    assert_eq!(errno(names(&pool.at("dir"))), EIO);
    // The other brick's files are served.
    assert_eq!(pool.read("dir/one"), b"one");
    assert!(!pool.branch("b").path().join("dir").exists());
    volume.find_again();
    assert_eq!(pool.read("dir/two"), b"two");
    until("it is whole", || names(&pool.at("dir")).is_ok_and(|count| count == 2));
    until("it can be created in", || create_new(&pool.at("dir/new")).is_ok());
}

#[test]
fn a_volume_that_lacks_a_brick_from_the_start_is_known_to() {
    needs!(mounting());
    let volume = Volume::mount();
    volume.lose();
    let pool = volume.below().mount();
    assert_eq!(errno(fs::read(pool.at("dir/two"))), EIO);
    assert_eq!(errno(names(&pool.at("dir"))), EIO);
    volume.find_again();
    until("it is whole", || names(&pool.at("dir")).is_ok_and(|count| count == 2));
    assert_eq!(pool.read("dir/two"), b"two");
}

#[test]
fn with_degraded_read_what_is_left_of_a_volume_is_all() {
    needs!(mounting());
    let volume = Volume::mount();
    let pool = volume.below().option("degraded=read").mount();
    volume.lose();
    assert_eq!(errno(fs::read(pool.at("dir/two"))), ENOENT);
    assert_eq!(names(&pool.at("dir")).unwrap(), 1);
    assert_eq!(pool.read("dir/one"), b"one");
}

/// Neither a search by number nor a search of a whole branch answers ENOENT while a brick is missing.
#[test]
fn a_volume_without_a_brick_is_not_looked_through_to_its_end() {
    needs!(mounting());
    let volume = Volume::mount();
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = volume.below().option("nfs-export").option("log-level=debug");
    let mut pool = pool.option(&format!("log={}", log.path().display())).mount();
    let of_volume = volume.pool.path().display().to_string();
    let lines = |what: &str| {
        let said = fs::read_to_string(log.path()).unwrap();
        said.lines().filter(|line| line.contains(what) && line.contains(&of_volume)).count()
    };
    let complete = || lines("index: all marks of the branch recorded");
    until("all marks are found", || complete() == 1);
    let held = handles::hold(&pool, "dir/two");
    pool.unmount();
    // Its location is not cached any more.
    sh(pool.state_dir(), "rm -rf ./*");
    volume.lose();
    pool.remount();
    until("marks are looked for in vain", || {
        lines("index: cannot scan the branch now; it is tried again later") > 0
    });
    // Kernels report a stale handle to programs whatever the error was; their NFS servers do not.
    handles::open(&pool, &held, OFlags::PATH).unwrap_err();
    // It was not reported as gone.
    log_with(log.path(), "a branch is at fault");
    assert_eq!(complete(), 1);
    volume.find_again();
    until("all marks are found again", || complete() == 2);
    until("it is found again", || handles::open(&pool, &held, OFlags::PATH).is_ok());
    handles::check(&pool, &held);
}
