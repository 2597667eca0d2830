//! Inode flags (`chattr`): on whichever branch the object is, and whoever has it open.

use fsstack_lab::{self as lab, MiB, Pool, needs};

use crate::script::{refused, sh};

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

/// Two XFS branches; new files go wherever chance says.
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
        // It may be added to, and nothing be taken away.
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
    // On either branch, one of which lacks the inner directory and cannot be given it.
    for n in 0..12 {
        sh(pool.path(), &format!("echo {n} > fixed/open/{n}; mkdir fixed/open/dir{n}"));
    }
    assert_eq!(sh(pool.path(), "ls fixed/open | wc -l"), "24");
    sh(pool.path(), "chattr -i fixed");
}

#[test]
fn who_comes_later_feels_the_flag_though_others_have_the_file_open() {
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
fn who_comes_when_the_flag_is_gone_feels_it_no_more() {
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
fn the_time_of_change_is_told_at_once() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).option("attr-timeout=60").mount();
    for name in ["file", "dir"] {
        let told = sh(
            pool.path(),
            &format!(
                "touch file; mkdir -p dir; stat -c %z {name}; sleep 0.05; chattr +d {name}; stat -c %z {name}"
            ),
        );
        let (before, after) = told.split_once('\n').unwrap();
        assert_ne!(before, after, "{name}");
    }
}
