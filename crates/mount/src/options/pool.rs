//! fsstack's own options, with the other spellings that mean the same.

use super::{Row, Takes, option};
use crate::settings::{
    Degraded, Locks, OutOfBand, PageCache, Require, RunIn, Seccomp, StatfsView, Transport,
    TransportScheduling, Verify, WritePath,
};
use crate::values;
use std::num::NonZeroU64;

/// Which branches there are, and where new files go.
pub(super) const PLACEMENT: &[Row] = &[
    option(
        &["create", "category.create", "func.create", "func.mkdir", "func.mknod", "func.symlink"],
        Takes::Value("POLICY"),
        values::DEFAULT_CREATE,
        "How branches are ranked for new files; \"epmfs>mfs\" tries the second policy where the first finds no branch; a last \"any\" also takes branches below their floor.",
        |raw, typed| {
            let chain = values::chain(typed.text()?)?;
            raw.choose_policy(typed, chain);
            Ok(())
        },
    ),
    option(
        &["minfreespace"],
        Takes::Value("SIZE"),
        values::DEFAULT_FLOOR,
        "Free space (4G, 5%) that new files leave on a branch, except with a last \"any\" in create=; a branch's floor in SOURCE overrides it.",
        |raw, typed| raw.floor.give(typed, values::floor(typed.text()?)?),
    ),
    option(
        &["mlimit"],
        Takes::Value("SIZE"),
        "",
        "As in mhddfs: the first branch with this much free space (4G, 5%), else the roomiest; replaces create= and minfreespace=.",
        |raw, typed| raw.mlimit.give(typed, values::mlimit(typed.text()?)?),
    ),
    option(
        &["min-inodes"],
        Takes::Value("COUNT"),
        "0",
        "Free inodes that new files leave on a branch.",
        |raw, typed| raw.min_inodes.give(typed, typed.count()?),
    ),
    option(
        &["relocate", "moveonenospc"],
        Takes::SwitchOr("POLICY"),
        "on",
        "Move a file to another branch when a write through the daemon finds its branch full. A policy ranks the branches that can hold the file and their floor; \"on\" is mfs, the roomiest first.",
        |raw, typed| {
            let text = typed.text()?;
            let wanted = match text {
                "on" => Some(true),
                "off" => Some(false),
                _ => typed.switch().ok(),
            };
            if wanted.is_none() {
                let chain = values::chain(text).map_err(|why| format!("neither on nor off, and {why}"))?;
                raw.relocate_policy.give(typed, chain)?;
            }
            raw.relocate.give(typed, wanted.unwrap_or(true))
        },
    ),
    option(
        &["relocate-verify"],
        Takes::Choice(&["size", "checksum"]),
        "size",
        "Check before the old copy of a moved file is removed: compare sizes, or content read back from the new branch.",
        |raw, typed| {
            let verify = if typed.raw() == "checksum" { Verify::Content } else { Verify::Size };
            raw.relocate_verify.give(typed, verify)
        },
    ),
    option(
        &["relocate-speed"],
        Takes::Value("SIZE"),
        "0",
        "Maximum bytes a second for moving a file (100M); 0: no limit.",
        |raw, typed| raw.relocate_speed.give(typed, NonZeroU64::new(values::size(typed.text()?)?.0)),
    ),
    option(
        &["require"],
        Takes::Choice(&["same", "directory", "mountpoint"]),
        "same",
        "Refuse branches that are not mount points, so that nothing is written below an unmounted disk: \"mountpoint\" refuses all of them, \"same\" those that were mount points when a pool last used them, \"directory\" none.",
        |raw, typed| {
            let require = match typed.raw().as_encoded_bytes() {
                b"mountpoint" => Require::MountPoint,
                b"directory" => Require::Directory,
                _ => Require::Same,
            };
            raw.require.give(typed, require)
        },
    ),
    option(
        &["branches-timeout"],
        Takes::Value("SECONDS"),
        "0",
        "How long to wait at mount for branches that do not exist yet, or are not mounted as require= demands.",
        |raw, typed| raw.branches_timeout.give(typed, typed.seconds()?),
    ),
];

