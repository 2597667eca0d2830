//! Names created out of band that the kernel still caches as missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fsstack_lab::{self as lab, needs};

use crate::script::{refused_to_stranger, sh, sh_as_stranger};

/// The kernel requests the creation of a name that it believes missing, without checks: the file is new to it.
#[test]
fn a_file_that_came_by_another_way_is_not_opened_unchecked() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("negative-timeout=600").mount();
    fs::set_permissions(pool.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let behind = pool.branch("a").path();
    for (name, opens) in [("read", "cat <> read"), ("truncate", "echo > truncate"), ("add", "echo >> add")] {
        assert!(!pool.at(name).exists());
        sh(behind, &format!("umask 077; echo secret > {name}"));
        assert!(refused_to_stranger(pool.path(), opens).contains("denied"), "{name}");
        assert_eq!(fs::read(behind.join(name)).unwrap(), b"secret\n");
    }
    // Files that may be opened are opened, under the new name, with their own type.
    for name in ["public", "dir", "fifo", "link", "excl"] {
        assert!(!pool.at(name).exists());
    }
    sh(
        behind,
        "umask 0; echo 1 > public; echo 1 > target; ln -s target link; mkdir dir; mkfifo fifo; echo > excl",
    );
    sh_as_stranger(pool.path(), "echo 22 >> public; echo 22 >> link");
    assert_eq!(sh(behind, "cat public target"), "1\n22\n1\n22");
    sh_as_stranger(pool.path(), "exec 9<> fifo; echo hello >&9; read line <&9; [ $line = hello ]");
    assert!(refused_to_stranger(pool.path(), "echo > dir").contains("Is a directory"));
    assert!(refused_to_stranger(pool.path(), "set -C; echo > excl").contains("cannot overwrite"));
}

/// Several threads create a name without `O_EXCL`: all get one file.
#[test]
fn concurrent_creators_of_a_name_get_one_file() {
    needs!(mounting());
    let pool = lab::pool()
        .tmp_branch("a")
        .tmp_branch("b")
        .option("create=rand")
        .option("negative-timeout=600")
        .mount();
    let behind = pool.branch("a").path();
    for round in 0..100 {
        let name = format!("film{round}");
        assert!(!pool.at(&name).exists());
        let (at, behind) = (&pool.at(&name), &behind.join(&name));
        std::thread::scope(|scope| {
            let open = |path: &std::path::Path| {
                let opened = fs::OpenOptions::new().create(true).append(true).open(path);
                std::io::Write::write_all(&mut opened.unwrap(), b"x").unwrap();
            };
            for _ in 0..6 {
                scope.spawn(move || open(at));
            }
            // And one out of band, every other time.
            if round % 2 == 0 {
                scope.spawn(move || open(behind));
            }
        });
        // That one may be on another branch.
        assert!(round % 2 == 0 || pool.read(&name).len() == 6, "{name}");
    }
}
