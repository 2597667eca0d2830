//! Inode flags (`chattr`) on any branch, with other openers.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;

use fsstack_lab::{self as lab, MiB, Pool, needs, until};

use crate::command::{at, run};
use crate::script::{python, refused, sh, ways};

#[test]
fn inode_flags_are_seen_set_and_felt() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    sh(pool.path(), "echo x > file; mkdir dir; chattr +i file; chattr +d dir");
    let flags = sh(pool.path(), "lsattr -d file dir | cut -d' ' -f1");
    assert!(
        flags.lines().next().unwrap().contains('i') && flags.lines().nth(1).unwrap().contains('d'),
        "{flags}"
    );
    assert_eq!(flags, sh(pool.branch("a").path(), "lsattr -d file dir | cut -d' ' -f1"));
    let felt = refused(pool.path(), "echo y >> file");
    let stays = refused(pool.path(), "rm -f file");
    sh(pool.path(), "chattr -i file");
    assert!(felt.contains("not permitted") && stays.contains("not permitted"), "{felt}{stays}");
    sh(pool.path(), "chattr +a file; echo y >> file; ! (echo z > file) 2>/dev/null; chattr -a file; rm file");
}

/// Two XFS branches; new files are placed at random.
fn spread() -> Pool {
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    pool.option("create=rand").option("entry-timeout=0").mount()
}

#[test]
fn a_directory_that_may_not_be_added_to_gets_no_copy_that_may() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = spread();
    sh(pool.path(), "mkdir fixed log; chattr +i fixed; chattr +a log");
    for n in 0..12 {
        for what in ["touch", "mkdir", "ln -s x", "mknod -m 600 --"] {
            let kind = if what.starts_with("mknod") { "p" } else { "" };
            let said = refused(pool.path(), &format!("{what} fixed/new{n} {kind}"));
            assert!(said.contains("not permitted"), "{said}");
        }
        // It may be appended to, but not truncated.
        sh(pool.path(), &format!("echo {n} > log/{n}"));
        let said = refused(pool.path(), &format!("rm -f log/{n}"));
        assert!(said.contains("not permitted"), "{said}");
    }
    assert_eq!(sh(pool.path(), "ls fixed; ls log | wc -l"), "12");
    sh(pool.path(), "chattr -i fixed; chattr -a log");
}

#[test]
fn below_a_directory_that_may_not_be_added_to_files_go_where_it_can() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = spread();
    sh(pool.path(), "mkdir -p fixed/open");
    for branch in ["a", "b"] {
        sh(pool.branch(branch).path(), "mkdir -p fixed");
    }
    sh(pool.path(), "sleep 1; ls fixed; chattr +i fixed");
    assert!(refused(pool.branch("b").path(), "touch fixed/x").contains("not permitted"));
    // On either branch, one of which lacks the inner directory and cannot get it.
    for n in 0..12 {
        sh(pool.path(), &format!("echo {n} > fixed/open/{n}; mkdir fixed/open/dir{n}"));
    }
    assert_eq!(sh(pool.path(), "ls fixed/open | wc -l"), "24");
    sh(pool.path(), "chattr -i fixed");
}

#[test]
fn later_opens_honour_the_flag_though_others_have_the_file_open() {
    needs!(mounting(), loops(), program("chattr"), program("truncate"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    for way in ["exec 8<> file", "exec 8>> file"] {
        sh(pool.path(), "rm -f file; echo some > file");
        let felt = sh(
            pool.path(),
            &format!(
                "{way}; chattr +i file
                 for late in 'exec 9<> file' 'exec 9>> file' 'truncate -s 0 file' ': > file'; do
                     bash -c \"$late\" 2> /dev/null && echo \"immutable: $late\"; done
                 chattr -i file; chattr +a file
                 for late in 'exec 9<> file' 'truncate -s 0 file' ': > file'; do
                     bash -c \"$late\" 2> /dev/null && echo \"append-only: $late\"; done
                 echo more >> file; chattr -a file; cat file"
            ),
        );
        assert_eq!(felt, "some\nmore", "{way}");
    }
}

#[test]
fn opens_after_the_flag_is_gone_do_not_honour_it() {
    needs!(mounting(), loops(), program("chattr"));
    for way in ["write-path=stacked", "write-path=auto"] {
        let pool = lab::pool().xfs_branch("a", MiB(300)).option(way).mount();
        let branch = pool.branch("a").path();
        let script = format!(
            "echo some > file; chattr +a file; exec 8>> file; chattr -a file
             printf X 1<> file; cat file
             chattr +a file; chattr -a {}/file; printf Y 1<> file; truncate -s 4 file; cat file",
            branch.display()
        );
        assert_eq!(sh(pool.path(), &script), "Xome\nYome", "{way}");
    }
}

#[test]
fn the_time_of_change_shows_at_once() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).option("attr-timeout=60").mount();
    for name in ["file", "dir"] {
        let output = sh(
            pool.path(),
            &format!(
                "touch file; mkdir -p dir; stat -c %z {name}; sleep 0.05; chattr +d {name}; stat -c %z {name}"
            ),
        );
        let (before, after) = output.split_once('\n').unwrap();
        assert_ne!(before, after, "{name}");
    }
}

