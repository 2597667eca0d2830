//! A removed object that a program has by O_PATH, so that the daemon does not have it open, is as on the branch itself.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use fsstack_lab::{self as lab, MiB, needs};

use crate::command::{at, branch, output_of};
use crate::script::python;

#[test]
fn removed_and_replaced_objects_stay_for_programs_that_hold_them_by_o_path() {
    needs!(mounting(), loops(), program("python3"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("minfreespace=1M").option("passthrough-headroom=1M").mount();
    let work = "
import os
def beside(n):
    # XFS gives a free number to the next object.
    for k in range(4):
        os.mkdir(f'dir{n}.{k}'); open(f'file{n}.{k}', 'x').close()
def check(n, fd, links):
    beside(n)
    assert os.fstat(fd).st_nlink <= links, os.fstat(fd)
    for k in range(4):
        os.stat(f'dir{n}.{k}'); os.stat(f'file{n}.{k}')
    os.close(fd)
for n in range(50):
    os.mkdir('from'); os.mkdir('to')
    fd = os.open('to', os.O_PATH); os.rename('from', 'to'); check(n, fd, 2); os.rmdir('to')
for n in range(50, 100):
    with open('film', 'wb') as film: film.write(bytes(200_000))
    fd = os.open('film', os.O_PATH); os.unlink('film'); check(n, fd, 0)
for n in range(100, 150):
    with open('film', 'wb') as film: film.write(bytes(200_000))
    open('new', 'x').close()
    fd = os.open('film', os.O_PATH); os.rename('new', 'film'); check(n, fd, 0); os.unlink('film')
";
    python(pool.path(), work);
}

/// The object of a removed name is held where the file was; another name has moved.
#[test]
fn nothing_is_held_on_a_branch_that_a_file_has_left() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff");
    let pool = pool.option("minfreespace=1M").option("passthrough-headroom=1M").mount();
    pool.write("film", &[7; 200_000]);
    fs::hard_link(pool.at("film"), pool.at("name")).unwrap();
    fs::remove_file(pool.at("film")).unwrap();
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    assert_eq!(pool.holders("name"), ["b"]);
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    let left = pool.branch("a").path();
    let open = fs::read_dir(format!("/proc/{}/fd", pool.daemon().pid)).unwrap();
    for fd in open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()) {
        assert!(!fd.starts_with(left), "{} is open", fd.display());
    }
    let file = File::open(pool.at("name")).unwrap();
    fs::remove_file(pool.at("name")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}
