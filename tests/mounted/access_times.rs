//! Reads that must not change access times.

use fsstack_lab::{self as lab, MiB, Pool, needs};

use crate::script::{python, sh};

/// A file and a directory whose access times any read changes, and a script that shows them.
fn pool(options: &[&str]) -> Pool {
    let mut pool = lab::pool().xfs_branch("a", MiB(300)).unmounted();
    sh(pool.branch("a").path(), "mkdir d; echo x > d/film");
    pool.remount_with(options);
    pool
}

/// Makes both access times old, on the branch.
fn age(pool: &Pool) {
    sh(pool.branch("a").path(), "touch -a -d 2001-02-03 d/film d");
}

/// Returns which of both were read, by their access times.
fn seen(pool: &Pool) -> String {
    sh(pool.branch("a").path(), "find d -newerat 2020-01-01 | sort | tr '\\n' ' '")
}

const READ: &str = "
import os
def read(fd): assert os.pread(fd, 10, 0) == b'x\\n'
def without_atime(how = os.O_RDONLY): return os.open('d/film', how | os.O_NOATIME)
";

#[test]
fn a_handle_that_asks_for_it_leaves_no_trace() {
    needs!(mounting(), loops(), program("python3"));
    let pool = pool(&["write-path=stacked"]);
    let steps: [(&str, &str); 7] = [
        ("read(without_atime())", ""),
        ("read(without_atime(os.O_RDWR))", ""),
        ("read(os.open('d/film', os.O_RDONLY))", "d/film "),
        // Together with other handles, opened before or after it, and with writes in between.
        ("plain = os.open('d/film', os.O_RDONLY); read(without_atime())", ""),
        (
            "noatime = without_atime(); plain = os.open('d/film', os.O_RDWR); os.pwrite(plain, b'x', 0); read(noatime)",
            "",
        ),
        (
            "noatime = without_atime(); plain = os.open('d/film', os.O_RDONLY); read(noatime); read(plain)",
            "d/film ",
        ),
        ("os.listdir(os.open('d', os.O_RDONLY | os.O_DIRECTORY | os.O_NOATIME))", ""),
    ];
    for (step, answer) in steps {
        age(&pool);
        python(pool.path(), &format!("{READ}{step}"));
        assert_eq!(seen(&pool), answer, "{step}");
    }
    age(&pool);
    assert_eq!(pool.list("d").len(), 1);
    assert_eq!(seen(&pool), "d ");
}

#[test]
fn a_pool_that_is_mounted_so_leaves_no_trace() {
    needs!(mounting(), loops(), program("python3"));
    let work = "head -c 1 d/film; ls d; exec 3<> d/film; head -c 1 <&3; cat d/film";
    let ways: [(&[&str], &str); 4] = [
        (&["write-path=stacked", "noatime"], ""),
        (&["write-path=stacked", "nodiratime"], "d/film "),
        (&["write-path=stacked", "page-cache=on", "noatime"], ""),
        (&["write-path=stacked"], "d d/film "),
    ];
    for (options, answer) in ways {
        let pool = pool(options);
        age(&pool);
        sh(pool.path(), work);
        assert_eq!(seen(&pool), answer, "{options:?}");
    }
}
