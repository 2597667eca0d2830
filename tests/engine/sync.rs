//! Making sure that what was written is kept: files, directories on all branches, the whole pool.

use fsstack_pool::Ino;
use fsstack_sys::Call;
use fsstack_sys::Errno;
use fsstack_sys::count;

use crate::ground::Ground;

#[test]
fn files_directories_and_the_pool() {
    let pool = Ground::new(3);
    (0..3).for_each(|at| pool.put_dir(at, "d"));
    let file = pool.create("d/film").unwrap();
    let dir = pool.ino("d");
    for data_only in [false, true] {
        pool.union.fsync(file.handle, data_only).unwrap();
        let (done, made) = count::scope(|| pool.union.fsyncdir(dir, data_only));
        done.unwrap();
        assert_eq!(made.of(Call::Fsync), 3, "every copy of a directory");
    }
    let (done, made) = count::scope(|| pool.union.syncfs());
    done.unwrap();
    assert!(made.of(Call::Syncfs) >= 1);
    assert_eq!(pool.union.fsyncdir(file.ino, false).unwrap_err().errno(), Errno::NOTDIR);
    pool.union.fsyncdir(Ino::ROOT, false).unwrap();
}
