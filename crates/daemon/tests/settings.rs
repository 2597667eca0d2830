//! Settings from typed options: defaults, spellings, precedence, privilege, waiting.

#![allow(clippy::unwrap_used, reason = "a test whose test bed cannot be made has failed")]
#![allow(clippy::too_many_lines, reason = "what is expected stands beside what is typed")]

mod test_bed;

use expect_test::{Expect, expect};
use fsstack_control::registry::{self, Claim, DirectoryId, RegistryBranch, RegistryEntry};
use fsstack_daemon::problem::Problems;
use fsstack_daemon::settings::{Privilege, Settings};
use fsstack_daemon::{Request, World, parse, resolve};
use std::ffi::OsString;
use std::fs;
use std::time::{Duration, Instant};
use test_bed::TestBed;

fn settle(test_bed: &TestBed, privilege: Privilege, words: &[&str]) -> Result<Settings, Problems> {
    let words = words.iter().map(|word| OsString::from(test_bed.fill(word)));
    let Request::Mount(typed) = parse(words)? else { panic!("not a mount") };
    let registry = test_bed.path().join("run");
    let own = (privilege == Privilege::Root).then(|| registry.clone());
    resolve(&typed, &World { privilege, own, registry, kernel: (6, 9), leaving: Duration::ZERO })
}

