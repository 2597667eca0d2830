//! Options of mhddfs, mergerfs and libfuse in fstab lines: accepted, ignored, or refused by name.

use super::{Row, Takes, no_meaning, only, option, refused};
use crate::values;
use fsstack_pool::settings::PageCache;

const BOOLEAN: Takes = Takes::Value("true|false");

/// Options with an equivalent under another name.
pub(super) const MEANT: &[Row] = &[
    option(
        &["cache.files"],
        Takes::Choice(&["off", "partial", "full", "auto-full", "libfuse", "per-process"]),
        "off",
        "\"off\" is page-cache=off, all others are page-cache=on.",
        |raw, typed| {
            let is_off = typed.raw() == "off";
            raw.cache_files = Some(if is_off { PageCache::Off } else { PageCache::On });
            if !is_off {
                let whose =
                    if typed.raw() == "per-process" { " for every process, not only for some" } else { "" };
                raw.notice(format!(
                    "{typed}: is page-cache=on{whose}; leave it out, and no second copy of data is kept in memory"
                ));
            }
            Ok(())
        },
    ),
    option(&["cache.writeback"], BOOLEAN, "false", "\"true\" is page-cache=writeback.", |raw, typed| {
        typed.by_switch(&mut raw.cache_writeback)
    }),
    option(
        &["passthrough.io", "passthrough"],
        Takes::Choice(&["off", "rw"]),
        "",
        "\"off\" is write-path=stacked, \"rw\" is write-path=auto; \"ro\" and \"wo\" are refused, because all openers of a file share one write path.",
        |raw, typed| {
            let path = if typed.raw() == "off" { "stacked" } else { "auto" };
            raw.take_as("write-path", path, typed)
        },
    ),
    option(
        &["threads", "read-thread-count"],
        Takes::Value("COUNT"),
        "0",
        "A positive count is max-threads; 0 and negative counts leave it to fsstack.",
        |raw, typed| match typed.text()?.parse::<i32>() {
            Ok(count) if 0 < count => raw.take_as("max-threads", typed.text()?, typed),
            Ok(_) => Ok(()),
            Err(_) => Err("not a whole number".to_owned()),
        },
    ),
    option(
        &["fuse-msg-size"],
        Takes::Value("SIZE|PAGES"),
        "1M",
        "max-write; without a unit, in pages.",
        |raw, typed| raw.take_as("max-write", &values::message_size(typed.text()?), typed),
    ),
    option(
        &["branches-mount-timeout"],
        Takes::Value("SECONDS"),
        "0",
        "branches-timeout that also waits for branches to be on another file system than the mount point. After it, missing branches are refused.",
        |raw, typed| {
            raw.take_as("branches-timeout", typed.text()?, typed)?;
            raw.waits_elsewhere = true;
            Ok(())
        },
    ),
    option(
        &["branches-mount-timeout-fail"],
        BOOLEAN,
        "false",
        "\"true\" refuses branches that are on the mount point's file system after that time.",
        |raw, typed| typed.by_switch(&mut raw.must_be_elsewhere),
    ),
    option(
        &["statfs-ignore"],
        Takes::Choice(&["none", "ro", "nc"]),
        "none",
        "\"ro\" is statfs=ignore-ro, \"nc\" is statfs=ignore-nc.",
        |raw, typed| match typed.text()? {
            "none" => Ok(()),
            ignored => raw.take_as("statfs", &format!("ignore-{ignored}"), typed),
        },
    ),
    option(&["debug"], Takes::Switch, "false", "log-level=debug.", |raw, typed| {
        if typed.switch()? { raw.take_as("log-level", "debug", typed) } else { Ok(()) }
    }),
];

