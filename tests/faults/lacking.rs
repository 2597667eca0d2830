//! A branch is added while another lacks subvolumes: the copies that the other does not show may exist.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use fsstack_engine::admin::live::Position;
use fsstack_lab::pool::Pool;
use fsstack_lab::{self as lab, MiB, needs};
use fsstack_pool::BranchSpec;
use rustix::fs::{FallocateFlags, fallocate};

use crate::check::{Entry as Seen, seen};
use crate::engine::{Engine, settings};
use crate::kill;
use crate::scenario::{FILM, MOVE_WITH_ROOM, MOVED};

/// A volume of two bricks: another pool with the virtual file by which a volume's client describes its bricks.
struct Volume(Pool);

impl Volume {
    fn mount() -> Self {
        let pool = lab::pool().tmp_branch("brick").option("subtype=glusterfs").no_others();
        let pool = pool.option("write-path=stacked").option("attr-timeout=0").option("entry-timeout=0");
        let mut pool = pool.unmounted();
        let layer = pool.branch("brick").path().join(".meta/graphs/active/v-dht");
        fs::create_dir_all(layer).unwrap();
        pool.remount();
        let volume = Self(pool);
        volume.say(1);
        volume
    }

    fn brick(&self) -> &Path {
        self.0.branch("brick").path()
    }

    fn say(&self, state: u8) {
        let text = format!(
            "[xlator.cluster.dht.v-dht.priv]\nsubvol_cnt=2\nsubvolumes[0]=protocol/client.v-client-0\n\
             subvolumes[1]=protocol/client.v-client-1\nsubvolume_status[0]=1\nsubvolume_status[1]={state}\n"
        );
        fs::write(self.brick().join(".meta/graphs/active/v-dht/private"), text).unwrap();
    }

    fn lost(&self) -> PathBuf {
        self.brick().with_file_name("lost")
    }

    /// Makes the brick with the film fail.
    fn lose(&self) {
        fs::rename(self.brick().join(FILM), self.lost()).unwrap();
        self.say(0);
    }

    fn find_again(&self) {
        fs::rename(self.lost(), self.brick().join(FILM)).unwrap();
        self.say(1);
    }
}

/// Removes everything but what the branch is created with.
fn clear(path: &Path) {
    for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.ends_with(".meta") || entry.ends_with("ballast") {
            continue;
        }
        if entry.is_dir() {
            fs::remove_dir_all(entry).unwrap();
        } else {
            fs::remove_file(entry).unwrap();
        }
    }
}

/// A file was moved to the volume, and both copies have its name, because the process was killed between the two steps.
/// A mount without the first branch shows the volume's copy; then the brick with that copy fails, and the first branch
/// is added.
#[test]
fn a_branch_that_is_added_keeps_the_only_copy_that_is_in_reach() {
    needs!(mounting());
    let volume = Volume::mount();
    let disks = lab::pool().tmpfs_branch("a", MiB(1)).tmpfs_branch("c", MiB(1)).unmounted();
    let [a, c] = ["a", "c"].map(|name| disks.branch(name).path());
    for disk in [a, c] {
        let ballast = File::create(disk.join("ballast")).unwrap();
        fallocate(ballast.as_fd(), FallocateFlags::empty(), 0, 800 << 10).unwrap();
    }
    let all = [a, volume.0.path(), c];
    let reset = || {
        all.iter().for_each(|path| clear(path));
        MOVE_WITH_ROOM.prepare(&all);
    };
    let over = |paths: &[&Path]| Engine::over(paths.iter().copied(), settings("ff"));
    let holders = || [a, volume.brick()].map(|path| path.join(FILM).exists());
    reset();
    drop(over(&all));
    reset();
    let (mut both, mut wrong) = (0, Vec::new());
    // Threads that check the volume make calls too, so the number of the move's last call varies.
    for nth in 1.. {
        reset();
        if kill::child(&MOVE_WITH_ROOM, &all, Some(nth)).is_some() {
            break;
        }
        if holders() != [true, true] {
            continue;
        }
        both += 1;
        let engine = over(&all[1..]);
        volume.lose();
        engine.union.add_branch(&BranchSpec::new(a.to_owned()), Position::Last).unwrap();
        drop(engine);
        if !a.join(FILM).exists() {
            wrong.push(format!("killed at {nth}: the only copy that is in reach is gone"));
        }
        volume.find_again();
        let shown = seen(&over(&all));
        let is_whole = matches!(shown.get(Path::new(FILM)), Some(Seen::File { text, .. }) if text == MOVED);
        if !is_whole || holders() != [false, true] {
            wrong.push(format!("killed at {nth}: on {:?}, whole: {is_whole}", holders()));
        }
    }
    assert!(both > 0, "never were there two of it");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