#[test]
fn opens_after_an_out_of_band_flag_is_gone_do_not_honour_it() {
    needs!(mounting(), loops(), program("chattr"));
    for off in ["chattr -a file", "chattr -a BRANCH/file"] {
        let pool = lab::pool().xfs_branch("a", MiB(300)).option("write-path=stacked").mount();
        let script = format!(
            "echo some > file; exec 7< file; chattr +a BRANCH/file; exec 8>> file; echo more >&8
             {off}; printf X 1<> file; echo end >&8; cat file"
        );
        let script = script.replace("BRANCH", &pool.branch("a").path().display().to_string());
        assert_eq!(sh(pool.path(), &script), "Xome\nmore\nend", "{off}");
    }
}

/// An append-only file is mapped and stored into, and written at its beginning through a handle that dropped O_APPEND.
#[test]
fn append_only_files_are_not_overwritten() {
    needs!(mounting(), loops(), program("chattr"), program("python3"));
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).unmounted();
        pool.remount_with(way);
        // Set on the branch: the kernel notifies the daemon of a close with a delay, and an open before that uses the
        // first open's path, on which the kernel maps the branch's file.
        sh(pool.branch("a").path(), "printf '0123456789%.0s' $(seq 1000) > file; chattr +a file");
        let work = "
import fcntl, mmap, os, subprocess
reader = os.open('file', os.O_RDONLY)
fd = os.open('file', os.O_RDWR | os.O_APPEND)
try:
    shared = mmap.mmap(fd, 4096)
    shared[:5] = b'XXXXX'
    shared.flush()
except OSError:
    pass
try:
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b'XXXXX', 0)
except OSError:
    pass
fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
os.pwrite(fd, b'added', 0)
seen = os.pread(reader, 20000, 0)
os.close(fd); os.close(reader); shared.close()
subprocess.check_call(['chattr', '-a', 'file'])
print(seen == open('file', 'rb').read() == b'0123456789' * 1000 + b'added')
";
        assert_eq!(python(pool.path(), work), "True", "{way:?}");
        let stored = std::fs::read(pool.branch("a").path().join("file")).unwrap();
        assert_eq!((stored.len(), &stored[..5], &stored[10_000..]), (10_005, &b"01234"[..], &b"added"[..]));
    }
}

#[test]
fn an_appending_handle_goes_on_when_the_branch_is_mounted_again() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).option("write-path=stacked").option("attr-timeout=0");
    let mut pool = pool.mount();
    sh(pool.path(), "echo some > log; touch other; chattr +a log; echo kept > fixed");
    let open = |name: &str| OpenOptions::new().append(true).open(pool.at(name)).unwrap();
    let (mut log, fixed) = (open("log"), File::open(pool.at("fixed")).unwrap());
    let mut writer = OpenOptions::new().write(true).open(pool.at("fixed")).unwrap();
    sh(pool.path(), "chattr +i fixed");
    pool.branch_mut("a").unmount_lazily();
    until("the branch is down", || fs::read(pool.at("other")).is_err());
    pool.branch_mut("a").remount();
    until("the branch comes back", || fs::read(pool.at("other")).is_ok());
    log.write_all(b"more\n").unwrap();
    assert_eq!(fs::metadata(pool.at("log")).unwrap().len(), 10);
    assert_eq!(pool.read("log"), b"some\nmore\n");
    // It cannot be opened for writing any more; readers are not affected.
    let mut text = [0; 5];
    fixed.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"kept\n");
    assert_eq!(writer.write_all(b"x").unwrap_err().kind(), ErrorKind::PermissionDenied);
    sh(pool.path(), "chattr -a log; chattr -i fixed");
    writer.write_all(b"x").unwrap();
    assert_eq!(pool.read("fixed"), b"xept\n");
}

