//! fsstack's own options, with the other spellings that mean the same.

use super::{Row, Takes, option};
use crate::settings::RunIn;
use crate::values;
use fsstack_engine::settings::Relocation;
use fsstack_fuse::{Scheduling, Transport};
use fsstack_identity::poolid::PoolId;
use fsstack_pool::settings::{
    ControlFile, Degraded, Locks, OutOfBand, PageCache, Require, Restart, Seccomp, Verify, Words as _,
    WritePath,
};
use fsstack_pool::{Printable, Size};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

/// Names that code asks for besides: each stands here only.
pub(crate) const CREATE: &str = "create";
pub(crate) const WRITE_PATH: &str = "write-path";
pub(crate) const PAGE_CACHE: &str = "page-cache";
pub(crate) const WRITE_RULES: &str = "write-rules";
pub(crate) const PLACE_RULES: &str = "place-rules";
pub(crate) const TIERS: &str = "tiers";
pub(crate) const FLOOR: &str = "minfreespace";

/// Options whose values may be no text.
pub(super) const PATHS: [&str; 4] = ["config", "state-dir", "fsname", "log"];

/// Which branches there are, and where new files go.
pub(super) const PLACEMENT: &[Row] = &[
    option(
        &[CREATE, "category.create", "func.create", "func.mkdir", "func.mknod", "func.symlink"],
        Takes::Value("POLICY"),
        values::DEFAULT_CREATE,
        "How branches are ranked for new files; \"epmfs>mfs\" tries the second policy where the first finds no branch; a last \"any\" also takes branches below their floor.",
        |raw, typed| {
            raw.options.engine.create = values::chain(typed.text()?)?;
            raw.choose_policy(typed, raw.options.engine.create.clone());
            Ok(())
        },
    )
    .live(|now| now.engine.create.to_string()),
    option(
        &[PLACE_RULES],
        Takes::Value("/DIR=[POLICY][@TARGET][;WORD][:/DIR=...]"),
        "",
        "Directories whose new files have their own placement, such as /media=mspmfs@slow;floor=50G:/inbox=@fast;then=slow; a target is a class (class= in SOURCE) or a branch's path, a word then=, floor=, depth= or strict; the innermost rule applies.",
        |raw, typed| typed.read(&mut raw.options.engine.placement),
    )
    .live(|now| now.engine.placement.to_string()),
    option(
        &[TIERS],
        Takes::Value("FAST>SLOW[;WORD][:FAST>SLOW...]"),
        "",
        "Classes whose files move to another class when they are full, such as fast>slow;start=80%;stop=60%; words are start=, stop=, order= (atime, mtime or size), min-age= (7d), window= (01:00-06:00), rate= (50M) and make-way.",
        |raw, typed| typed.read(&mut raw.options.engine.tiers),
    )
    .live(|now| now.engine.tiers.to_string()),
    option(
        &[FLOOR],
        Takes::Value("SIZE"),
        values::DEFAULT_FLOOR,
        "Free space (4G, 5%) that new files leave on a branch, except with a last \"any\" in create=; a branch's floor in SOURCE overrides it.",
        |raw, typed| typed.read(&mut raw.options.engine.floor),
    )
    .live(|now| now.engine.floor.to_string()),
    option(
        &["mlimit"],
        Takes::Value("SIZE"),
        "",
        "As in mhddfs: the first branch with this much free space (4G, 5%), else the roomiest; replaces create= and minfreespace=.",
        |raw, typed| typed.by(|text| values::mlimit(text).map(Some), &mut raw.mlimit),
    ),
    option(
        &["min-inodes"],
        Takes::Value("COUNT"),
        "0",
        "Free inodes that new files leave on a branch.",
        |raw, typed| typed.by(values::number, &mut raw.options.engine.min_inodes),
    )
    .live(|now| now.engine.min_inodes.to_string()),
    option(
        &["relocate", "moveonenospc"],
        Takes::SwitchOr("POLICY"),
        "on",
        "Move a file to another branch when a write through the daemon finds its branch full. A policy ranks the branches that can hold the file and their floor; \"on\" is mfs, the roomiest first.",
        |raw, typed| {
            let wanted = typed.switch();
            let policy = match &wanted {
                Ok(_) => Relocation::to_the_roomiest().policy,
                Err(_) => {
                    values::chain(typed.text()?).map_err(|why| format!("neither on nor off, and {why}"))?
                }
            };
            raw.options.engine.relocation.policy = policy;
            raw.options.engine.relocate = wanted.unwrap_or(true);
            Ok(())
        },
    )
    .live(|now| match (now.engine.relocate, &now.engine.relocation.policy) {
        (false, _) => "off".to_owned(),
        (true, policy) if *policy == Relocation::to_the_roomiest().policy => "on".to_owned(),
        (true, policy) => policy.to_string(),
    }),
    option(
        &["relocate-verify"],
        Takes::Choice(Verify::VARIANTS),
        "size",
        "Check before the old copy of a moved file is removed: compare sizes, or content read back from the new branch.",
        |raw, typed| typed.read(&mut raw.options.engine.relocation.verify),
    )
    .live(|now| now.engine.relocation.verify.to_string()),
    option(
        &["relocate-speed"],
        Takes::Value("SIZE"),
        "0",
        "Maximum bytes a second for moving a file (100M); 0: no limit.",
        |raw, typed| typed.by(values::speed, &mut raw.options.engine.relocation.speed),
    )
    .live(|now| Size(now.engine.relocation.speed.map_or(0, NonZeroU64::get)).to_string()),
    option(
        &["require"],
        Takes::Choice(Require::VARIANTS),
        "same",
        "Refuse branches that are not mount points, so that nothing is written below an unmounted disk: \"mountpoint\" refuses all of them, \"same\" those that were mount points when a pool last used them, \"directory\" none.",
        |raw, typed| typed.read(&mut raw.options.require),
    ),
    option(
        &["branches-timeout"],
        Takes::Value("SECONDS"),
        "0",
        "How long to wait at mount for branches that do not exist yet, or are not mounted as require= demands.",
        |raw, typed| typed.by_seconds(&mut raw.options.branches_timeout),
    ),
];

