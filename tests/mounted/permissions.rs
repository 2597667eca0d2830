//! Permissions: modes, ownership of new objects, ACLs.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use fsstack_lab::{self as lab, MiB, needs};

use crate::script::{STRANGER, passthrough, refused_to_stranger, sh, sh_as_stranger};

#[test]
fn new_objects_of_a_user_belong_to_that_user() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    fs::set_permissions(pool.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    sh_as_stranger(
        pool.path(),
        "umask 027; echo > file; mkdir dir; ln -s x link; mkfifo fifo; echo > dir/file",
    );
    for (name, mode) in
        [("file", 0o640), ("dir", 0o750), ("link", 0o777), ("fifo", 0o640), ("dir/file", 0o640)]
    {
        let made = fs::symlink_metadata(pool.at(name)).unwrap();
        assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (STRANGER, STRANGER, mode), "{name}");
    }
}

#[test]
fn a_supplementary_group_and_a_set_gid_directory_count() {
    needs!(mounting(), program("setpriv"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    sh(pool.path(), "mkdir team; chgrp 7777 team; chmod 2770 team");
    assert!(refused_to_stranger(pool.path(), "echo > team/file").contains("denied"));
    let member = format!("setpriv --reuid {STRANGER} --regid {STRANGER} --groups 7777");
    sh(
        pool.path(),
        &format!("{member} sh -c 'umask 022; echo > team/file; mkdir team/dir; echo > team/dir/x'"),
    );
    assert_eq!(
        sh(pool.path(), "stat -c '%u %g %a' team/file team/dir team/dir/x"),
        format!("{STRANGER} 7777 644\n{STRANGER} 7777 2755\n{STRANGER} 7777 644")
    );
    // A set-gid file keeps the bit only if its creator is in the group.
    sh(
        pool.path(),
        &format!("{member} sh -c 'touch team/s; chmod 2755 team/s'; stat -c %a team/s | grep -qx 2755"),
    );
}

#[test]
fn each_of_forty_supplementary_groups_counts() {
    needs!(mounting(), program("setpriv"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let groups: Vec<String> = (7000..7040).map(|group| group.to_string()).collect();
    // A set-gid directory, a plain one that only the group may write, and a file that only the group may read.
    let made =
        "mkdir g$g p$g; echo $g > f$g; chgrp $g g$g p$g f$g; chmod 2770 g$g; chmod 770 p$g; chmod 040 f$g";
    sh(pool.path(), &format!("for g in $(seq 7000 7040); do {made}; done"));
    let member = format!("setpriv --reuid {STRANGER} --regid {STRANGER} --groups {}", groups.join(","));
    let work = "for g in $(seq 7000 7039); do
                  grep -qx $g f$g; echo > g$g/file; mkdir g$g/dir; ln -s x g$g/link; mkfifo g$g/fifo; echo > p$g/file
                  touch g$g/set; chmod 2755 g$g/set; [ $(stat -c %a g$g/set) = 2755 ]
                done; ! cat f7040 2> /dev/null; ! touch g7040/file 2> /dev/null";
    sh(pool.path(), &format!("{member} bash -euc '{work}'"));
    for group in 7000..7040 {
        let owner = |name: &str| {
            let made = fs::symlink_metadata(pool.at(name)).unwrap();
            (made.uid(), made.gid(), made.mode() & 0o2000)
        };
        for name in ["file", "link", "fifo"] {
            assert_eq!(owner(&format!("g{group}/{name}")), (STRANGER, group, 0), "{name}");
        }
        assert_eq!(owner(&format!("g{group}/dir")), (STRANGER, group, 0o2000));
        assert_eq!(owner(&format!("p{group}/file")), (STRANGER, STRANGER, 0));
    }
}

#[test]
fn modes_are_enforced_for_all_users_but_root() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    sh(
        pool.path(),
        "mkdir -m 700 shut; echo > shut/in; echo secret > private; chmod 600 private; echo open > public; mkdir -m 1777 sticky; echo > sticky/root",
    );
    assert!(refused_to_stranger(pool.path(), "cat private").contains("denied"));
    assert!(refused_to_stranger(pool.path(), "ls shut").contains("denied"));
    assert!(refused_to_stranger(pool.path(), "cat shut/in").contains("denied"));
    assert!(refused_to_stranger(pool.path(), "echo x >> public").contains("denied"));
    assert!(refused_to_stranger(pool.path(), "rm -f sticky/root").contains("not permitted"));
    assert!(refused_to_stranger(pool.path(), "chmod 777 public").contains("not permitted"));
    assert!(refused_to_stranger(pool.path(), "mv public other").contains("denied"));
    assert_eq!(sh_as_stranger(pool.path(), "cat public; echo mine > sticky/mine; rm sticky/mine"), "open");
}

#[test]
fn an_acl_lets_in_and_keeps_out() {
    needs!(mounting(), program("setfacl"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    sh(pool.path(), "echo secret > file; chmod 600 file; mkdir -m 700 dir; echo in > dir/file");
    assert!(refused_to_stranger(pool.path(), "cat file").contains("denied"));
    sh(pool.path(), &format!("setfacl -m u:{STRANGER}:rw file; setfacl -m u:{STRANGER}:rx dir"));
    assert_eq!(sh_as_stranger(pool.path(), "cat file; echo more >> file; cat dir/file"), "secret\nin");
    assert!(refused_to_stranger(pool.path(), "echo > dir/new").contains("denied"));
    // The mask is the group's bits: chmod removes the entry's rights.
    sh(pool.path(), "chmod g= file");
    assert!(refused_to_stranger(pool.path(), "cat file").contains("denied"));
    let shown = sh(pool.path(), "getfacl -n -c file");
    assert!(shown.contains(&format!("user:{STRANGER}:rw-")) && shown.contains("mask::---"), "{shown}");
    sh(pool.path(), "setfacl -b file dir");
    assert!(refused_to_stranger(pool.path(), "cat dir/file").contains("denied"));
}

#[test]
fn a_default_acl_is_inherited_on_every_branch() {
    needs!(mounting(), program("setfacl"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let made = "mkdir dir; setfacl -d -m u:1234:rwx,o::- dir; umask 077
                for i in $(seq 12); do echo > dir/$i; mkdir dir/d$i; done; getfacl -n -c dir/[0-9]* | sort | uniq -c | sort -n";
    let shown = sh(pool.path(), made);
    assert!(shown.contains("12 user:1234:rwx"), "{shown}");
    assert!(shown.contains("12 mask::rw-"), "{shown}");
    assert_eq!(sh(pool.path(), "getfacl -n -c dir/d*/ | grep -c default:user:1234:rwx"), "12");
}

#[test]
fn a_default_acl_has_no_part_in_set_gid() {
    needs!(mounting(), program("setfacl"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    // The owner is not in the directory's group.
    sh(pool.path(), "chmod 755 . ..; mkdir dir; chown 65534:4242 dir; chmod 2775 dir");
    sh_as_stranger(pool.path(), "setfacl -d -m u:1234:rwx dir");
    assert_eq!(sh(pool.path(), "stat -c %a dir"), "2775");
    // An ACL of the directory itself has, as for any file system.
    sh_as_stranger(pool.path(), "setfacl -m u:1234:rwx dir");
    assert_eq!(sh(pool.path(), "stat -c %a dir"), "775");
}

#[test]
fn no_right_stays_by_another_name_of_the_file() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    sh(pool.path(), "echo secret > one; ln one two; chmod 644 one; cat one two > /dev/null");
    assert_eq!(sh_as_stranger(pool.path(), "cat two"), "secret");
    sh(pool.path(), "chmod 600 one");
    assert!(refused_to_stranger(pool.path(), "cat two").contains("denied"));
    let (one, two) = (fs::metadata(pool.at("one")).unwrap(), fs::metadata(pool.at("two")).unwrap());
    assert_eq!((one.ino(), one.mode(), one.nlink()), (two.ino(), two.mode(), 2));
}

#[test]
fn the_owner_may_change_only_permitted_attributes() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").mount();
    pool.write("file", b"x");
    chown(pool.at("file"), Some(STRANGER), Some(STRANGER)).unwrap();
    assert!(refused_to_stranger(pool.path(), "chown 0 file").contains("not permitted"));
    assert!(refused_to_stranger(pool.path(), "chgrp 7777 file").contains("not permitted"));
    sh_as_stranger(pool.path(), "chmod 600 file; touch -d @1 file");
    assert_eq!(fs::metadata(pool.at("file")).unwrap().mtime(), 1);
}

/// A server checks permissions itself, by all groups; a local disk checks nothing.
#[test]
fn a_server_sees_all_groups_of_the_creator() {
    needs!(mounting(), program("mergerfs"), program("setpriv"), program("strace"));
    for (pool, times) in [(lab::pool().served_branch("a"), "2"), (lab::pool().tmp_branch("a"), "0")] {
        let pool = pool.mount();
        let traces = tempfile::tempdir().unwrap();
        let (seen, answer) = (traces.path().join("seen"), traces.path().join("answer"));
        let script = format!(
            "mkdir -m 1777 open
             strace -f -e trace=setgroups -o {seen} -p {pid} 2> {answer} & tracer=$!
             until grep -q attached {answer}; do sleep 0.02; done
             setpriv --reuid {STRANGER} --regid {STRANGER} --groups 7001,7002,7003 sh -c 'echo > open/file; mkdir open/dir'
             kill -INT $tracer; wait $tracer || true
             stat -c '%u %g' open/file open/dir; grep -c 'setgroups(3, .7001, 7002, 7003.)' {seen} || true",
            seen = seen.display(),
            answer = answer.display(),
            pid = pool.daemon().pid
        );
        let owner = format!("{STRANGER} {STRANGER}");
        assert_eq!(sh(pool.path(), &script), format!("{owner}\n{owner}\n{times}"));
    }
}

/// ext4 keeps 5 percent of a disk for root, by the user that the writing thread acts as.
#[test]
fn the_reserve_of_ext4_is_for_root() {
    needs!(mounting(), loops());
    let way = |path: &'static str| path != "passthrough" || passthrough().is_ok();
    for path in ["stacked", "passthrough"].into_iter().filter(|path| way(path)) {
        let builder = lab::pool().ext4_branch("a", MiB(64)).option("minfreespace=0");
        let pool = builder.option(&format!("write-path={path}")).mount();
        // Made by root, so no thread acts as the user yet.
        sh(pool.path(), &format!("chmod 755 .; touch film own; chown {STRANGER} film"));
        let free = || {
            let said = sh(pool.branch("a").path(), "sync -f .; stat -f -c '%f %S' .");
            said.split(' ').map(|word| word.parse::<u64>().unwrap()).product::<u64>()
        };
        let full = refused_to_stranger(pool.path(), "dd if=/dev/zero of=film bs=64k conv=notrunc");
        assert!(full.contains("No space left"), "{full}");
        let reserve = free();
        assert!(MiB(2).bytes() < reserve, "{reserve} bytes are left, {path}");
        sh(pool.path(), "dd if=/dev/zero of=own bs=64k count=16 status=none");
        assert!(free() < reserve, "{path}");
    }
}