fn told(problems: &Problems) -> String {
    problems.into_iter().map(|problem| problem.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// The settings' lines that the options changed.
fn check(test_bed: &TestBed, options: &str, expected: Expect) {
    let lines = |options: &str| match settle(test_bed, Privilege::Root, &["$D/a", "$D/mnt", "-o", options]) {
        Ok(settings) => {
            let settings = Settings { given: Vec::new(), ..settings };
            let create = settings.options.engine.create.to_string();
            let text = format!("{settings:#?}");
            let (before, rest) = text.split_once("            create: ").unwrap();
            let (_, after) = rest.split_once("\n            },\n").unwrap();
            format!("{before}    create: {create}\n{after}")
        }
        Err(problems) => told(&problems),
    };
    let plain = lines("rw");
    let changed: Vec<_> = lines(options)
        .lines()
        .filter(|line| !plain.lines().any(|known| known == *line))
        .map(|line| line.trim().to_owned())
        .collect();
    expected.assert_eq(&test_bed.hide(&changed.join("\n")));
}

/// An unmounted disk would look like an empty branch.
#[test]
fn a_mount_is_refused_if_earlier_mounts_are_unknown() {
    let test_bed = TestBed::new();
    fs::create_dir_all(test_bed.path().join("state/mounted-branches")).unwrap();
    let words = |options| ["$D/a", "$D/mnt", "-o", options];
    let problems = settle(&test_bed, Privilege::Root, &words("state-dir=$D/state")).unwrap_err();
    expect!["$D/state/mounted-branches: Is a directory (os error 21): it says which branches were mount points; mend or remove it, or mount with require=directory if all disks are mounted"]
        .assert_eq(&test_bed.hide(&told(&problems)));
    settle(&test_bed, Privilege::Root, &words("state-dir=$D/state,require=directory")).unwrap();
}

#[test]
fn the_defaults() {
    let test_bed = TestBed::new();
    let settings = settle(&test_bed, Privilege::Root, &["$D/a=NC,1G:$D/b", "$D/mnt"]).unwrap();
    expect!["mspmfs>any"].assert_eq(&settings.options.engine.create.to_string());
    let branches: Vec<_> =
        settings.branches.iter().map(|branch| test_bed.hide(&branch.spec.to_string())).collect();
    expect!["$D/a=NC,1G $D/b=RW"].assert_eq(&branches.join(" "));
    let plain = Settings { branches: Vec::new(), ..settings };
    expect![[r#"
        Settings {
            source: "$D/a=NC,1G:$D/b",
            branches: [],
            mount_point: "$D/mnt",
            options: Options {
                engine: Settings {
                    create: Chain {
                        policies: [
                            Policy {
                                scope: DeepestParent,
                                rank: MostFree,
                            },
                        ],
                        limit: Bytes(
                            4294967296,
                        ),
                        last_resort: true,
                    },
                    floor: Bytes(
                        4294967296,
                    ),
                    min_inodes: 0,
                    synced: ByRequest,
                    placement: PlacementRules(
                        [],
                    ),
                    tiers: Tiers(
                        [],
                    ),
                    write_path: Auto,
                    rules: Rules(
                        [],
                    ),
                    page_cache: Off,
                    passthrough_headroom: 1073741824,
                    relocate: true,
                    relocation: Relocation {
                        policy: Chain {
                            policies: [
                                Policy {
                                    scope: AnyBranch,
                                    rank: MostFree,
                                },
                            ],
                            limit: Bytes(
                                4294967296,
                            ),
                            last_resort: false,
                        },
                        verify: Size,
                        speed: None,
                    },
                    statfs: All,
                    locks: Local,
                    branch_timeout: 10s,
                    branch_inflight: 24,
                    degraded: Strict,
                    recheck: 3600s,
                    exclusive: false,
                    privileged: false,
                    nfs_export: false,
                    control_file: On,
                    state_dir: Some(
                        "/var/lib/fsstack",
                    ),
                    catalogue: false,
                    pool_id: None,
                    dir_fds: 512,
                    listing_entries: 1048576,
                    linked_names: 524288,
                },
                require: Same,
                branches_timeout: 0ns,
                attr_timeout: 1s,
                entry_timeout: 1s,
                negative_timeout: 0ns,
                watched_timeouts: (
                    60s,
                    60s,
                ),
                out_of_band: Timeout,
                xattrs: On,
                transport: Auto,
                scheduling: Auto,
                seccomp: On,
                restart: Off,
                max_threads: None,
                max_write: 1048576,
                nfs_identity: None,
                fsname: "$D/a=NC,1G:$D/b",
                subtype: "fsstack",
                allow_other: true,
                default_permissions: true,
                idmap: false,
                nonempty: false,
                run_in: Background,
                log: LogSettings {
                    target: Syslog,
                    level: Level(
                        Info,
                    ),
                },
                config: [],
                metrics: None,
            },
            flags: MountFlags {
                read_only: false,
                access_times: Relative,
                directory_access_times: true,
                suid: true,
                devices: true,
                execute: true,
                synchronous: false,
                synchronous_directories: false,
            },
            privilege: Root,
            registry: Some(
                "$D/run",
            ),
            given: [],
            notices: [],
            remarks: [],
        }"#]]
    .assert_eq(&test_bed.hide(&format!("{plain:#?}")));
}

#[test]
fn our_spellings() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "create=epmfs>mfs>any,minfreespace=5%,min-inodes=1000",
        expect![[r#"
        create: epmfs>mfs>any
        floor: PerMille(
        50,
        min_inodes: 1000,"#]],
    );
    check(
        &test_bed,
        "write-path=passthrough,page-cache=on,passthrough-headroom=10G,max-write=4M,max-threads=8",
        expect![[r#"
            write_path: Passthrough,
            page_cache: On,
            passthrough_headroom: 10737418240,
            branch_inflight: 7,
            max_threads: Some(
            8,
            max_write: 4194304,"#]],
    );
    check(
        &test_bed,
        "attr-timeout=0.5,entry_timeout=60,negative-timeout=3",
        expect![[r#"
            attr_timeout: 500ms,
            entry_timeout: 60s,
            negative_timeout: 3s,
            3s,"#]],
    );
    check(
        &test_bed,
        "statfs=as-placed,locks=branch,fsname=\"my,pool\",subtype=pool",
        expect![[r#"
        statfs: AsPlaced,
        locks: Branch,
        fsname: "my,pool",
        subtype: "pool","#]],
    );
    check(
        &test_bed,
        "ro,noatime,nodiratime,nosuid,nodev,noexec,sync,dirsync",
        expect![[r#"
        read_only: true,
        access_times: Never,
        directory_access_times: false,
        suid: false,
        devices: false,
        execute: false,
        synchronous: true,
        synchronous_directories: true,"#]],
    );
    check(
        &test_bed,
        "foreground,log-level=debug",
        expect![[r#"
            run_in: Foreground,
            target: Stderr,
            Debug,"#]],
    );
    check(
        &test_bed,
        "allow_other=false,default_permissions=no",
        expect![[r#"
        allow_other: false,
        default_permissions: false,"#]],
    );
}

#[test]
fn spellings_of_mhddfs_and_mergerfs() {
    let test_bed = TestBed::new();
    check(
        &test_bed,
        "mlimit=20,logfile=$D/log,loglevel=0",
        expect![[r#"
        create: mlimit(20%)
        0,
        target: File(
        "$D/log",
        Debug,"#]],
    );
    check(
        &test_bed,
        "category.create=mfs,func.mkdir=mfs,cache.attr=3,cache.entry=4,cache.negative_entry=5",
        expect![[r#"
            create: mfs
            attr_timeout: 3s,
            entry_timeout: 4s,
            negative_timeout: 5s,
            4s,
            5s,"#]],
    );
    check(
        &test_bed,
        "cache.files=auto-full,passthrough.io=off,threads=4,fuse-msg-size=512",
        expect![[r#"
            write_path: Stacked,
            page_cache: On,
            branch_inflight: 3,
            max_threads: Some(
            4,
            max_write: 2097152,
            notices: [
            "cache.files=auto-full: is page-cache=on; leave it out, and no second copy of data is kept in memory","#]],
    );
    check(
        &test_bed,
        "cache.writeback=true",
        expect![[r#"
            write_path: Stacked,
            page_cache: WriteBack,
            remarks: [
            "page-cache=writeback: the kernel has no passthrough beside it; all data goes through the daemon","#]],
    );
    check(
        &test_bed,
        "statfs=base,statfs-ignore=nc,threads=0,read-thread-count=-2",
        expect!["statfs: IgnoreNc,"],
    );
}

/// The value of `restart` that is settled, and the notice.
#[test]
fn restart_auto_keeps_where_that_is_possible() {
    let test_bed = TestBed::new();
    let settled = |options: &str| {
        let settings =
            settle(&test_bed, Privilege::Root, &["$D/a", "$D/mnt", "-o", &format!("restart=auto,{options}")]);
        let settings = settings.unwrap_or_else(|problems| panic!("{}", told(&problems)));
        format!("{}: {}", settings.options.restart, settings.notices.join(" "))
    };
    let shown = ["rw", "transport=dev", "transport=ring", "locks=branch"].map(settled).join("\n");
    expect![[r#"
        keep: 
        keep: 
        off: restart=auto: the pool ends if the daemon dies: transport=ring: the kernel does not give requests in a ring to another daemon; use transport=dev
        off: restart=auto: the pool ends if the daemon dies: locks=branch: who has which lock on a branch is forgotten with the daemon; use locks=local"#]].assert_eq(&test_bed.hide(&shown));
    let user = settle(&test_bed, Privilege::User, &["$D/a", "$D/mnt", "-o", "restart=auto"]).unwrap();
    expect![[r#"
        restart=auto: the pool ends if the daemon dies: finding files again by their numbers needs root; leave it out, or mount as root
        not root: mounted through fusermount3, and all data goes through the daemon"#]].assert_eq(&user.notices.join("\n"));
}

#[test]
fn the_later_wins_and_the_command_line_before_the_file() {
    let test_bed = TestBed::new();
    check(&test_bed, "ro,rw,create=ff,create=mfs", expect!["create: mfs"]);
    let file = "create = \"ff\"\nattr-timeout = 7\nentry-timeout = 2.5\nro = true\nnosuid = false\ncache.files = \"full\"\n";
    fs::write(test_bed.path().join("pool.toml"), file).unwrap();
    check(
        &test_bed,
        "attr-timeout=9,config=$D/pool.toml",
        expect![[r#"
            create: ff
            page_cache: On,
            attr_timeout: 9s,
            entry_timeout: 2.5s,
            2.5s,
            config: [
            "$D/pool.toml",
            ],
            read_only: true,
            notices: [
            "cache.files=full: is page-cache=on; leave it out, and no second copy of data is kept in memory","#]],
    );
    check(
        &test_bed,
        "config=$D/pool.toml,rw,mlimit=8G,page-cache=off",
        expect![[r#"
            create: mlimit(8G)
            0,
            attr_timeout: 7s,
            entry_timeout: 2.5s,
            2.5s,
            config: [
            "$D/pool.toml",
            ],
            read_only: true,
            notices: [
            "cache.files=full: is page-cache=on; leave it out, and no second copy of data is kept in memory","#]],
    );
}

#[test]
fn a_user_has_the_stacked_path_and_a_log_line_says_so() {
    let test_bed = TestBed::new();
    let settings = settle(&test_bed, Privilege::User, &["$D/a", "$D/mnt"]).unwrap();
    let seen = (
        settings.options.engine.write_path,
        settings.options.allow_other,
        settings.options.default_permissions,
        settings.registry,
        settings.notices,
    );
    expect![[r#"
        (
            Stacked,
            false,
            true,
            None,
            [
                "not root: mounted through fusermount3, and all data goes through the daemon",
            ],
        )"#]]
    .assert_eq(&format!("{seen:#?}"));
    let refused = settle(&test_bed, Privilege::User, &["$D/a", "$D/mnt", "-owrite-path=passthrough"]);
    expect!["write-path=passthrough: passthrough needs root; write-path=auto, or mount it as root"]
        .assert_eq(&told(&refused.unwrap_err()));
}

#[test]
fn idmapped_mounts_need_root_and_the_kernels_checks() {
    let test_bed = TestBed::new();
    check(&test_bed, "idmap=on", expect!["idmap: true,"]);
    check(&test_bed, "allow-idmap=true", expect!["idmap: true,"]);
    let refused = |privilege, options| {
        told(&settle(&test_bed, privilege, &["$D/a", "$D/mnt", "-o", options]).unwrap_err())
    };
    expect!["idmap=on: everything that this user's daemon makes is the user's own; leave it out, or mount the pool as root"]
        .assert_eq(&refused(Privilege::User, "idmap=on"));
    expect!["allow-idmap: the kernel maps owners only where it checks permissions itself; leave out default_permissions=off"]
        .assert_eq(&refused(Privilege::Root, "allow-idmap,default_permissions=off,allow_other=false"));
}

#[test]
fn branches_of_a_live_pool_are_refused() {
    let test_bed = TestBed::new();
    for inner in ["a/inner", "c/deep/inner"] {
        fs::create_dir_all(test_bed.path().join(inner)).unwrap();
    }
    let branch = |name: &str| {
        let path = test_bed.path().join(name);
        RegistryBranch::new(DirectoryId::at(&path).unwrap(), &path)
    };
    let mount_point = test_bed.path().join("other");
    let entry =
        RegistryEntry::of_this_process(&mount_point, vec![branch("a"), branch("c/deep/inner")]).unwrap();
    let claim =
        || registry::write(&test_bed.path().join("run"), &entry, |pool| pool.branches == entry.branches);
    let Claim::Made(listed) = claim().unwrap() else { panic!("nobody is there") };
    // One that looked before that is refused when it claims its name.
    assert!(matches!(claim().unwrap(), Claim::Refused(_)));
    let hide =
        |refused: &Problems| test_bed.hide(&told(refused)).replace(&std::process::id().to_string(), "$P");
    let words = ["$D/a:$D/b:$D/c", "$D/mnt"];
    let refused = settle(&test_bed, Privilege::Root, &words).unwrap_err();
    expect![[r#"
        branch $D/a: is a branch of the pool of $D/other, which is being mounted, or was unmounted and is in use; wait for it, or close its files (its daemon is process $P)
        branch $D/c: contains a branch of the pool of $D/other, which is being mounted, or was unmounted and is in use; wait for it, or close its files (its daemon is process $P)"#]]
    .assert_eq(&hide(&refused));
    let refused = settle(&test_bed, Privilege::Root, &["$D/a/inner", "$D/mnt"]).unwrap_err();
    expect!["branch $D/a/inner: lies in a branch of the pool of $D/other, which is being mounted, or was unmounted and is in use; wait for it, or close its files (its daemon is process $P)"]
        .assert_eq(&hide(&refused));
    fs::create_dir(&mount_point).unwrap();
    // That pool was unmounted lazily and is still in use.
    settle(&test_bed, Privilege::Root, &["$D/b", "$D/other"]).unwrap();
    drop(listed);
    settle(&test_bed, Privilege::Root, &words).unwrap();
}

#[test]
fn patterns_are_sorted_and_name_directories_only() {
    let test_bed = TestBed::new();
    fs::write(test_bed.path().join("a0"), "").unwrap();
    fs::create_dir(test_bed.path().join("a1")).unwrap();
    let settings = settle(&test_bed, Privilege::Root, &["$D/c:$D/a*=NC", "$D/mnt"]).unwrap();
    let branches: Vec<_> =
        settings.branches.iter().map(|branch| test_bed.hide(&branch.spec.to_string())).collect();
    expect!["$D/c=RW $D/a=NC $D/a1=NC"].assert_eq(&branches.join(" "));
}

#[test]
fn late_branches_are_waited_for() {
    let test_bed = TestBed::new();
    let late = test_bed.path().join("late");
    let maker = std::thread::spawn({
        let late = late.clone();
        move || {
            std::thread::sleep(Duration::from_millis(300));
            fs::create_dir(late).unwrap();
        }
    });
    settle(&test_bed, Privilege::Root, &["$D/lat*", "$D/mnt", "-obranches-timeout=30"]).unwrap();
    maker.join().unwrap();
    let started = Instant::now();
    settle(&test_bed, Privilege::Root, &["$D/never", "$D/mnt", "-obranches-timeout=0.3"]).unwrap_err();
    assert!(Duration::from_millis(300) <= started.elapsed());
}