/// How bytes and answers move.
pub(super) const DATA: &[Row] = &[
    option(
        &[WRITE_PATH],
        Takes::Choice(WritePath::VARIANTS),
        "auto",
        "How bytes reach a branch: by the kernel, through the daemon, or the best that each file allows.",
        |raw, typed| typed.read(&mut raw.options.engine.write_path),
    )
    .live(|now| now.engine.write_path.to_string()),
    option(
        &[WRITE_RULES],
        Takes::Value("/DIR=PATH[:/DIR=PATH]"),
        "",
        "Directories whose files have their own write path, such as /scratch=stacked; the innermost rule applies.",
        |raw, typed| typed.read(&mut raw.options.engine.rules),
    )
    .live(|now| now.engine.rules.to_string()),
    option(
        &[PAGE_CACHE],
        Takes::Choice(PageCache::VARIANTS),
        "off",
        "Whether the FUSE layer caches stacked files above the branch's own cache; \"writeback\" excludes passthrough.",
        |raw, typed| typed.read(&mut raw.options.engine.page_cache),
    )
    .live(|now| now.engine.page_cache.to_string()),
    option(
        &["passthrough-headroom"],
        Takes::Value("SIZE"),
        values::DEFAULT_HEADROOM,
        "With write-path=auto, files on a branch with less free space than this are written by the daemon.",
        |raw, typed| typed.by(values::bytes, &mut raw.options.engine.passthrough_headroom),
    )
    .live(|now| Size(now.engine.passthrough_headroom).to_string()),
    option(
        &["attr-timeout", "cache.attr"],
        Takes::Value("SECONDS"),
        "1",
        "How long the kernel may cache attributes; matters only for out-of-band changes.",
        |raw, typed| typed.by_seconds(&mut raw.options.attr_timeout),
    )
    .live(|now| seconds(now.attr_timeout)),
    option(
        &["entry-timeout", "cache.entry"],
        Takes::Value("SECONDS"),
        "1",
        "How long the kernel may cache a name that exists.",
        |raw, typed| {
            raw.options.entry_timeout = typed.seconds()?;
            raw.options.watched_timeouts.0 = raw.options.entry_timeout;
            Ok(())
        },
    )
    .live(|now| seconds(now.entry_timeout)),
    option(
        &["negative-timeout", "cache.negative-entry", "negative-entry"],
        Takes::Value("SECONDS"),
        "0",
        "How long the kernel may cache that a name does not exist.",
        |raw, typed| {
            raw.options.negative_timeout = typed.seconds()?;
            raw.options.watched_timeouts.1 = raw.options.negative_timeout;
            Ok(())
        },
    )
    .live(|now| seconds(now.negative_timeout)),
    option(
        &["out-of-band"],
        Takes::Choice(OutOfBand::VARIANTS),
        "timeout",
        "How changes made on the branches directly are noticed: at once (fanotify), after the timeouts, or never, because there are none.",
        |raw, typed| typed.read(&mut raw.options.out_of_band),
    )
    .settled(|now| now.out_of_band.to_string()),
    option(
        &["branch-timeout"],
        Takes::Value("SECONDS"),
        "10",
        "How long a call may stay inside a FUSE or network branch before its caller gets EIO; from then on calls get EIO at once until the branch answers. 0: no limit.",
        |raw, typed| {
            let limit = typed.seconds()?;
            if !limit.is_zero() && limit < values::SHORTEST_BRANCH_TIMEOUT {
                return Err("every call would be given up at once; at least 0.1, or 0 for no limit".to_owned());
            }
            raw.options.engine.branch_timeout = limit;
            Ok(())
        },
    )
    .live(|now| seconds(now.engine.branch_timeout)),
    option(
        &["branch-inflight"],
        Takes::Value("COUNT"),
        "24",
        "Maximum concurrent calls into one FUSE or network branch (1 to 64, below max-threads), so that a hung branch cannot take every thread; a small max-threads lowers the default.",
        |raw, typed| typed.by(values::inflight, &mut raw.options.engine.branch_inflight),
    )
    .live(|now| now.engine.branch_inflight.to_string()),
    option(
        &["degraded"],
        Takes::Choice(Degraded::VARIANTS),
        "strict",
        "While a branch is out of reach: \"strict\" answers EIO for every name that may be on it, \"read\" shows the reachable branches as if they were all, \"catalogue\" shows names and attributes that catalogue=on has recorded.",
        |raw, typed| typed.read(&mut raw.options.engine.degraded),
    )
    .live(|now| now.engine.degraded.to_string()),
    option(
        &["transport"],
        Takes::Choice(Transport::VARIANTS),
        "auto",
        "How requests come from the kernel: over io_uring (\"ring\" sets the kernel's enable_uring) or /dev/fuse; \"auto\" uses io_uring where enable_uring is set.",
        |raw, typed| typed.read(&mut raw.options.transport),
    )
    .settled(|now| now.transport.to_string()),
    option(
        &["door-scheduling"],
        Takes::Choice(Scheduling::VARIANTS),
        "auto",
        "How the worker threads are scheduled: \"idle\" keeps callers on their CPU if the daemon has its own scheduling group; \"auto\" detects one (cpu cgroup or session).",
        |raw, typed| typed.read(&mut raw.options.scheduling),
    )
    .settled(|now| now.scheduling.to_string()),
    option(
        &["max-threads"],
        Takes::Value("COUNT"),
        "64",
        "Maximum worker threads. One or two a CPU start with the daemon, more while all are inside a branch. The io_uring transport always needs one for each possible CPU.",
        |raw, typed| typed.by(|text| values::threads(text).map(Some), &mut raw.options.max_threads),
    )
    .settled_later()
    .settled(|now| now.max_threads.map_or(values::DEFAULT_THREADS, NonZeroUsize::get).to_string()),
    option(
        &["max-write"],
        Takes::Value("SIZE"),
        values::DEFAULT_MAX_WRITE,
        "Largest request, from 4K to 64M; the kernel may lower it.",
        |raw, typed| typed.by(values::max_write, &mut raw.options.max_write),
    )
    .settled(|now| Size(u64::from(now.max_write)).to_string()),
];

