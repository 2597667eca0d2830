//! Leaves free text out of the options of a mount.

/// Options whose values are figures or words of the file system, never a name, a path, a host or a user.
const SHOWN: &[&str] = &[
    "acdirmax",
    "acdirmin",
    "acregmax",
    "acregmin",
    "acl",
    "actimeo",
    "allocsize",
    "allow_other",
    "async",
    "atime",
    "attr2",
    "barrier",
    "bigtime",
    "blksize",
    "bsize",
    "cache",
    "case",
    "commit",
    "compress",
    "compress-force",
    "compression",
    "cto",
    "data",
    "default_permissions",
    "delalloc",
    "diratime",
    "dirsync",
    "discard",
    "echo_interval",
    "errors",
    "fatal_neterrors",
    "fsc",
    "fuse",
    "gid",
    "group_id",
    "grpid",
    "hard",
    "huge",
    "index",
    "inode32",
    "inode64",
    "intr",
    "ikeep",
    "journal_checksum",
    "largeio",
    "lazytime",
    "local_lock",
    "lock",
    "logbsize",
    "logbufs",
    "lookupcache",
    "max_read",
    "max_threads",
    "metacopy",
    "minorversion",
    "mode",
    "mountproto",
    "mountvers",
    "namlen",
    "nconnect",
    "noac",
    "noacl",
    "noatime",
    "nobarrier",
    "nocto",
    "nodelalloc",
    "nodev",
    "nodiratime",
    "nodiscard",
    "noexec",
    "nofail",
    "nointr",
    "nolock",
    "noquota",
    "norecovery",
    "noresvport",
    "nosharecache",
    "nosuid",
    "nosymfollow",
    "nouuid",
    "nr_inodes",
    "nodatacow",
    "nodatasum",
    "posix",
    "port",
    "prjquota",
    "proto",
    "quota",
    "rdirplus",
    "redirect_dir",
    "relatime",
    "resvport",
    "retrans",
    "ro",
    "rsize",
    "rw",
    "sec",
    "size",
    "soft",
    "softerr",
    "softreval",
    "space_cache",
    "ssd",
    "stripe",
    "strictatime",
    "subvolid",
    "sunit",
    "swidth",
    "sync",
    "timeo",
    "uid",
    "usrquota",
    "user_id",
    "userxattr",
    "uuid",
    "vers",
    "volatile",
    "wsize",
    "wsync",
    "xattr",
    "xino",
];
/// Subtypes of FUSE that are programs' own.
const SUBTYPES: &[&str] = &["fsstack", "glusterfs", "mergerfs", "rclone", "s3fs", "sshfs"];
const LEFT_OUT: &str = "<...>";

/// A comma-separated list in which values of other keys are left out. Words that may be a part of a value, as a comma
/// in it ends it, are left out too.
pub(super) fn masked(options: &str) -> String {
    let shown = |option: &str| match option.split_once('=') {
        Some((key, value)) if SHOWN.contains(&key) && is_plain(value) => option.to_owned(),
        Some((key, _)) if is_key(key) => format!("{key}={LEFT_OUT}"),
        None if SHOWN.contains(&option) => option.to_owned(),
        _ => LEFT_OUT.to_owned(),
    };
    options.split(',').map(shown).collect::<Vec<_>>().join(",")
}

/// The type of a file system. What FUSE file systems add to it is free text.
pub(super) fn kind(fs_type: &str) -> String {
    match fs_type.split_once('.') {
        Some((kind, subtype)) if !SUBTYPES.contains(&subtype) => format!("{kind}.{LEFT_OUT}"),
        _ => fs_type.to_owned(),
    }
}

fn is_plain(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte))
}

/// Whether a word is one of a file system's own keys, as far as its form tells.
fn is_key(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_+-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_text_of_mounts_is_left_out() {
        for (options, shown) in [
            (
                "rw,relatime,inode64,logbufs=8,logbsize=32k,noquota",
                "rw,relatime,inode64,logbufs=8,logbsize=32k,noquota",
            ),
            (
                "rw,lowerdir=secret:secret-b,upperdir=up,index=off",
                "rw,lowerdir=<...>,upperdir=<...>,index=off",
            ),
            (
                "rw,vers=3.1.1,username=secret,domain=SECRET,addr=10.0.0.7",
                "rw,vers=3.1.1,username=<...>,domain=<...>,addr=<...>",
            ),
            (
                "rw,hard,proto=tcp,timeo=600,clientaddr=fd00::7",
                "rw,hard,proto=tcp,timeo=600,clientaddr=<...>",
            ),
            ("subvolid=256,subvol=/secret,Secret Name=x,a secret", "subvolid=256,subvol=<...>,<...>,<...>"),
            ("data=/secret", "data=<...>"),
        ] {
            assert_eq!(masked(options), shown);
        }
        assert_eq!(["ext4", "fuse.sshfs", "fuse.secret"].map(kind), ["ext4", "fuse.sshfs", "fuse.<...>"]);
    }
}