/// The flags of each copy of the directory `d`, as printed by `lsattr`, in the order of these branches.
fn flags_of_copies(pool: &Pool, branches: [&str; 2]) -> [String; 2] {
    branches.map(|branch| sh(pool.branch(branch).path(), "lsattr -d d | cut -d' ' -f1 | tr -d -"))
}

#[test]
fn a_directorys_flags_change_on_copies_on_other_file_systems() {
    needs!(mounting(), loops(), program("chattr"));
    for order in [["e", "x"], ["x", "e"]] {
        let mut pool = lab::pool();
        for name in order {
            pool = if name == "e" { pool.ext4_branch("e", MiB(64)) } else { pool.xfs_branch("x", MiB(300)) };
        }
        let mut pool = pool.unmounted();
        for name in order {
            sh(pool.branch(name).path(), "mkdir d");
        }
        sh(pool.branch("e").path(), "chattr +A d");
        pool.remount();
        sh(pool.path(), "chattr +d d");
        // Its own flags stay: on ext4 the type of block mapping.
        assert_eq!(flags_of_copies(&pool, ["e", "x"]), ["dAe", "d"], "{order:?}");
        sh(pool.path(), "chattr -d d; chattr +S d");
        assert_eq!(flags_of_copies(&pool, ["e", "x"]), ["SAe", "S"], "{order:?}");
        if order[0] == "x" {
            // This ext4 has no project ids.
            sh(pool.path(), "chattr -p 7 d");
            assert!(sh(pool.branch("x").path(), "lsattr -pd d").trim_start().starts_with("7 "));
            assert_eq!(flags_of_copies(&pool, ["e", "x"]), ["SAe", "S"]);
        }
        sh(pool.path(), "chattr +i d");
        assert!(flags_of_copies(&pool, ["e", "x"]).iter().all(|flags| flags.contains('i')), "{order:?}");
        sh(pool.path(), "chattr -i d");
    }
}

/// Flags that the shown copy accepts and a hidden copy's file system lacks are left out there; a flag that the shown
/// copy refuses changes none.
#[test]
fn a_hidden_copy_leaves_out_flags_that_it_cannot_have() {
    needs!(mounting(), loops(), program("chattr"));
    let mut pool = lab::pool().ext4_branch("e", MiB(64)).xfs_branch("x", MiB(300)).unmounted();
    for name in ["e", "x"] {
        sh(pool.branch(name).path(), "mkdir d");
    }
    pool.remount();
    sh(pool.path(), "chattr +sd d");
    assert_eq!(flags_of_copies(&pool, ["e", "x"]), ["sde", "d"]);
    refused(pool.path(), "chattr +Cn d");
    assert_eq!(flags_of_copies(&pool, ["e", "x"]), ["sde", "d"]);
}

/// ext4 restricts that to CAP_SYS_RESOURCE, which the daemon drops.
#[test]
fn users_cannot_set_the_journal_flag_through_the_daemon() {
    needs!(mounting(), loops(), program("chattr"), program("setpriv"));
    let pool = lab::pool().ext4_branch("e", MiB(64)).option("allow_other").mount();
    sh(pool.path(), "chmod 755 .; touch file; mkdir d; chown 1234 file d");
    for name in ["file", "d"] {
        let said = refused(pool.path(), &format!("setpriv --reuid 1234 --clear-groups chattr +j {name}"));
        assert!(said.contains("not permitted"), "{said}");
    }
}

#[test]
fn opens_of_an_append_only_file_append_though_others_have_it_open() {
    needs!(mounting(), loops(), program("chattr"), program("python3"));
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).unmounted();
        pool.remount_with(way);
        let work = "
