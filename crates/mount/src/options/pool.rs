//! fsstack's own options, with the other spellings that mean the same.

use super::{Row, Takes, option};
use crate::settings::{
    Degraded, DoorScheduling, Locks, OutOfBand, PageCache, Require, Seccomp, StatfsView, Stay, Transport,
    Verify, WritePath,
};
use crate::values;
use std::num::NonZeroU64;

/// Which branches there are, and where new files go.
pub(super) const PLACEMENT: &[Row] = &[
    option(
        &["create", "category.create", "func.create", "func.mkdir", "func.mknod", "func.symlink"],
        Takes::Value("POLICY"),
        values::DEFAULT_CREATE,
        "How branches are ranked for new files; \"epmfs>mfs\" goes on where the first has none left, a last \"any\" also takes branches under their floor.",
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
        "Free space (4G, 5%) that new files leave on a branch, but for a last \"any\" in create=; a floor in SOURCE goes before it.",
        |raw, typed| raw.floor.give(typed, values::floor(typed.text()?)?),
    ),
    option(
        &["mlimit"],
        Takes::Value("SIZE"),
        "",
        "As in mhddfs: the first branch with this much free space (4G, 5%), else the roomiest; stands for create= and minfreespace= together.",
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
        "Whether a file is moved when a write by the daemon finds its branch full, and how the branches that hold all of it and their floor are ranked; \"on\" is mfs, the roomiest first.",
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
        "How much of a file is moved in a second at most (100M); 0: as fast as it goes.",
        |raw, typed| raw.relocate_speed.give(typed, NonZeroU64::new(values::size(typed.text()?)?.0)),
    ),
    option(
        &["require"],
        Takes::Choice(&["same", "directory", "mountpoint"]),
        "same",
        "Refuse a branch that is not itself a mount point, so that an unmounted disk is not written beneath: with \"mountpoint\" any, with \"same\" one that was a mount point when a pool was last served from it (so not at its first mount, nor a directory inside of a mount), with \"directory\" none.",
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
        "How long to wait for branches that are not there yet, or not mounted where require= asks for that.",
        |raw, typed| raw.branches_timeout.give(typed, typed.seconds()?),
    ),
];

/// How bytes and answers move.
pub(super) const DATA: &[Row] = &[
    option(
        &["write-path"],
        Takes::Choice(&["auto", "passthrough", "stacked"]),
        "auto",
        "How bytes reach a branch: through the kernel, through the daemon, or the best that each file allows.",
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
        "Directories whose files have a write path of their own, as /scratch=stacked; the innermost holds.",
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
        "How long the kernel may keep attributes; matters only for changes made behind the pool's back.",
        |raw, typed| raw.attr_timeout.give(typed, typed.seconds()?),
    ),
    option(
        &["entry-timeout", "cache.entry"],
        Takes::Value("SECONDS"),
        "1",
        "How long the kernel may keep a name it found.",
        |raw, typed| raw.entry_timeout.give(typed, typed.seconds()?),
    ),
    option(
        &["negative-timeout", "cache.negative-entry", "negative-entry"],
        Takes::Value("SECONDS"),
        "0",
        "How long the kernel may keep that a name is missing.",
        |raw, typed| raw.negative_timeout.give(typed, typed.seconds()?),
    ),
    option(
        &["out-of-band"],
        Takes::Choice(&["watch", "timeout", "never"]),
        "timeout",
        "How changes made on the branches past the pool are noticed: at once, after the timeouts, or there are none.",
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
        "How long a call may stay inside a FUSE or network branch before its caller is told EIO, and others at once until the branch answers again; 0: for ever.",
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
        "What is told while a branch is out of reach: EIO for all that might be on it, or what can be reached as if it were all.",
        |raw, typed| {
            let degraded = if typed.raw() == "read" { Degraded::Read } else { Degraded::Strict };
            raw.degraded.give(typed, degraded)
        },
    ),
    option(
        &["transport"],
        Takes::Choice(&["auto", "ring", "dev"]),
        "auto",
        "How requests come from the kernel: over io_uring (\"ring\" switches the kernel's enable_uring on), or by /dev/fuse; \"auto\" takes the ring where it is switched on.",
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
        "How the threads that answer the kernel are scheduled: \"idle\" keeps callers on their CPU where the daemon has a scheduling group of its own; \"auto\" looks whether it has one, by cpu cgroup or session.",
        |raw, typed| {
            let scheduling = match typed.text()? {
                "idle" => DoorScheduling::Idle,
                "nice" => DoorScheduling::Nice,
                "plain" => DoorScheduling::Plain,
                _ => DoorScheduling::Auto,
            };
            raw.door_scheduling.give(typed, scheduling)
        },
    ),
    option(
        &["max-threads"],
        Takes::Value("COUNT"),
        "64",
        "The most threads that are at work for the kernel at once: one or two a CPU wait from the start, more come while all are inside a branch. The io_uring transport needs one for each possible CPU, whatever this says.",
        |raw, typed| raw.max_threads.give(typed, values::threads(typed.text()?)?),
    ),
    option(
        &["max-write"],
        Takes::Value("SIZE"),
        values::DEFAULT_MAX_WRITE,
        "The largest request, from 4K to 64M; the kernel may lower it.",
        |raw, typed| raw.max_write.give(typed, values::max_write(typed.text()?)?),
    ),
];

