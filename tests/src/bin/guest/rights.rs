//! Permissions over NFS, and the NFS 4.2 operations for sparse files, copies and attributes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};

use crate::operator;
use crate::test_bed::{CLIENTS, TestBed, attempt, forget, in_pool, say, sh};

const MIB: u64 = 1 << 20;

fn mebibyte(of: u8) -> Vec<u8> {
    vec![of; 1 << 20]
}

pub(crate) fn scenario(test_bed: &mut TestBed) {
    more_groups_than_the_protocol_has();
    no_more_than_their_groups();
    access_control_lists();
    made_by_one_alone();
    extended_attributes();
    sparse_files();
    copies();
    committed();
    operator::scenario(test_bed);
}

/// True if the user `who` can read `path`.
fn reads(who: &str, path: &str) -> bool {
    attempt(&format!("su {who} -c 'cat {path}'")).code == 0
}

/// The server looks the groups up itself (`rpc.mountd --manage-gids`).
fn more_groups_than_the_protocol_has() {
    say("24 groups");
    for gid in [2000, 2015, 2016, 2023] {
        let path = in_pool(&format!("of{gid}"));
        fs::write(&path, "secret").unwrap();
        chown(&path, Some(0), Some(gid)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        for client in CLIENTS {
            assert!(reads("many", &format!("{client}/of{gid}")), "{client}: group {gid}");
            assert!(!reads("few", &format!("{client}/of{gid}")), "{client}: a stranger to {gid}");
        }
    }
    sh("chmod 1777 /mnt/pool; cd /mnt/v4 && su many -c 'touch /mnt/v4/mine'");
    assert_eq!(fs::metadata(in_pool("mine")).unwrap().uid(), 1000);
}

/// Runs shell lines as `who` in a client's root. Returns the result of each: `0`, or its output.
fn outcomes<const N: usize>(who: &str, client: &str, lines: [&str; N]) -> [String; N] {
    let each = lines.map(|line| format!("said=$({line} 2>&1); echo $? $said; "));
    let output = sh(&format!("cd {client} && su {who} -c '{}'", each.concat()));
    let output: Vec<String> = output.lines().map(str::to_owned).collect();
    output.try_into().unwrap()
}

/// A group beyond the protocol's limit gives its rights, and no others.
fn no_more_than_their_groups() {
    say("the twentieth group, and another");
    sh("cd /mnt/pool && mkdir in2019 in3000 sticky && echo secret >of3000 && touch sticky/theirs
        chown 0:2019 in2019 && chmod 2770 in2019 && chown 0:3000 in3000 of3000 && chmod 770 in3000
        chmod 640 of3000 && chmod 1777 sticky");
    let (denied, not_permitted) = ("Permission denied", "Operation not permitted");
    for client in CLIENTS {
        let mine = format!("in2019/of-{}", client.trim_start_matches("/mnt/"));
        let [made, read, other, given, taken, others] = outcomes(
            "many",
            client,
            [
                &format!("touch {mine}"),
                "cat of3000",
                "touch in3000/mine",
                "touch given && chgrp 2019 given && stat -c %g given",
                "chgrp 3000 given",
                "rm -f sticky/theirs",
            ],
        );
        assert_eq!(made, "0", "{client}");
        let meta = fs::metadata(in_pool(&mine)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1000, 2019), "{client}");
        assert!(read.ends_with(denied) && other.ends_with(denied), "{client}: {read}; {other}");
        assert_eq!(given, "0 2019", "{client}");
        assert!(
            taken.ends_with(not_permitted) && others.ends_with(not_permitted),
            "{client}: {taken}; {others}"
        );
        let [strange] = outcomes("few", client, ["touch in2019/strange"]);
        assert!(strange.ends_with(denied), "{client}: {strange}");
        sh("rm /mnt/pool/given");
    }
    let left = sh("cd /mnt/pool && ls in2019 in3000 sticky");
    assert_eq!(
        left.split_whitespace().collect::<Vec<_>>(),
        ["in2019:", "of-v3", "of-v4", "in3000:", "sticky:", "theirs"]
    );
    assert_eq!(fs::metadata(in_pool("of3000")).unwrap().gid(), 3000);
}

/// A rule set by one client is enforced for the other.
fn access_control_lists() {
    say("access control lists");
    fs::write(in_pool("listed"), "secret").unwrap();
    fs::set_permissions(in_pool("listed"), PermissionsExt::from_mode(0o600)).unwrap();
    for client in CLIENTS {
        assert!(!reads("few", &format!("{client}/listed")), "{client}");
    }
    sh("setfacl -m u:few:r /mnt/v3/listed");
    assert!(sh("getfacl -cn /mnt/pool/listed").contains("user:1001:r--"));
    forget();
    for client in CLIENTS {
        assert!(reads("few", &format!("{client}/listed")), "{client}");
        assert!(!reads("nobody", &format!("{client}/listed")), "{client}");
    }
    sh("getfattr -n system.nfs4_acl /mnt/v4/listed");
    sh("mkdir /mnt/pool/heirs && setfacl -d -m u:few:rw /mnt/v3/heirs && touch /mnt/v4/heirs/heir");
    assert!(sh("getfacl -cn /mnt/pool/heirs/heir").contains("user:1001:rw-"));
}

/// `O_EXCL`: one of two clients makes the file, with its creation's times.
fn made_by_one_alone() {
    say("exclusive creation");
    let makes = |path: String| OpenOptions::new().write(true).create_new(true).open(path).is_ok();
    for n in 0..40 {
        let made = thread::scope(|scope| {
            let both = CLIENTS.map(|client| scope.spawn(move || makes(format!("{client}/alone{n}"))));
            both.map(|one| u32::from(one.join().unwrap())).iter().sum::<u32>()
        });
        assert_eq!(made, 1, "alone{n}");
        let meta = fs::metadata(in_pool(&format!("alone{n}"))).unwrap();
        for time in [meta.modified().unwrap(), meta.accessed().unwrap()] {
            let off = SystemTime::now().duration_since(time).unwrap_or_else(|ahead| ahead.duration());
            assert!(off < Duration::from_secs(600), "alone{n}: the verifier was left for a time");
        }
    }
}

/// The kernel's server supports these only for file systems with a handler for the prefix `user.`, and FUSE has one for
/// all names: it refuses cleanly. Local programs can use them.
fn extended_attributes() {
    say("extended attributes");
    fs::write(in_pool("painted"), "").unwrap();
    let refused = attempt("setfattr -n user.colour -v green /mnt/v4/painted");
    assert!(refused.stderr.contains("Operation not supported"), "{}: {}", refused.code, refused.stderr);
    sh("setfattr -n user.colour -v green /mnt/pool/painted");
    assert_eq!(sh("getfattr --only-values -n user.colour /mnt/pool/painted"), "green");
}

fn both_ways(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// SEEK, ALLOCATE, DEALLOCATE.
fn sparse_files() {
    say("sparse files");
    let here = both_ways(&in_pool("sparse"));
    here.write_all_at(&mebibyte(1), 0).unwrap();
    here.write_all_at(&mebibyte(2), 8 * MIB).unwrap();
    here.sync_all().unwrap();
    let there = both_ways(Path::new("/mnt/v4/sparse"));
    assert_eq!(seek(&there, SeekFrom::Hole(0)), Ok(MIB));
    assert_eq!(seek(&there, SeekFrom::Data(2 * MIB)), Ok(8 * MIB));
    let blocks = |name: &str| fs::metadata(in_pool(name)).unwrap().blocks();
    let before = blocks("sparse");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&there, punch, 8 * MIB, MIB).unwrap();
    assert!(blocks("sparse") + 2000 <= before, "{} of {before} blocks", blocks("sparse"));
    let mut zeros = mebibyte(9);
    here.read_exact_at(&mut zeros, 8 * MIB).unwrap();
    assert!(zeros.iter().all(|byte| *byte == 0));
    let reserved = both_ways(Path::new("/mnt/v4/reserved"));
    fallocate(&reserved, FallocateFlags::empty(), 0, 4 * MIB).unwrap();
    assert_eq!(fs::metadata(in_pool("reserved")).unwrap().len(), 4 * MIB);
    assert!(blocks("reserved") >= 4 * 2048);
}

/// COPY: the data is not transferred.
fn copies() {
    say("server-side copies");
    let bytes: Vec<u8> = (0..2 * MIB).map(|n| u8::try_from(n % 251).unwrap()).collect();
    // Both on one branch.
    fs::write("/mnt/a/source", &bytes).unwrap();
    fs::write("/mnt/a/target", "").unwrap();
    let (source, target) = (both_ways(Path::new("/mnt/v4/source")), both_ways(Path::new("/mnt/v4/target")));
    let mut copied = 0;
    while copied < bytes.len() {
        let more = copy_file_range(&source, None, &target, None, bytes.len() - copied).unwrap();
        assert_ne!(more, 0);
        copied += more;
    }
    target.sync_all().unwrap();
    assert!(fs::read(in_pool("target")).unwrap() == bytes);
    let counted = sh("sed -n 's/^\\t *COPY: \\([0-9]*\\) .*/\\1/p' /proc/self/mountstats");
    let asked: u32 = counted.split_whitespace().map(|count| count.parse::<u32>().unwrap()).sum();
    assert!(asked > 0, "the client copied by itself");
}

/// COMMIT: synced data is on the branch's disk, even if pool and server fail.
fn committed() {
    say("commit");
    for client in CLIENTS {
        let name = format!("kept-{}", client.rsplit('/').next().unwrap());
        let file = both_ways(&Path::new(client).join(&name));
        file.write_all_at(&mebibyte(7), 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(in_pool(&name)).unwrap().len() as u64, MIB);
    }
    let counted = sh("sed -n 's/^\\t *COMMIT: \\([0-9]*\\) .*/\\1/p' /proc/self/mountstats");
    assert!(counted.split_whitespace().all(|count| count != "0"), "{counted}");
}