/// Options without effect here; the notice gives the reason.
pub(super) const NO_MEANING: &[Row] = &[
    no_meaning(
        &["big_writes", "large_read", "max_read", "max_readahead"],
        "requests are as large as the kernel allows",
    ),
    no_meaning(&["hard_remove"], "an open file that is removed keeps working without a hidden name"),
    no_meaning(&["use_ino", "readdir_ino"], "inode numbers are always stable and the same for hard links"),
    no_meaning(&["intr", "nointr"], "waiting for a lock can always be interrupted"),
    no_meaning(&["direct_io"], "page-cache=off, the default, is what it meant"),
    no_meaning(
        &["kernel_cache", "auto_cache", "noauto_cache", "ac_attr_timeout", "cache.open"],
        "page-cache=on is the option for caching",
    ),
    no_meaning(
        &[
            "splice_read",
            "splice_write",
            "splice_move",
            "no_splice_read",
            "no_splice_write",
            "no_splice_move",
            "pipe-max-size",
        ],
        "passthrough replaces splicing: data stays inside the kernel",
    ),
    no_meaning(
        &["atomic_o_trunc", "async_read", "sync_read", "parallel-direct-writes", "direct-io-allow-mmap"],
        "always as fast as the kernel allows",
    ),
    no_meaning(&["max_background", "congestion_threshold"], "requests in flight are bounded by branch"),
    no_meaning(
        &["noforget", "remember", "remember-nodes", "never-forget-nodes"],
        "inode numbers do not depend on memory; to export the pool by NFS use nfs-export",
    ),
    no_meaning(&["auto_unmount"], "the daemon unmounts when it gets SIGTERM"),
    no_meaning(
        &["dropcacheonclose"],
        "with page-cache=off, the default, there is no second cache to drop; what page-cache=on keeps goes when memory is short",
    ),
    no_meaning(&["ignorepponrename"], "rename and link always keep a file on its branch"),
    no_meaning(
        &["link-exdev", "rename-exdev"],
        "rename and link keep a file on its branch: EXDEV only if that cannot be given the directory",
    ),
    no_meaning(&["cache.statfs"], "branches are asked for their space at most once a second"),
    no_meaning(&["cache.symlinks"], "the kernel always caches symbolic links"),
    no_meaning(&["cache.readdir", "func.readdir"], "listings come from all branches as they are"),
    no_meaning(&["cache.files.process-names"], "caching is for every process"),
    no_meaning(
        &["posix-acl", "acl", "noacl", "user_xattr"],
        "ACLs and xattrs are always on where the branch has them",
    ),
    no_meaning(
        &["handle-killpriv", "handle-killpriv-v2", "security-capability"],
        "set-uid bits and capabilities are always stripped as a native file system does",
    ),
    no_meaning(
        &[
            "process-thread-count",
            "process-thread-queue-depth",
            "pin-threads",
            "scheduling-priority",
            "flush-on-close",
        ],
        "fsstack places its own threads and knows when a flush is needed",
    ),
    no_meaning(&["passthrough.max-stack-depth"], "always 1, so that the pool can lie on FUSE branches"),
    no_meaning(
        &["gid-cache.expire-timeout", "gid-cache.remove-timeout"],
        "the kernel sends the caller's groups",
    ),
    no_meaning(&["readahead"], "set it on the branches' own devices"),
    no_meaning(&["proxy-ioprio"], "passthrough keeps the caller's I/O priority by itself"),
    no_meaning(&["log.metrics"], "metrics= serves metrics, and fsstack metrics prints them"),
];

const SEARCH: &str = "the first branch in order that holds a name always serves it";
const ACTION: &str = "a change is always made on every branch that needs it";

/// Options of which fsstack supports one value only.
pub(super) const ONLY: &[Row] = &[
    only(
        &["category.search", "func.access", "func.getxattr", "func.listxattr", "func.open", "func.readlink"],
        &["ff"],
        SEARCH,
    ),
    // "newest" is in mergerfs's own quick start.
    only(
        &["func.getattr"],
        &["ff", "newest"],
        "a directory always shows the newest times of its copies, and a file is the first branch's that holds it",
    ),
    only(
        &[
            "category.action",
            "func.chmod",
            "func.chown",
            "func.link",
            "func.removexattr",
            "func.rename",
            "func.rmdir",
            "func.setxattr",
            "func.truncate",
            "func.unlink",
            "func.utimens",
        ],
        &["epall", "all"],
        ACTION,
    ),
    only(
        &["inodecalc"],
        &["passthrough", "path-hash", "devino-hash", "hybrid-hash"],
        "inode numbers are always stable, and always have 64 bits, as they name the branch too: a program of 32 bits without large-file support gets EOVERFLOW from stat",
    ),
    only(&["symlinkify"], &["false"], "files are shown as what they are"),
    only(&["link-cow"], &["false"], "hard links stay linked"),
    only(&["nullrw"], &["false"], "what is written is kept"),
    only(&["follow-symlinks"], &["never"], "symbolic links are not followed"),
    only(&["nfsopenhack"], &["off"], "not needed; see nfs-export"),
    no_meaning(&["export-support"], "use nfs-export"),
    only(
        &["lazy-umount-mountpoint"],
        &["false"],
        "a live pool is never unmounted under its users; run umount(8) first",
    ),
];

/// Options that would change behaviour that users rely on.
pub(super) const REFUSED: &[Row] = &[
    refused(&["bind", "rbind", "move"], "mount(8)", "it is for mount(8) alone, without a type"),
    refused(&["branches", "srcmounts"], "mergerfs", "give the branches as SOURCE before the mount point"),
    refused(&["mount", "mountpoint"], "mergerfs", "give the mount point as TARGET after SOURCE"),
    refused(&["symlinkify-timeout"], "mergerfs", "files are shown as what they are"),
    refused(&["pid", "version"], "mergerfs", "it can only be read, not set"),
    refused(
        &["uid", "gid", "umask"],
        "libfuse",
        "files keep the owners and modes that they have on the branches; leave it out, and chown or chmod them there",
    ),
    refused(
        &["allow_root"],
        "libfuse",
        "allow_other with default_permissions lets others in as any file system does",
    ),
    refused(&["fd", "rootmode", "user_id", "group_id"], "libfuse", "fsstack settles it with the kernel"),
    refused(&["modules", "subdir"], "libfuse", "libfuse modules are not supported"),
];
