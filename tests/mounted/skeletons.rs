//! Parent directories made on a branch are like the originals.

use std::fs;

use fsstack_lab::{self as lab, MiB, Pool, needs};

use crate::script::{STRANGER, sh, sh_as_stranger};

/// A deep directory on `a` only, then a file that only `b` may take.
fn skeleton_of(dress: &str) -> Pool {
    let mut pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).unmounted();
    sh(pool.branch("a").path(), dress);
    pool.remount_with(&["create=mfs"]);
    pool.branch("a").fill_until_free(MiB(20));
    pool
}

const LOOK: &str = "stat -c '%n %A %u %g %y' one one/two; getfattr -d -m '^(user|trusted.note)' one one/two
                    getfacl -n -p one one/two; lsattr -d one/two | cut -d' ' -f1";

#[test]
fn owner_mode_times_xattrs_acls_and_flags_are_copied() {
    needs!(mounting(), loops(), program("setfacl"), program("setfattr"));
    let pool = skeleton_of(
        "mkdir -p one/two; chown 12:34 one; chown 56:78 one/two; chmod 2750 one/two; chmod 1707 one
         setfattr -n user.note -v kept one/two; setfattr -n trusted.note -v kept one
         setfacl -m u:1234:rwx,g:4321:x one/two; setfacl -d -m u:1234:r one/two; chattr +d one/two
         touch -d '2001-02-03 04:05:06.123456789' one/two; touch -d '2002-02-03 04:05:06.5' one",
    );
    let before = sh(pool.branch("a").path(), LOOK);
    pool.mkdir("one/two/three");
    assert_eq!(pool.holders("one/two/three"), ["b"]);
    fs::remove_dir(pool.at("one/two/three")).unwrap();
    // Adding and removing changed the copy's time only; the pool shows the newest.
    sh(pool.branch("b").path(), "touch -d '2001-02-03 04:05:06.123456789' one/two");
    assert_eq!(sh(pool.branch("b").path(), LOOK), before);
    assert_eq!(sh(pool.branch("a").path(), LOOK), before);
}

#[test]
fn parents_keep_their_times_when_a_branch_is_given_a_skeleton() {
    needs!(mounting(), loops());
    let pool = skeleton_of("mkdir -p one/two; touch -d '2001-02-03 04:05:06.5' one/two one .");
    let look = "stat -c '%n %y' . one";
    let before = sh(pool.path(), look);
    pool.write("one/two/file", b"x");
    assert_eq!(pool.holders("one/two/file"), ["b"]);
    assert_eq!(sh(pool.path(), look), before);
    assert_eq!(
        sh(pool.branch("b").path(), "stat -c '%y' one"),
        sh(pool.branch("a").path(), "stat -c '%y' one")
    );
}

#[test]
fn something_else_in_place_of_the_hidden_folder_keeps_no_directory_away() {
    needs!(mounting(), loops());
    let pool = skeleton_of("mkdir -p one two; chown 12:34 one two; chmod 750 one two");
    for (dir, obstacle) in [("one", "ln -s / .fsstack.moving"), ("two", "echo > .fsstack.moving")] {
        sh(pool.branch("b").path(), obstacle);
        pool.write(format!("{dir}/file"), b"x");
        assert_eq!(pool.holders(format!("{dir}/file")), ["b"], "{obstacle}");
        let owner = sh(pool.branch("b").path(), &format!("stat -c '%u %g %a' {dir}; rm .fsstack.moving"));
        assert_eq!(owner, "12 34 750");
    }
}

#[test]
fn a_file_in_a_skeleton_inherits_the_default_acl() {
    needs!(mounting(), loops(), program("setfacl"));
    let pool = skeleton_of("mkdir -p one/two; setfacl -d -m u:1234:rw one/two");
    sh(pool.path(), "umask 077; echo > one/two/file; mkdir one/two/dir");
    assert_eq!(pool.holders("one/two/file"), ["b"]);
    let shown = sh(pool.path(), "getfacl -n -c one/two/file; getfacl -n -c one/two/dir");
    assert!(shown.contains("user:1234:rw-") && shown.contains("default:user:1234:rw-"), "{shown}");
}

#[test]
fn a_skeleton_inherits_no_access_list() {
    needs!(mounting(), loops(), program("setfacl"));
    let pool = skeleton_of("mkdir -p one/two; chmod 750 one/two");
    sh(pool.path(), "setfacl -d -m u:1234:rwx . one");
    pool.write("one/two/file", b"x");
    assert_eq!(pool.holders("one/two/file"), ["b"]);
    let look = "getfacl -n -p one one/two";
    assert_eq!(sh(pool.branch("b").path(), look), sh(pool.branch("a").path(), look));
}

#[test]
fn a_renamed_file_takes_its_new_parents_along() {
    needs!(mounting(), loops());
    let pool = skeleton_of("mkdir -p here deep/er; chown 5:6 deep; chmod 711 deep/er; echo x > here/file");
    pool.write("on b", b"x");
    assert_eq!(pool.holders("on b"), ["b"]);
    fs::rename(pool.at("on b"), pool.at("deep/er/moved")).unwrap();
    assert_eq!(pool.holders("deep/er/moved"), ["b"]);
    assert_eq!(sh(pool.branch("b").path(), "stat -c '%u %g %a' deep deep/er"), "5 6 755\n0 0 711");
}

/// mergerfs has no non-replacing rename, and checks permissions by the caller.
#[test]
fn a_server_is_given_the_directory_of_a_user_who_may_not_write_above() {
    needs!(mounting(), program("mergerfs"), program("setpriv"));
    let mut pool = lab::pool().tmp_branch("a").mode("NC").served_branch("b").unmounted();
    sh(
        pool.branch("a").path(),
        &format!(
            "mkdir -p home/user/closed; chmod 755 home; chmod 2751 home/user; chmod 500 home/user/closed; chown -R {STRANGER}:7 home/user; chmod 2751 home/user"
        ),
    );
    pool.remount();
    sh_as_stranger(pool.path(), "mkdir home/user/new; echo text > home/user/file");
    assert_eq!(pool.holders("home/user/new"), ["b"]);
    // Root can write into it without owning it.
    pool.write("home/user/closed/file", b"text");
    let look = "stat -c '%n %u %g %a' home home/user home/user/closed";
    assert_eq!(sh(pool.branch("b").path(), look), sh(pool.branch("a").path(), look));
}