/// What programs in the pool are shown.
pub(super) const VIEW: &[Row] = &[
    option(
        &["statfs"],
        Takes::Choice(&["all", "as-placed", "base"]),
        "all",
        "Whether free space counts every branch, or only what new files can be placed on; mergerfs's \"base\" is \"all\", its \"full\" (only branches that hold the path) is refused.",
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
        "Whether flock and POSIX locks hold within this mount, or are also taken on the branch for others to see.",
        |raw, typed| {
            let locks = if typed.raw() == "branch" { Locks::Branch } else { Locks::Local };
            raw.locks.give(typed, locks)
        },
    ),
    option(
        &["nfs-export"],
        Takes::Switch,
        "false",
        "Let an NFS server export the pool: its file handles stay good over restarts of server and pool.",
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
        "Whether other users than the one who mounts may enter.",
        |raw, typed| raw.allow_other.give(typed, typed.switch()?),
    ),
    option(
        &["default_permissions", "kernel-permissions-check"],
        Takes::Switch,
        "true",
        "Whether the kernel checks owner, mode and ACLs; cannot be off where other users may enter.",
        |raw, typed| raw.default_permissions.give(typed, typed.switch()?),
    ),
    option(
        &["fsname"],
        Takes::Value("TEXT"),
        "SOURCE as typed",
        "What mount(8) and df(1) show as the source.",
        |raw, typed| raw.fsname.give(typed, typed.raw().to_owned()),
    ),
    option(
        &["subtype"],
        Takes::Value("NAME"),
        "fsstack",
        "What stands behind \"fuse.\" in the type that mount(8) shows.",
        |raw, typed| raw.subtype.give(typed, values::subtype(typed.text()?)?),
    ),
];

/// How the daemon starts, stays and talks.
pub(super) const RUNNING: &[Row] = &[
    option(
        &["config"],
        Takes::Value("FILE"),
        "",
        "A TOML file of these same options, name = value; what stands behind -o goes before it.",
        |raw, typed| {
            raw.config.push(typed.absolute_path()?);
            Ok(())
        },
    ),
    option(
        &["state-dir"],
        Takes::Value("DIRECTORY"),
        "/var/lib/fsstack",
        "Where the pool keeps its index of moved files, in a folder named after its id; it is made anew when it is lost.",
        |raw, typed| raw.state_dir.give(typed, typed.absolute_path()?),
    ),
    option(
        &["metrics"],
        Takes::Value("[ADDR:]PORT"),
        "",
        "Serve the pool's figures in OpenMetrics by HTTP at this port, on 127.0.0.1 unless an address is given; always at the pool's socket.",
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
            let stay = if typed.switch()? { Stay::Foreground } else { Stay::Background };
            raw.stay.give(typed, stay)
        },
    ),
    option(
        &["seccomp"],
        Takes::Choice(&["on", "kill", "log", "off"]),
        "on",
        "What a system call that the daemon is not known to make does: \"on\" fails, \"kill\" ends the daemon, \"log\" is made; on and log tell the kernel's audit log.",
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
        "Where the daemon's messages go.",
        |raw, typed| raw.log.give(typed, values::log_target(typed)?),
    ),
    option(
        &["log-level", "loglevel"],
        Takes::Value("error|warn|info|debug|trace"),
        "info",
        "The least severe message that is logged; SIGUSR1 and SIGUSR2 raise and lower it. mhddfs's 0 to 2 are debug to warn.",
        |raw, typed| raw.log_level.give(typed, values::log_level(typed.text()?)?),
    ),
];