/// How bytes and answers move.
pub(super) const DATA: &[Row] = &[
    option(
        &["write-path"],
        Takes::Choice(&["auto", "passthrough", "stacked"]),
        "auto",
        "How bytes reach a branch: by the kernel, through the daemon, or the best that each file allows.",
        |raw, typed| {
            let path = match typed.text()? {
                "passthrough" => WritePath::Passthrough,
                "stacked" => WritePath::Stacked,
                _ => WritePath::Auto,
            };
            raw.write_path.give(typed, path)
        },
    ),
    option(
        &["write-rules"],
        Takes::Value("/DIR=PATH[:/DIR=PATH]"),
        "",
        "Directories whose files have their own write path, such as /scratch=stacked; the innermost rule applies.",
        |raw, typed| raw.write_rules.give(typed, values::write_rules(typed.text()?)?),
    ),
    option(
        &["page-cache"],
        Takes::Choice(&["off", "on", "writeback"]),
        "off",
        "Whether the FUSE layer caches stacked files above the branch's own cache; \"writeback\" excludes passthrough.",
        |raw, typed| {
            let cache = match typed.text()? {
                "on" => PageCache::On,
                "writeback" => PageCache::Writeback,
                _ => PageCache::Off,
            };
            raw.page_cache.give(typed, cache)
        },
    ),
    option(
        &["passthrough-headroom"],
        Takes::Value("SIZE"),
        values::DEFAULT_HEADROOM,
        "With write-path=auto, files on a branch with less free space than this are written by the daemon.",
        |raw, typed| raw.passthrough_headroom.give(typed, values::size(typed.text()?)?),
    ),
    option(
        &["attr-timeout", "cache.attr"],
        Takes::Value("SECONDS"),
        "1",
        "How long the kernel may cache attributes; matters only for out-of-band changes.",
        |raw, typed| raw.attr_timeout.give(typed, typed.seconds()?),
    ),
    option(
        &["entry-timeout", "cache.entry"],
        Takes::Value("SECONDS"),
        "1",
        "How long the kernel may cache a name that exists.",
        |raw, typed| raw.entry_timeout.give(typed, typed.seconds()?),
    ),
    option(
        &["negative-timeout", "cache.negative-entry", "negative-entry"],
        Takes::Value("SECONDS"),
        "0",
        "How long the kernel may cache that a name does not exist.",
        |raw, typed| raw.negative_timeout.give(typed, typed.seconds()?),
    ),
    option(
        &["out-of-band"],
        Takes::Choice(&["watch", "timeout", "never"]),
        "timeout",
        "How changes made on the branches directly are noticed: at once (fanotify), after the timeouts, or never, because there are none.",
        |raw, typed| {
            let how = match typed.text()? {
                "watch" => OutOfBand::Watch,
                "never" => OutOfBand::Never,
                _ => OutOfBand::Timeout,
            };
            raw.out_of_band.give(typed, how)
        },
    ),
    option(
        &["branch-timeout"],
        Takes::Value("SECONDS"),
        "10",
        "How long a call may stay inside a FUSE or network branch before its caller gets EIO; from then on calls get EIO at once until the branch answers. 0: no limit.",
        |raw, typed| raw.branch_timeout.give(typed, typed.seconds()?),
    ),
    option(
        &["branch-inflight"],
        Takes::Value("COUNT"),
        "24",
        "Maximum concurrent calls into one FUSE or network branch (1 to 64, below max-threads), so that a hung branch cannot take every thread; a small max-threads lowers the default.",
        |raw, typed| raw.branch_inflight.give(typed, values::inflight(typed.text()?)?),
    ),
    option(
        &["degraded"],
        Takes::Choice(&["strict", "read"]),
        "strict",
        "While a branch is out of reach: \"strict\" answers EIO for every name that may be on it, \"read\" shows the reachable branches as if they were all.",
        |raw, typed| {
            let degraded = if typed.raw() == "read" { Degraded::Read } else { Degraded::Strict };
            raw.degraded.give(typed, degraded)
        },
    ),
    option(
        &["transport"],
        Takes::Choice(&["auto", "ring", "dev"]),
        "auto",
        "How requests come from the kernel: over io_uring (\"ring\" sets the kernel's enable_uring) or /dev/fuse; \"auto\" uses io_uring where enable_uring is set.",
        |raw, typed| {
            let transport = match typed.text()? {
                "ring" => Transport::Ring,
                "dev" => Transport::Dev,
                _ => Transport::Auto,
            };
            raw.transport.give(typed, transport)
        },
    ),
    option(
        &["door-scheduling"],
        Takes::Choice(&["auto", "idle", "nice", "plain"]),
        "auto",
        "How the worker threads are scheduled: \"idle\" keeps callers on their CPU if the daemon has its own scheduling group; \"auto\" detects one (cpu cgroup or session).",
        |raw, typed| {
            let scheduling = match typed.text()? {
                "idle" => TransportScheduling::Idle,
                "nice" => TransportScheduling::Nice,
                "plain" => TransportScheduling::Plain,
                _ => TransportScheduling::Auto,
            };
            raw.transport_scheduling.give(typed, scheduling)
        },
    ),
    option(
        &["max-threads"],
        Takes::Value("COUNT"),
        "64",
        "Maximum worker threads. One or two a CPU start with the daemon, more while all are inside a branch. The io_uring transport always needs one for each possible CPU.",
        |raw, typed| raw.max_threads.give(typed, values::threads(typed.text()?)?),
    ),
    option(
        &["max-write"],
        Takes::Value("SIZE"),
        values::DEFAULT_MAX_WRITE,
        "Largest request, from 4K to 64M; the kernel may lower it.",
        |raw, typed| raw.max_write.give(typed, values::max_write(typed.text()?)?),
    ),
];