/// Options of the pool's appearance to programs.
pub(super) const VIEW: &[Row] = &[
    option(
        &["statfs"],
        Takes::Choice(&["all", "ignore-nc", "ignore-ro", "as-placed", "base"]),
        "all",
        "Whether free space counts every branch, those that are not NC, those that are neither NC nor RO, or these above their floors; mergerfs's \"base\" is \"all\", its \"full\" (only branches that hold the path) is refused.",
        |raw, typed| typed.read(&mut raw.options.engine.statfs),
    )
    .live(|now| now.engine.statfs.to_string()),
    option(
        &["locks"],
        Takes::Choice(Locks::VARIANTS),
        "local",
        "Whether flock and POSIX locks hold within this mount only, or are also taken on the branch, visible to other users of it.",
        |raw, typed| typed.read(&mut raw.options.engine.locks),
    )
    .settled(|now| now.engine.locks.to_string()),
    option(
        &["xattr"],
        Takes::Choice(&["on", "off", "passthrough", "noattr", "nosys"]),
        "on",
        "Whether files have extended attributes; \"off\" saves a request at each first write and two a file in ls -l, and shows an object with an ACL with a mode that grants no more.",
        |raw, typed| typed.read(&mut raw.options.xattrs),
    )
    .settled(|now| now.xattrs.to_string()),
    option(
        &["nfs-export"],
        Takes::Switch,
        "false",
        "Let an NFS server export the pool: file handles stay valid over restarts of server and pool.",
        |raw, typed| typed.by_switch(&mut raw.options.engine.nfs_export),
    )
    .settled(|now| now.engine.nfs_export.to_string()),
    option(
        &["nfs-identity"],
        Takes::Value("UUID"),
        "",
        "For nfs-ganesha: mount the pool as a block device with this UUID (fuseblk on a small loop device), so that the server's handles survive remounts; with nfs-export.",
        |raw, typed| typed.by(|text| text.parse().map(Some).map_err(str::to_owned), &mut raw.options.nfs_identity),
    )
    .settled(|now| now.nfs_identity.as_ref().map(PoolId::to_string).unwrap_or_default()),
    option(
        &["allow_other"],
        Takes::Switch,
        "true for root",
        "Let users other than the mounting one enter.",
        |raw, typed| typed.by_switch(&mut raw.options.allow_other),
    )
    .settled_later()
    .settled(|now| now.allow_other.to_string()),
    option(
        &["default_permissions", "kernel-permissions-check"],
        Takes::Switch,
        "true",
        "Let the kernel check owner, mode and ACLs; cannot be off with allow_other.",
        |raw, typed| typed.by_switch(&mut raw.options.default_permissions),
    )
    .settled(|now| now.default_permissions.to_string()),
    option(
        &["idmap", "allow-idmap"],
        Takes::Switch,
        "false",
        "Allow idmapped mounts of the pool (Linux 6.12), as containers use them; the kernel then sends the caller's ids only with requests that make something.",
        |raw, typed| typed.by_switch(&mut raw.options.idmap),
    )
    .settled(|now| now.idmap.to_string()),
    option(
        &["mergerfs-control"],
        Takes::Choice(ControlFile::VARIANTS),
        "on",
        "Whether the root has mergerfs's control file, .mergerfs, which is in no listing: \"on\" lets the operator set its keys, \"read\" nobody; with \"off\" the name is one like any other.",
        |raw, typed| typed.read(&mut raw.options.engine.control_file),
    )
    .settled(|now| now.engine.control_file.to_string()),
    option(
        &["fsname"],
        Takes::Value("TEXT"),
        "SOURCE as typed",
        "Source that mount(8) and df(1) show.",
        |raw, typed| {
            let name = typed.raw();
            if name.is_empty() {
                return Err("empty; leave it out for SOURCE".to_owned());
            }
            raw.options.fsname = name.to_owned();
            Ok(())
        },
    )
    .settled_later()
    .settled(|now| Printable::os(&now.fsname).to_string()),
    option(
        &["subtype"],
        Takes::Value("NAME"),
        "fsstack",
        "Type that mount(8) shows after \"fuse.\".",
        |raw, typed| typed.by(values::subtype, &mut raw.options.subtype),
    )
    .settled(|now| now.subtype.clone()),
];