import fcntl, os, subprocess
open('file', 'wb').write(b'0123456789')
early = os.open('file', os.O_RDWR)
subprocess.check_call(['chattr', '+a', 'file'])
late = os.open('file', os.O_RDWR | os.O_APPEND)
try:
    fcntl.fcntl(late, fcntl.F_SETFL, 0)
    os.pwrite(late, b'X', 0)
except OSError:
    pass
fcntl.fcntl(late, fcntl.F_SETFL, os.O_APPEND)
os.pwrite(late, b'late', 0)
os.pwrite(early, b'E', 0)
os.close(late); os.close(early)
subprocess.check_call(['chattr', '-a', 'file'])
print(open('file').read())
";
        assert_eq!(python(pool.path(), work), "E123456789late", "{way:?}");
    }
}

#[test]
fn a_copy_of_a_directory_with_other_flags_is_found_and_mended() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = spread();
    sh(pool.path(), "mkdir written log; chattr +S written; chattr +a log");
    for branch in ["a", "b"] {
        sh(pool.branch(branch).path(), "mkdir -pm 755 written log && chattr -a log");
    }
    sh(pool.branch("a").path(), "chattr +S written; chattr +a log");
    sh(pool.branch("b").path(), "chattr -S written; chattr +i log; chmod 700 written");
    let (at, flags) = (at(&pool), "lsattr -d written log | cut -d' ' -f1; stat -c %a written log");
    let found = run(&["check", &at]);
    assert_eq!(found.code, 1, "{}{}", found.stdout, found.stderr);
    for text in ["mode 0700 for 0755, flags none for sync", "flags immutable for append-only"] {
        assert!(found.stdout.contains(text), "{text}: {}", found.stdout);
    }
    let wanted = sh(pool.branch("a").path(), flags);
    assert_ne!(sh(pool.branch("b").path(), flags), wanted);
    let fixed = run(&["check", &at, "--fix"]);
    assert_eq!(sh(pool.branch("b").path(), flags), wanted, "{}{}", fixed.stdout, fixed.stderr);
    let clean = run(&["check", &at]);
    assert_eq!(clean.code, 0, "{}", clean.stdout);
    sh(pool.path(), "chattr -a log");
}

/// One copy is on a file system that has no dirsync, and one cannot take an attribute of the shown copy.
#[test]
fn a_copy_that_cannot_be_mended_keeps_its_protection() {
    needs!(mounting(), loops(), program("chattr"), program("setfattr"));
    let pool =
        lab::pool().ext4_branch("a", MiB(64)).xfs_branch("b", MiB(300)).ext4_branch("c", MiB(64)).mount();
    for branch in ["a", "b"] {
        sh(pool.branch(branch).path(), "mkdir -m 755 d; touch d/f");
    }
    sh(pool.branch("a").path(), "rm d/f");
    for branch in ["b", "c"] {
        sh(pool.branch(branch).path(), "mkdir -m 755 e");
    }
    sh(pool.branch("b").path(), "setfattr -n user.big -v 0x$(printf '00%.0s' $(seq 20000)) e");
    sh(pool.branch("c").path(), "chmod 700 e; touch e/f; chattr +i e");
    sh(pool.branch("b").path(), "chattr +i e");
    // XFS has no dirsync: the pool leaves it out there.
    sh(pool.path(), "chattr +Di d");
    let at = at(&pool);
    let found = run(&["check", &at]);
    assert!(!found.stdout.contains("/d:") && found.stdout.contains("/e"), "{}", found.stdout);
    let fixed = run(&["check", &at, "--fix"]);
    assert!(fixed.stdout.contains("not fixed"), "{}{}", fixed.stdout, fixed.stderr);
    let flags =
        |branch: &str, dir: &str| sh(pool.branch(branch).path(), &format!("lsattr -d {dir} | cut -c5"));
    assert_eq!((flags("b", "d"), flags("c", "e")), ("i".to_owned(), "i".to_owned()), "{}", fixed.stdout);
    assert!(refused(pool.path(), "rm -f d/f").contains("not permitted"));
    sh(pool.path(), "chattr -i d e");
    sh(pool.branch("c").path(), "chattr -i e");
}
