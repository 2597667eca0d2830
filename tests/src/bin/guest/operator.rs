//! An operator's work on a running server: exports the pool, takes it back, and mounts it late.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::test_bed::{CLIENTS, TestBed, attempt, forget, in_pool, say, sh, until};

pub(crate) fn scenario(test_bed: &TestBed) {
    installed();
    lets_go(test_bed);
}

/// `fsstack nfs`: the running server exports the installed line, unless the pool is exported already.
fn installed() {
    say("fsstack nfs");
    let install = "fsstack nfs show /mnt/pool --clients '10.0.0.0/8 2001:db8::/32' --install";
    sh("mkdir /tmp/ours && mv /etc/exports.d/* /tmp/ours && exportfs -ua");
    fs::write("/etc/exports", "/mnt/pool 127.0.0.1(rw)\n").unwrap();
    let refused = attempt(install);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("/etc/exports:1 exports /mnt/pool already"), "{}", refused.stderr);
    assert_ne!(attempt("ls /etc/exports.d/*").code, 0, "it was refused, and left a file");
    // A line that exportfs(8) cannot parse.
    fs::write("/etc/exports", "/srv 10.0.0.0/8(rw,nonsense)\n").unwrap();
    let refused = attempt(install);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    for why in ["wrote /etc/exports.d/", "; exportfs -r: ", "nonsense"] {
        assert!(refused.stderr.contains(why), "{why}: {}", refused.stderr);
    }
    sh("rm /etc/exports.d/* && : >/etc/exports && exportfs -ua");
    let line = sh(&format!("{install} && cat /etc/exports.d/*.exports"));
    assert!(
        line.contains("the server has read it") && line.contains("no_subtree_check,mountpoint,fsid="),
        "{line}"
    );
    let exported = sh("exportfs -s");
    assert!(exported.contains("10.0.0.0/8(") && exported.contains("2001:db8::/32("), "{exported}");
    let checked = attempt("fsstack nfs check /mnt/pool").stdout;
    assert!(checked.contains("ok    exports: /mnt/pool 10.0.0.0/8("), "{checked}");
    for command in ["exportfs -u 10.0.0.0/8:/mnt/pool", "exportfs -u '[2001:db8::/32]:/mnt/pool'"] {
        assert!(checked.contains(command), "{checked}");
        sh(command);
    }
    assert_eq!(sh("exportfs -s"), "");
    sh("mv /tmp/ours/* /etc/exports.d/ && exportfs -r");
}

/// The commands that the check prints work.
fn lets_go(test_bed: &TestBed) {
    say("letting go");
    fs::write(in_pool("held"), "held").unwrap();
    let held = CLIENTS.map(|client| File::open(Path::new(client).join("held")).unwrap());
    let checked = attempt("fsstack nfs check /mnt/pool").stdout;
    let way = checked.lines().find(|line| line.contains("to unmount: the kernel's NFS server")).unwrap();
    assert!(way.contains(": rpc.nfsd 0; or "), "{way}");
    sh("rpc.nfsd 0");
    test_bed.unmount_pool();
    test_bed.mount_pool();
    test_bed.start_server();
    forget();
    for mut file in held {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "held");
    }
    // The server runs on. This kernel does not revoke the state of v4 clients, at least a delegation.
    sh("umount /mnt/v4");
    let (_, alone) = way.split_once("later): ").unwrap();
    let (alone, _) = alone.split_once("; then unmount").unwrap();
    assert!(alone.contains("exportfs -u 127.0.0.1:/mnt/pool; "), "{alone}");
    sh(alone);
    test_bed.unmount_pool();
    assert_ne!(fs::read_to_string("/proc/fs/nfsd/threads").unwrap().trim(), "0");
    test_bed.mount_pool();
    sh("exportfs -r && mount -t nfs -o vers=4.2,nconnect=1,hard,actimeo=1 127.0.0.1:/mnt/pool /mnt/v4");
}

/// Number of requests to the server.
fn asked() -> u64 {
    sh("sed -n 's/^rpc \\([0-9]*\\) .*/\\1/p' /proc/net/rpc/nfsd").trim().parse().unwrap()
}

/// The server exports a pool that is not mounted: with `mountpoint`, clients with handles wait for it. A separate
/// scenario, because mountd retries after two minutes.
pub(crate) fn comes_late(test_bed: &mut TestBed) {
    fs::write(in_pool("late"), "late").unwrap();
    let held = CLIENTS.map(|client| File::open(Path::new(client).join("late")).unwrap());
    test_bed.stop_server();
    test_bed.unmount_pool();
    sh("exportfs -r && rpc.nfsd 8");
    forget();
    let before = asked();
    let reading = held.map(|mut file| {
        thread::spawn(move || {
            let mut text = String::new();
            file.read_to_string(&mut text).map(|_| text)
        })
    });
    until("requests of both", || asked() >= before + 2);
    // Longer than an answer takes.
    thread::sleep(Duration::from_secs(3));
    assert!(reading.iter().all(|reading| !reading.is_finished()), "nobody has what they read");
    test_bed.mount_pool();
    // That does not make it faster.
    sh("exportfs -f");
    say("the pool has come");
    for reading in reading {
        assert_eq!(reading.join().unwrap().unwrap(), "late");
        say("read");
    }
}