/// How the daemon starts, stays and talks.
pub(super) const RUNNING: &[Row] = &[
    option(
        &["config"],
        Takes::Value("FILE"),
        "",
        "File with these options, as TOML or in lines of name=value as mergerfs has it; options after -o override it.",
        |raw, typed| {
            raw.options.config.push(typed.absolute_path()?);
            Ok(())
        },
    )
    .settled(|now| path(now.config.last())),
    option(
        &["state-dir"],
        Takes::Value("DIRECTORY"),
        "/var/lib/fsstack",
        "Directory for the pool's index of moved files, in a folder named after the pool's id; a lost index is rebuilt.",
        |raw, typed| {
            raw.options.engine.state_dir = Some(typed.absolute_path()?);
            Ok(())
        },
    )
    .settled(|now| path(now.engine.state_dir.as_ref())),
    option(
        &["catalogue"],
        Takes::Switch,
        "false",
        "Keep a catalogue of the names on each branch in state-dir, for fsstack branch lost when a branch is dead, and fsstack find.",
        |raw, typed| typed.by_switch(&mut raw.options.engine.catalogue),
    )
    .settled(|now| now.engine.catalogue.to_string()),
    option(
        &["metrics"],
        Takes::Value("[ADDR:]PORT"),
        "",
        "Serve a status page (`/`) and OpenMetrics (`/metrics`) by HTTP at this port, on 127.0.0.1 unless an address is given.",
        |raw, typed| typed.by(|text| values::metrics(text).map(Some), &mut raw.options.metrics),
    )
    .settled(|now| now.metrics.map(|at| at.to_string()).unwrap_or_default()),
    option(
        &["nonempty"],
        Takes::Switch,
        "false",
        "Mount over a directory that is not empty.",
        |raw, typed| typed.by_switch(&mut raw.options.nonempty),
    ),
    option(
        &["foreground"],
        Takes::Switch,
        "false",
        "Stay in the foreground and log to stderr.",
        |raw, typed| {
            raw.options.run_in = if typed.switch()? { RunIn::Foreground } else { RunIn::Background };
            Ok(())
        },
    ),
    option(
        &["seccomp"],
        Takes::Choice(Seccomp::VARIANTS),
        "on",
        "What happens at a system call outside the daemon's list: \"on\" fails it, \"kill\" ends the daemon, \"log\" allows it; on and log write to the kernel's audit log.",
        |raw, typed| typed.read(&mut raw.options.seccomp),
    )
    .settled(|now| now.seccomp.to_string()),
    option(
        &["restart"],
        Takes::Choice(Restart::VARIANTS),
        "off",
        "What happens when the daemon dies: with \"keep\" a second process starts it again, and programs only wait (at /dev/fuse, Linux 6.9); \"auto\" keeps where that is possible, and takes /dev/fuse for it unless transport=ring.",
        |raw, typed| typed.read(&mut raw.options.restart),
    )
    .settled(|now| now.restart.to_string()),
    option(
        &["log", "logfile", "log.file"],
        Takes::Value("syslog|stderr|FILE"),
        "syslog; stderr with foreground",
        "Destination of the daemon's log.",
        |raw, typed| {
            raw.options.log.target = values::log_target(typed)?;
            Ok(())
        },
    )
    .settled_later()
    .settled(|now| now.log.target.to_string()),
    option(
        &["log-level", "loglevel"],
        Takes::Value("error|warn|info|debug|trace"),
        "info",
        "Least severe level that is logged; SIGUSR1 and SIGUSR2 raise and lower it. mhddfs's 0 to 2 are debug to warn.",
        |raw, typed| typed.by(values::log_level, &mut raw.options.log.level),
    )
    .live(|now| now.log.level.as_str().to_ascii_lowercase()),
];

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

fn path(path: Option<&PathBuf>) -> String {
    path.map(|path| Printable::path(path).to_string()).unwrap_or_default()
}