/// Options of the pool's appearance to programs.
pub(super) const VIEW: &[Row] = &[
    option(
        &["statfs"],
        Takes::Choice(&["all", "as-placed", "base"]),
        "all",
        "Whether free space counts every branch, or only branches that take new files; mergerfs's \"base\" is \"all\", its \"full\" (only branches that hold the path) is refused.",
        |raw, typed| {
            let view = match typed.text()? {
                "as-placed" => StatfsView::AsPlaced,
                _ => StatfsView::All,
            };
            raw.statfs.give(typed, view)
        },
    ),
    option(
        &["locks"],
        Takes::Choice(&["local", "branch"]),
        "local",
        "Whether flock and POSIX locks hold within this mount only, or are also taken on the branch, visible to other users of it.",
        |raw, typed| {
            let locks = if typed.raw() == "branch" { Locks::Branch } else { Locks::Local };
            raw.locks.give(typed, locks)
        },
    ),
    option(
        &["nfs-export"],
        Takes::Switch,
        "false",
        "Let an NFS server export the pool: file handles stay valid over restarts of server and pool.",
        |raw, typed| raw.nfs_export.give(typed, typed.switch()?),
    ),
    option(
        &["nfs-identity"],
        Takes::Value("UUID"),
        "",
        "For nfs-ganesha: mount the pool as a block device with this UUID (fuseblk on a small loop device), so that the server's handles survive remounts; with nfs-export.",
        |raw, typed| raw.nfs_identity.give(typed, typed.text()?.parse()?),
    ),
    option(
        &["allow_other"],
        Takes::Switch,
        "true for root",
        "Let users other than the mounting one enter.",
        |raw, typed| raw.allow_other.give(typed, typed.switch()?),
    ),
    option(
        &["default_permissions", "kernel-permissions-check"],
        Takes::Switch,
        "true",
        "Let the kernel check owner, mode and ACLs; cannot be off with allow_other.",
        |raw, typed| raw.default_permissions.give(typed, typed.switch()?),
    ),
    option(
        &["fsname"],
        Takes::Value("TEXT"),
        "SOURCE as typed",
        "Source that mount(8) and df(1) show.",
        |raw, typed| raw.fsname.give(typed, typed.raw().to_owned()),
    ),
    option(
        &["subtype"],
        Takes::Value("NAME"),
        "fsstack",
        "Type that mount(8) shows after \"fuse.\".",
        |raw, typed| raw.subtype.give(typed, values::subtype(typed.text()?)?),
    ),
];

/// How the daemon starts, stays and talks.
pub(super) const RUNNING: &[Row] = &[
    option(
        &["config"],
        Takes::Value("FILE"),
        "",
        "TOML file with these options, name = value; options after -o override it.",
        |raw, typed| {
            raw.config.push(typed.absolute_path()?);
            Ok(())
        },
    ),
    option(
        &["state-dir"],
        Takes::Value("DIRECTORY"),
        "/var/lib/fsstack",
        "Directory for the pool's index of moved files, in a folder named after the pool's id; a lost index is rebuilt.",
        |raw, typed| raw.state_dir.give(typed, typed.absolute_path()?),
    ),
    option(
        &["metrics"],
        Takes::Value("[ADDR:]PORT"),
        "",
        "Serve the pool's metrics (OpenMetrics) by HTTP at this port, on 127.0.0.1 unless an address is given; the control socket always serves them.",
        |raw, typed| raw.metrics.give(typed, values::metrics(typed.text()?)?),
    ),
    option(
        &["nonempty"],
        Takes::Switch,
        "false",
        "Mount over a directory that is not empty.",
        |raw, typed| raw.nonempty.give(typed, typed.switch()?),
    ),
    option(
        &["foreground"],
        Takes::Switch,
        "false",
        "Stay in the foreground and log to stderr.",
        |raw, typed| {
            let run_in = if typed.switch()? { RunIn::Foreground } else { RunIn::Background };
            raw.run_in.give(typed, run_in)
        },
    ),
    option(
        &["seccomp"],
        Takes::Choice(&["on", "kill", "log", "off"]),
        "on",
        "What happens at a system call outside the daemon's list: \"on\" fails it, \"kill\" ends the daemon, \"log\" allows it; on and log write to the kernel's audit log.",
        |raw, typed| {
            let seccomp = match typed.text()? {
                "kill" => Seccomp::Kill,
                "log" => Seccomp::Log,
                "off" => Seccomp::Off,
                _ => Seccomp::On,
            };
            raw.seccomp.give(typed, seccomp)
        },
    ),
    option(
        &["log", "logfile", "log.file"],
        Takes::Value("syslog|stderr|FILE"),
        "syslog; stderr with foreground",
        "Destination of the daemon's log.",
        |raw, typed| raw.log.give(typed, values::log_target(typed)?),
    ),
    option(
        &["log-level", "loglevel"],
        Takes::Value("error|warn|info|debug|trace"),
        "info",
        "Least severe level that is logged; SIGUSR1 and SIGUSR2 raise and lower it. mhddfs's 0 to 2 are debug to warn.",
        |raw, typed| raw.log_level.give(typed, values::log_level(typed.text()?)?),
    ),
];
