//! Options of mount(8): mount flags, and options that fstab's readers have handled before the helper runs.

use super::{Row, Takes, option, quiet};
use crate::settings::AccessTimes;

/// Flags of the mount.
pub(super) const FLAGS: &[Row] = &[
    option(&["ro"], Takes::Nothing, "", "Nothing can be changed through this mount.", |raw, typed| {
        raw.flags.read_only.set(typed);
        Ok(())
    }),
    option(
        &["rw"],
        Takes::Nothing,
        "the default",
        "The opposite of ro; mount(8) always passes one of the two, so rw does not undo a config file's ro.",
        |raw, typed| {
            raw.flags.read_only.undo(typed);
            Ok(())
        },
    ),
    option(
        &["noatime"],
        Takes::Nothing,
        "",
        "Reading does not change access times; by passthrough the branches' own mounts decide.",
        |raw, _| {
            raw.flags.access_times = AccessTimes::Never;
            Ok(())
        },
    ),
    option(
        &["relatime", "atime"],
        Takes::Nothing,
        "the default",
        "Access times change as the branches' own mounts say.",
        |raw, _| {
            raw.flags.access_times = AccessTimes::Relative;
            Ok(())
        },
    ),
    option(
        &["strictatime"],
        Takes::Nothing,
        "",
        "Accepted: access times change as the branches' own mounts say.",
        |raw, _| {
            raw.flags.access_times = AccessTimes::Strict;
            Ok(())
        },
    ),
    option(
        &["nodiratime"],
        Takes::Nothing,
        "",
        "Listing does not change a directory's access time.",
        |raw, _| {
            raw.flags.directory_access_times = false;
            Ok(())
        },
    ),
    option(&["diratime"], Takes::Nothing, "the default", "The opposite of nodiratime.", |raw, _| {
        raw.flags.directory_access_times = true;
        Ok(())
    }),
    option(
        &["suid"],
        Takes::Nothing,
        "the default for root",
        "Set-uid and set-gid programs work as such.",
        |raw, typed| {
            raw.flags.no_suid.undo(typed);
            Ok(())
        },
    ),
    option(
        &["nosuid"],
        Takes::Nothing,
        "",
        "Set-uid and set-gid programs run as any other.",
        |raw, typed| {
            raw.flags.no_suid.set(typed);
            Ok(())
        },
    ),
    option(&["dev"], Takes::Nothing, "the default for root", "Device nodes work as such.", |raw, typed| {
        raw.flags.no_devices.undo(typed);
        Ok(())
    }),
    option(&["nodev"], Takes::Nothing, "", "Device nodes cannot be opened.", |raw, typed| {
        raw.flags.no_devices.set(typed);
        Ok(())
    }),
    option(&["exec"], Takes::Nothing, "the default", "Programs can be run.", |raw, _| {
        raw.flags.execute = true;
        Ok(())
    }),
    option(&["noexec"], Takes::Nothing, "", "No program can be run.", |raw, _| {
        raw.flags.execute = false;
        Ok(())
    }),
    option(
        &["sync"],
        Takes::Nothing,
        "",
        "Writing and changes of directories wait for the disk; files are written by the stacked path.",
        |raw, _| {
            raw.flags.synchronous = true;
            Ok(())
        },
    ),
    option(&["async"], Takes::Nothing, "the default", "The opposite of sync.", |raw, _| {
        raw.flags.synchronous = false;
        Ok(())
    }),
    option(
        &["dirsync"],
        Takes::Nothing,
        "",
        "Changes of directories wait for the disk. A remount adds it, and does not take it away.",
        |raw, _| {
            raw.flags.synchronous_directories = true;
            Ok(())
        },
    ),
];

/// Accepted silently.
pub(super) const QUIET: &[Row] = &[
    quiet(&["remount"], "Change a mounted pool: options that `fsstack set` can change, and the flags above."),
    quiet(&["defaults"], "No option."),
    quiet(&["auto", "noauto"], "Whether \"mount -a\" mounts it."),
    quiet(&["nofail"], "Whether booting continues without it."),
    quiet(&["_netdev"], "Whether booting waits for the network."),
    quiet(
        &["user", "users", "nouser", "owner", "group", "nogroup", "noowner"],
        "Which users besides root may mount it.",
    ),
    quiet(&["x-*"], "Read by systemd, mount(8) and others."),
    quiet(&["comment"], "For people."),
    quiet(&["helper", "uhelper"], "Which program unmounts it."),
    quiet(&["silent", "loud"], "Whether the kernel logs while mounting."),
    quiet(
        &["mand", "nomand", "lazytime", "nolazytime", "iversion", "noiversion"],
        "Flags of other file systems.",
    ),
];
