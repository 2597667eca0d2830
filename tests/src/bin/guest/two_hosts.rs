//! Two hosts' pools over the same NFS volumes: one mounts again and again, while the other has changes under way.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::test_bed::{TestBed, say, sh, until};

/// Volumes of the server.
const VOLUMES: [&str; 2] = ["/mnt/a", "/mnt/b"];
/// The hosts, and how each mounts the volumes. Their locks meet on the server.
const HOSTS: [(&str, &str); 2] =
    [("one", "vers=4.2"), ("two", "vers=3,port=2049,mountport=20048,mountproto=tcp")];
const ROUNDS: usize = 12;
const FILES: usize = 40;

pub(crate) fn scenario(test_bed: &mut TestBed) {
    test_bed.stop_server();
    test_bed.unmount_pool();
    for (n, volume) in VOLUMES.iter().enumerate() {
        let options = "rw,sync,no_subtree_check,no_root_squash,insecure";
        sh(&format!(
            "echo '{volume} *({options},fsid=5d1f6a0e-3c1b-4a52-9a53-0d4f6e6a7b2{n})' >>/etc/exports.new"
        ));
    }
    sh("rm /etc/exports.d/* && mv /etc/exports.new /etc/exports && exportfs -r && rpc.nfsd 8");
    std::fs::write("/proc/fs/nfsd/v4_end_grace", "Y").unwrap();
    for (host, options) in HOSTS {
        for volume in VOLUMES {
            let at = format!("/mnt/{host}{}", &volume[5..]);
            sh(&format!(
                "mkdir -p {at} && mount -t nfs -o {options},hard,nosharecache 127.0.0.1:{volume} {at}"
            ));
        }
    }
    local_locks_are_warned_of();
    sh("mkdir -p /mnt/other /tmp/source /run/two");
    (0..FILES).for_each(|n| std::fs::write(format!("/tmp/source/file{n}"), vec![b'x'; n * 1000]).unwrap());
    // The first writes the pool's id on its volumes.
    say("both hosts have the volumes");
    mount("one", "/mnt/pool");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let guest = scope.spawn(|| visits(&over));
        until("the other host's first mount", || std::path::Path::new("/tmp/visited").exists());
        for round in 0..ROUNDS {
            say(&format!("round {round}"));
            works(round);
        }
        over.store(true, Relaxed);
        say(&format!("the other host mounted {} times", guest.join().unwrap()));
    });
    sh("umount /mnt/pool");
    until("the daemon's end", || crate::test_bed::attempt("pidof mount.fsstack").code != 0);
    // No record and no partial copy stays behind.
    assert_eq!(sh("find /mnt/a/.fsstack.moving /mnt/b/.fsstack.moving -type f 2>/dev/null; true"), "");
    sh("for at in /mnt/onea /mnt/oneb /mnt/twoa /mnt/twob; do umount $at; done");
    test_bed.mount_pool();
}

/// A mount whose locks stay on its host gets a warning; one that forwards them gets none.
fn local_locks_are_warned_of() {
    sh("mkdir -p /mnt/local /mnt/pooled");
    sh(&format!("mount -t nfs -o {},nolock,nosharecache 127.0.0.1:{} /mnt/local", HOSTS[1].1, VOLUMES[0]));
    let warnings = |branch: &str| {
        sh(&format!(
            "mount.fsstack {branch} /mnt/pooled -o minfreespace=4M,state-dir=/tmp/state,log=/tmp/log && umount /mnt/pooled"
        ));
        until("the daemon's end", || crate::test_bed::attempt("pidof mount.fsstack").code != 0);
        sh("grep -c 'keeps locks on this machine' /tmp/log; rm /tmp/log").trim().to_owned()
    };
    assert_eq!(warnings("/mnt/local"), "1", "a mount with nolock");
    assert_eq!(warnings("/mnt/twoa"), "0", "a mount that forwards its locks");
    sh("umount /mnt/local && rm -r /tmp/state /mnt/pooled");
}

fn mount(host: &str, at: &str) {
    sh(&format!(
        "mount.fsstack /mnt/{host}a:/mnt/{host}b {at} -o create=rand,minfreespace=4M,state-dir=/var/lib/{host}"
    ));
}

/// Mounts on the other host, which has a `/run` of its own, until the work is over. Returns how often.
fn visits(over: &AtomicBool) -> usize {
    let options = "create=rand,minfreespace=4M,state-dir=/var/lib/two";
    let visit = format!(
        "unshare -m sh -c 'mount --make-rprivate / && mount -t tmpfs run /run &&
         mount.fsstack /mnt/twoa:/mnt/twob /mnt/other -o {options} && find /mnt/other >/dev/null; : >/tmp/visited
         umount /mnt/other && while pgrep -f /mnt/other >/dev/null; do sleep 0.1; done'"
    );
    let mut visits = 0;
    while !over.load(Relaxed) {
        sh(&visit);
        visits += 1;
        say(&format!("visit {visits}"));
    }
    visits
}

/// A bulk copy, and renames of a directory that is on both volumes.
fn works(round: usize) {
    let count =
        |dir: &str| sh(&format!("find /mnt/pool/{dir} -type f | wc -l")).trim().parse::<usize>().unwrap();
    sh(&format!("fsstack copy /tmp/source /mnt/pool/ && mv /mnt/pool/source /mnt/pool/copy{round}"));
    assert_eq!(count(&format!("copy{round}")), FILES, "round {round}");
    sh(&format!("diff -r /tmp/source /mnt/pool/copy{round}"));
    for turn in 0..4 {
        sh(&format!(
            "mv -T /mnt/pool/copy{round} /mnt/pool/moved && mv -T /mnt/pool/moved /mnt/pool/copy{round}"
        ));
        assert_eq!(count(&format!("copy{round}")), FILES, "round {round}, turn {turn}");
    }
    sh(&format!("rm -r /mnt/pool/copy{round}"));
}
