//! Every refusal in the real helper's words: one line each, all at once, nothing mounted.

#![allow(clippy::unwrap_used, reason = "a test whose test bed cannot be made has failed")]

mod test_bed;

use expect_test::{Expect, expect};
use std::fs;
use std::process::{Command, Output};
use test_bed::TestBed;

/// Runs the helper with these arguments. Returns output and exit code.
fn helper(test_bed: &TestBed, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mount-fsstack"));
    command.args(words.iter().map(|word| test_bed.fill(word)));
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
    format!("{}exit {}", test_bed.hide(&text), status.code().unwrap())
}

/// With `-f`, so that nothing is mounted even if nothing is refused.
fn check(test_bed: &TestBed, source: &str, options: &str, expected: Expect) {
    expected.assert_eq(&helper(test_bed, &[source, "$D/mnt", "-f", "-o", options]));
}

#[test]
fn correct_options_pass_without_a_word() {
    let test_bed = TestBed::new();
    let fstab = "rw,defaults,nofail,_netdev,noauto,user,x-systemd.automount,x-gvfs-hide,comment=a pool,noatime,nodev,nosuid,noexec,uhelper=x";
    check(&test_bed, "$D/a:$D/b:$D/c", fstab, expect!["exit 0"]);
    check(&test_bed, "fsstack#$D/a,$D/b", "allow_other,fsname=pool", expect!["exit 0"]);
    check(&test_bed, "$D/a=RW,50G:$D/b=NC:$D/c=RO", "mlimit=4G", expect!["exit 0"]);
    check(
        &test_bed,
        "$D/[ab]",
        "category.create=epmfs,minfreespace=1G,category.search=ff,inodecalc=passthrough,inodecalc=path-hash,inodecalc=devino-hash,inodecalc=hybrid-hash",
        expect!["exit 0"],
    );
}

#[test]
fn unknown_options_come_with_the_nearest() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/a",
        "crate=mfs",
        expect![[r#"
        mount.fsstack: crate=mfs: unknown option; did you mean "create"?
        exit 1"#]],
    );
    check(
        &test_bed,
        "$D/a",
        "frobnicate",
        expect![[r#"
            mount.fsstack: frobnicate: unknown option; leave it out, or have mount -s pass over it
            exit 1"#]],
    );
    let sloppy = helper(&test_bed, &["$D/a", "$D/mnt", "-sf", "-o", "frobnicate=1"]);
    expect![[r#"
        mount.fsstack: frobnicate=1: unknown option, passed over because of -s
        exit 0"#]]
    .assert_eq(&sloppy);
}

#[test]
fn bad_values_say_what_would_be_right() {
    let test_bed = TestBed::new();
    let all = "create=mfss,minfreespace=much,mlimit=4X,min-inodes=-1,write-path=fast,attr-timeout=-1,max-threads=0,\
               max-write=1000,log-level=warm,log=here,allow_other=perhaps,ro=1,require,subtype=a b,passthrough.io=ro,\
               statfs=full,config=rel.toml,entry-timeout=nan,passthrough-headroom=1000000P,relocate=1000";
    check(
        &test_bed,
        "$D/a",
        all,
        expect![[r#"
            mount.fsstack: create=mfss: `mfss` is not a placement policy: did you mean `mfs`?
            mount.fsstack: minfreespace=much: `much` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%
            mount.fsstack: mlimit=4X: `4X` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%
            mount.fsstack: min-inodes=-1: not a whole number
            mount.fsstack: write-path=fast: not one of auto, passthrough, stacked
            mount.fsstack: attr-timeout=-1: not a number of seconds, such as 1 or 0.5
            mount.fsstack: max-threads=0: not a number of threads, from 1 to 4096
            mount.fsstack: max-write=1000: not a multiple of 4K from 4K to 64M
            mount.fsstack: log-level=warm: not one of error, warn, info, debug, trace; did you mean "warn"?
            mount.fsstack: log=here: not syslog, stderr or the absolute path of a file
            mount.fsstack: allow_other=perhaps: neither true nor false
            mount.fsstack: ro=1: takes no value
            mount.fsstack: require: needs a value: require=same|directory|mountpoint
            mount.fsstack: subtype=a b: not a word of letters, digits, "_", "." and "-"
            mount.fsstack: passthrough.io=ro: not one of off, rw
            mount.fsstack: statfs=full: not one of all, ignore-nc, ignore-ro, as-placed, base
            mount.fsstack: config=rel.toml: not an absolute path
            mount.fsstack: entry-timeout=nan: not a number of seconds, such as 1 or 0.5
            mount.fsstack: passthrough-headroom=1000000P: `1000000P` is too large: the most is 16383P
            mount.fsstack: relocate=1000: neither on nor off, and `1000` is not a placement policy: write one of all, epall, epff, eplfs, eplus, epmfs, eppfrd, eprand, erofs, ff, lfs, lup, lus, mfs, mlimit, msplfs, msplus, mspmfs, msppfrd, newest, pfrd, rand
            exit 1"#]],
    );
}

#[test]
fn options_of_mergerfs_without_a_meaning_here_are_refused_by_name() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/a",
        "symlinkify=true,func.getattr=mfs,category.search=newest,category.action=ff,inodecalc=hybrid-hash32,inodecalc=path-hash32,inodecalc=devino-hash32,nullrw=true,follow-symlinks=all,uid=5,branches=/x",
        expect![[r#"
            mount.fsstack: symlinkify=true: an option of mergerfs that is not supported here: files are shown as what they are; leave it out (only false is taken)
            mount.fsstack: func.getattr=mfs: an option of mergerfs that is not supported here: a directory always shows the newest times of its copies, and a file is the first branch's that holds it; leave it out (only ff or newest is taken)
            mount.fsstack: category.search=newest: an option of mergerfs that is not supported here: the first branch in order that holds a name always serves it; leave it out (only ff is taken)
            mount.fsstack: category.action=ff: an option of mergerfs that is not supported here: a change is always made on every branch that needs it; leave it out (only epall or all is taken)
            mount.fsstack: inodecalc=hybrid-hash32: an option of mergerfs that is not supported here: inode numbers are always stable, and always have 64 bits, as they name the branch too: a program of 32 bits without large-file support gets EOVERFLOW from stat; leave it out (only passthrough or path-hash or devino-hash or hybrid-hash is taken)
            mount.fsstack: inodecalc=path-hash32: an option of mergerfs that is not supported here: inode numbers are always stable, and always have 64 bits, as they name the branch too: a program of 32 bits without large-file support gets EOVERFLOW from stat; leave it out (only passthrough or path-hash or devino-hash or hybrid-hash is taken)
            mount.fsstack: inodecalc=devino-hash32: an option of mergerfs that is not supported here: inode numbers are always stable, and always have 64 bits, as they name the branch too: a program of 32 bits without large-file support gets EOVERFLOW from stat; leave it out (only passthrough or path-hash or devino-hash or hybrid-hash is taken)
            mount.fsstack: nullrw=true: an option of mergerfs that is not supported here: what is written is kept; leave it out (only false is taken)
            mount.fsstack: follow-symlinks=all: an option of mergerfs that is not supported here: symbolic links are not followed; leave it out (only never is taken)
            mount.fsstack: uid=5: an option of libfuse that is not supported here: files keep the owners and modes that they have on the branches; leave it out, and chown or chmod them there
            mount.fsstack: branches=/x: an option of mergerfs that is not supported here: give the branches as SOURCE before the mount point
            exit 1"#]],
    );
}

#[test]
fn leftovers_are_passed_over_with_a_notice() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/a",
        "big_writes,use_ino,direct_io,dropcacheonclose=true,cache.files=per-process,moveonenospc=true,noforget,xattr=nosys,readahead=1024,proxy-ioprio=true",
        expect![[r#"
            mount.fsstack: big_writes: no meaning here: requests are as large as the kernel allows
            mount.fsstack: use_ino: no meaning here: inode numbers are always stable and the same for hard links
            mount.fsstack: direct_io: no meaning here: page-cache=off, the default, is what it meant
            mount.fsstack: dropcacheonclose=true: no meaning here: with page-cache=off, the default, there is no second cache to drop; what page-cache=on keeps goes when memory is short
            mount.fsstack: cache.files=per-process: is page-cache=on for every process, not only for some; leave it out, and no second copy of data is kept in memory
            mount.fsstack: noforget: no meaning here: inode numbers do not depend on memory; to export the pool by NFS use nfs-export
            mount.fsstack: readahead=1024: no meaning here: set it on the branches' own devices
            mount.fsstack: proxy-ioprio=true: no meaning here: passthrough keeps the caller's I/O priority by itself
            mount.fsstack: moveonenospc=true: not of a file that is open by passthrough, its writer gets ENOSPC; write-path=stacked has all writes go through the daemon
            exit 0"#]],
    );
}

/// From mergerfs's own quick start.
#[test]
fn the_lines_of_mergerfs_quick_start_are_taken() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/a",
        "cache.files=off,category.create=pfrd,func.getattr=newest,dropcacheonclose=false",
        expect![[r#"
            mount.fsstack: dropcacheonclose=false: no meaning here: with page-cache=off, the default, there is no second cache to drop; what page-cache=on keeps goes when memory is short
            exit 0"#]],
    );
}

#[test]
fn conflicts_are_reported_all_at_once() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/a",
        "create=mfs,func.mkdir=ff,write-path=passthrough,page-cache=writeback,moveonenospc=true,default_permissions=false,log=stderr",
        expect![[r#"
            mount.fsstack: create=mfs and func.mkdir=ff: two placement policies, and one holds for all that is made; keep one of them
            mount.fsstack: write-path=passthrough and page-cache=writeback: the kernel excludes the one with the other; write-path=stacked or page-cache=on
            mount.fsstack: write-path=passthrough and moveonenospc=true: a file that the kernel writes cannot be moved; write-path=auto, or no relocation
            mount.fsstack: default_permissions=false: others may enter, and every one of them could read and change every file; leave it out, or add allow_other=false
            mount.fsstack: log=stderr: a daemon in the background has no terminal; add foreground, or log to syslog or a file
            exit 1"#]],
    );
    check(
        &test_bed,
        "$D/a",
        "mlimit=4G,minfreespace=1G",
        expect![[r#"
        mount.fsstack: mlimit=4G and minfreespace=1G: both say how much is kept free; keep one of them
        exit 1"#]],
    );
    check(
        &test_bed,
        "$D/a",
        "mlimit=4G,create=mfs",
        expect![[r#"
        mount.fsstack: create=mfs and mlimit=4G: two placement policies, and one holds for all that is made; keep one of them
        exit 1"#]],
    );
    check(
        &test_bed,
        "$D/a",
        "page-cache=off,cache.files=full",
        expect![[r#"
        mount.fsstack: page-cache=off and cache.files=full: both choose the page cache; keep page-cache=off
        exit 1"#]],
    );
    check(
        &test_bed,
        "$D/a",
        "cache.files=off,cache.writeback=true",
        expect![[r#"
        mount.fsstack: cache.writeback=true and cache.files=off: writes cannot be gathered in a cache that is off; leave one out
        exit 1"#]],
    );
    check(&test_bed, "$D/a", "create=mlimit,mlimit=8G,create=mlimit", expect!["exit 0"]);
    check(
        &test_bed,
        "$D/a",
        "transport=ring,locks=branch",
        expect![[r#"
        mount.fsstack: transport=ring and locks=branch: waits for locks would use up the ring; use transport=dev
        exit 1"#]],
    );
}

/// A branch that is out of reach is not one that does not exist: its files would be missing.
#[test]
fn a_pattern_does_not_leave_out_what_cannot_be_reached() {
    let test_bed = TestBed::new();
    std::fs::create_dir(test_bed.path().join("disk1")).unwrap();
    std::os::unix::fs::symlink("disk2", test_bed.path().join("disk2")).unwrap();
    let shown = helper(&test_bed, &["$D/disk*", "$D/mnt", "-f"]);
    assert_eq!(
        test_bed.hide(&shown),
        "mount.fsstack: branch $D/disk2: cannot be reached: Too many levels of symbolic links (os error 40)\nexit 32"
    );
    let shown = helper(&test_bed, &["$D/**", "$D/mnt", "-f"]);
    assert!(shown.contains("not a pattern") && shown.ends_with("exit 1"), "{shown}");
}

/// The daemon would wait for an answer of its own.
#[test]
fn files_of_the_daemon_lie_outside_of_the_pool() {
    let test_bed = TestBed::new();
    let told = |option: &str| helper(&test_bed, &["$D/a", "$D/mnt", "-f", "-o", option]);
    for option in ["state-dir=$D/mnt/state/deep", "log=$D/mnt/log", "state-dir=$D/mnt"] {
        let shown = test_bed.hide(&told(option));
        assert_eq!(
            shown,
            format!("mount.fsstack: {option}: it lies in the pool itself; name another place\nexit 1")
        );
    }
    let shown = test_bed.hide(&told("state-dir=$D/a/state"));
    assert!(shown.contains("it lies in branch $D/a") && shown.ends_with("exit 0"), "{shown}");
}

#[test]
fn one_branch_never_has_all_threads() {
    let test_bed = TestBed::new();
    for (options, why) in [
        (
            "max-threads=8,branch-inflight=8",
            "branch-inflight=8: a branch that hangs would leave none of 8 threads; fewer than max-threads=8",
        ),
        (
            "branch-inflight=64",
            "branch-inflight=64: a branch that hangs would leave none of 64 threads; fewer than max-threads=64",
        ),
    ] {
        let told = helper(&test_bed, &["$D/a", "$D/mnt", "-f", "-o", options]);
        assert_eq!(told, format!("mount.fsstack: {why}\nexit 1"));
    }
    // The default is what max-threads allows.
    check(&test_bed, "$D/a", "max-threads=8", expect!["exit 0"]);
    check(&test_bed, "$D/a", "max-threads=8,branch-inflight=7", expect!["exit 0"]);
}

#[test]
fn a_branch_that_cannot_be() {
    let test_bed = TestBed::new();
    fs::write(test_bed.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("a", test_bed.path().join("alias")).unwrap();
    fs::create_dir(test_bed.path().join("b/inner")).unwrap();
    check(
        &test_bed,
        "$D/missing:$D/file",
        "rw",
        expect![[r#"
        mount.fsstack: branch $D/missing: missing; create or mount it first, or wait for it with branches-timeout=
        mount.fsstack: branch $D/file: not a directory; a branch is the root of a tree
        exit 32"#]],
    );
    check(
        &test_bed,
        "$D/a:$D/alias:$D/a",
        "rw",
        expect![[r#"
            mount.fsstack: branch $D/alias: the same directory as branch $D/a; leave one out
            mount.fsstack: branch $D/a: named twice; name it once
            exit 32"#]],
    );
    check(
        &test_bed,
        "$D/b/inner:$D/b",
        "rw",
        expect![[r#"
        mount.fsstack: branch $D/b: contains branch $D/b/inner; its files would show twice
        exit 32"#]],
    );
    check(
        &test_bed,
        "$D/none*",
        "rw",
        expect![[r#"
        mount.fsstack: branch $D/none*: no directory matches; mount the branches first, or wait for them with branches-timeout=
        exit 32"#]],
    );
    check(
        &test_bed,
        "$D/a=XX",
        "rw",
        expect![[r#"
            mount.fsstack: branches: `XX`: not a branch attribute: after `=` write RW, NC or RO, a floor as 50G or 5%, min-inodes=N, cross-mounts or class=NAME (a `=` in a path is written `\=`)
            exit 1"#]],
    );
    check(
        &test_bed,
        "",
        "rw",
        expect![[r#"
        mount.fsstack: branches: ``: a branch's path is missing: write branches as /a:/b, with one `:` or `,` between two
        exit 1"#]],
    );
}

#[test]
fn a_slip_in_a_branch() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/a=RW,50Q",
        "rw",
        expect![[r#"
            mount.fsstack: branch 50Q: missing (a relative path); an attribute of the branch before it would be RW, NC or RO, a floor as 50G or 5%, min-inodes=N, cross-mounts or class=NAME
            exit 32"#]],
    );
    check(
        &test_bed,
        "mergerfs#$D/a",
        "rw",
        expect![[r#"
        mount.fsstack: branches: `mergerfs#`: the prefix of another program: write fsstack# in its place, or leave it out
        exit 1"#]],
    );
}

#[test]
fn a_branch_around_the_mount_point() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D",
        "rw",
        expect![[r#"
        mount.fsstack: branch $D: contains the mount point, so that the pool would hold itself; mount the pool outside of it
        exit 32"#]],
    );
    check(
        &test_bed,
        "$D/mnt",
        "rw",
        expect![[r#"
        mount.fsstack: branch $D/mnt: is the mount point itself; mount the pool on a directory of its own
        exit 32"#]],
    );
    fs::create_dir(test_bed.path().join("mnt/inner")).unwrap();
    check(
        &test_bed,
        "$D/mnt/inner",
        "nonempty",
        expect![[r#"
        mount.fsstack: branch $D/mnt/inner: lies in the mount point and would vanish beneath the pool; mount the pool elsewhere
        exit 32"#]],
    );
}

#[test]
fn a_branch_must_be_a_mount_point_where_that_is_required() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/a:/proc",
        "require=mountpoint",
        expect![[r#"
        mount.fsstack: branch $D/a: not a mount point, which require=mountpoint asks for; mount its disk first
        exit 32"#]],
    );
}

#[test]
fn a_mount_point_that_cannot_be() {
    let test_bed = TestBed::new();
    fs::write(test_bed.path().join("file"), "").unwrap();
    fs::create_dir(test_bed.path().join("c/inner")).unwrap();
    let on = |target: &str| helper(&test_bed, &["$D/a", target, "-f"]);
    expect![[r#"
        mount.fsstack: mount point $D/missing: missing; create it with mkdir
        exit 32"#]]
    .assert_eq(&on("$D/missing"));
    expect![[r#"
        mount.fsstack: mount point $D/file: not a directory; a pool is mounted on one
        exit 32"#]]
    .assert_eq(&on("$D/file"));
    expect![[r#"
        mount.fsstack: mount point $D/c: not empty; its files would be hidden, which nonempty allows
        exit 32"#]]
    .assert_eq(&on("$D/c"));
    expect!["exit 0"].assert_eq(&helper(&test_bed, &["$D/a", "$D/c", "-f", "-o", "nonempty"]));
}

#[test]
fn a_name_cannot_forge_a_line() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/x\nmount.fsstack; all is well\x1bc",
        "fsname=\"a",
        expect![[r#"
            mount.fsstack: -o fsname="a: a quotation mark is not closed
            mount.fsstack: branch $D/x\012mount.fsstack; all is well\033c: missing; create or mount it first, or wait for it with branches-timeout=
            exit 1"#]],
    );
}

#[test]
fn an_endless_file_is_no_config_file() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "$D/a",
        "config=/dev/zero",
        expect![[r#"
            mount.fsstack: config=/dev/zero: cannot be read: it is not a regular file
            exit 1"#]],
    );
}

#[test]
fn a_config_file_is_refused_with_its_place() {
    let test_bed = TestBed::new();
    let with = |text: &str, expected: Expect| {
        fs::write(test_bed.path().join("pool.toml"), text).unwrap();
        check(&test_bed, "$D/a", "config=$D/pool.toml", expected);
    };
    with(
        "create = \"mfs\"\nwirte-path = \"auto\"\n",
        expect![[r#"
        mount.fsstack: config=$D/pool.toml: wirte-path=auto: unknown option; did you mean "write-path"?
        exit 1"#]],
    );
    with(
        "create = \"mfs\"\n\ncreate = ",
        expect![[r#"
            mount.fsstack: config=$D/pool.toml: line 3: string values must be quoted, expected literal string; write it as TOML, create = "mfs", or as mergerfs has it, create=mfs
            exit 1"#]],
    );
    with(
        "create = [\"mfs\"]\nconfig = \"/x\"\nmax-threads = 0\nro = \"yes\"",
        expect![[r#"
        mount.fsstack: config=$D/pool.toml: config: a config file cannot name another
        mount.fsstack: config=$D/pool.toml: create: neither text, a number, true nor false
        mount.fsstack: config=$D/pool.toml: max-threads=0: not a number of threads, from 1 to 4096
        mount.fsstack: config=$D/pool.toml: ro=yes: takes no value
        exit 1"#]],
    );
    check(
        &test_bed,
        "$D/a",
        "config=$D/absent.toml",
        expect![[r#"
        mount.fsstack: config=$D/absent.toml: cannot be read: No such file or directory (os error 2)
        exit 1"#]],
    );
}

#[test]
fn the_command_line_itself() {
    let test_bed = TestBed::new();
    expect![[r#"
        mount.fsstack: SOURCE and TARGET are missing: mount.fsstack /branch1:/branch2 /mount/point [-o OPTIONS]
        exit 1"#]].assert_eq(&helper(&test_bed, &[]));
    expect![[r#"
        mount.fsstack: -z: unknown; the options of a mount stand behind -o (see --help)
        mount.fsstack: -N 1: mounting into another namespace is not supported; run it there with nsenter(1)
        exit 1"#]]
    .assert_eq(&helper(&test_bed, &["$D/a", "$D/mnt", "-z", "-N", "1"]));
    assert!(helper(&test_bed, &["--version"]).starts_with("mount.fsstack 0."));
    for page in ["help", "options-md", "man", "completions-bash", "completions-zsh", "completions-fish"] {
        assert!(helper(&test_bed, &["--print", page]).ends_with("exit 0"), "{page}");
    }
}
