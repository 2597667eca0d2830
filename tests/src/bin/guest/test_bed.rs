//! A pool over two XFS, the kernel's NFS server over it, and that server's clients: v3 and v4.2.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fsstack_lab::shell::{Finished, command};

/// Longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(600);

/// User of a client's root on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// The default options of exports(5) and `fsstack nfs show`.
    Nobody,
    /// With a further option.
    Itself,
}

/// Mounts that a scenario runs on.
pub(crate) struct TestBed {
    /// Connections of each client; 0 if the scenario mounts its own.
    nconnect: u32,
}

/// The clients' mounts, by the protocol's version.
pub(crate) const CLIENTS: [&str; 2] = ["/mnt/v3", "/mnt/v4"];

/// A path in the pool, not through NFS.
pub(crate) fn in_pool(name: &str) -> PathBuf {
    Path::new("/mnt/pool").join(name)
}

/// Runs a shell line and returns its output.
#[track_caller]
pub(crate) fn sh(line: &str) -> String {
    sh_within(LIMIT, line)
}

/// Like [`sh`], for commands that may take longer.
#[track_caller]
pub(crate) fn sh_within(limit: Duration, line: &str) -> String {
    let output = command("sh").args(["-c", line]).limit(limit).output().unwrap();
    assert_eq!(output.code, 0, "`{line}`: {}{}", output.stdout, output.stderr);
    output.stdout
}

/// Runs a shell line; failure is allowed.
#[track_caller]
pub(crate) fn attempt(line: &str) -> Finished {
    command("sh").args(["-c", line]).limit(LIMIT).output().unwrap()
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what} never came about");
        sleep(Duration::from_millis(20));
    }
}

/// Prints the step of the scenario on the console.
pub(crate) fn say(line: &str) {
    let up = fs::read_to_string("/proc/uptime").unwrap();
    println!("[{}] {line}", up.split(' ').next().unwrap());
}

/// Makes the kernel, which is both server and client, forget everything unused.
pub(crate) fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

impl TestBed {
    pub(crate) fn new(nconnect: u32, root: Root) -> Self {
        for module in ["xfs", "fuse", "nfsd", "nfsv3", "nfsv4", "sch_fq"] {
            sh(&format!("modprobe {module}"));
        }
        sh("mkdir -p /mnt/a /mnt/b /mnt/pool /mnt/v3 /mnt/v4 /run/lock
            mount -t xfs /dev/vdb /mnt/a && mount -t xfs /dev/vdc /mnt/b
            mount -t nfsd nfsd /proc/fs/nfsd
            mount -t rpc_pipefs rpc /var/lib/nfs/rpc_pipefs");
        sh("chown -R statd /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/state
            rpcbind -w && rpc.statd --no-notify && rpc.mountd --manage-gids -p 20048");
        fs::write("/proc/fs/nfsd/nfsv4leasetime", "10").unwrap();
        fs::write("/proc/fs/nfsd/nfsv4gracetime", "10").unwrap();
        let test_bed = Self { nconnect };
        test_bed.mount_pool();
        export(root);
        test_bed.start_server();
        // There is nothing to reclaim.
        fs::write("/proc/fs/nfsd/v4_end_grace", "Y").unwrap();
        if nconnect > 0 {
            test_bed.mount_clients();
        }
        say("mounted");
        test_bed
    }

    pub(crate) fn mount_pool(&self) {
        self.mount_pool_over("/mnt/a:/mnt/b");
    }

    pub(crate) fn mount_pool_over(&self, branches: &str) {
        self.mount_pool_with(branches, "");
    }

    /// `more`: further options, each with a comma before it.
    pub(crate) fn mount_pool_with(&self, branches: &str, more: &str) {
        let options = "nfs-export,create=rand,minfreespace=4M,state-dir=/var/lib/fsstack";
        sh(&format!("mount.fsstack {branches} /mnt/pool -o {options}{more}"));
    }

    /// Stops the server, which then holds nothing.
    pub(crate) fn stop_server(&self) {
        sh("rpc.nfsd 0 && exportfs -ua && exportfs -f");
    }

    pub(crate) fn start_server(&self) {
        sh("exportfs -r && rpc.nfsd 8");
        // v3 locks: no client reclaims any, as none was notified.
        if Path::new("/proc/fs/lockd/nlm_end_grace").exists() {
            fs::write("/proc/fs/lockd/nlm_end_grace", "Y").unwrap();
        }
    }

    /// The server holds its last files for a moment.
    pub(crate) fn unmount_pool(&self) {
        until("an unmounted pool", || attempt("umount /mnt/pool").code == 0);
        until("the daemon's end", || attempt("pidof mount.fsstack").code != 0);
    }

    /// Kills the daemon that serves the pool; its keeper starts another.
    pub(crate) fn kill_kept_daemon(&self) {
        let serving = || {
            let shown =
                attempt("fsstack status /mnt/pool --json | grep -o '\"pid\": *[0-9]*' | grep -o '[0-9]*$'");
            shown.stdout.lines().next().map(str::to_owned)
        };
        let before = serving().expect("a daemon");
        sh(&format!("kill -9 {before}"));
        until("the next daemon", || serving().is_some_and(|pid| pid != before));
    }

    pub(crate) fn kill_daemon(&self) {
        sh("kill -9 $(pidof mount.fsstack)");
        until("the daemon's end", || attempt("pidof mount.fsstack").code != 0);
    }

    fn mount_clients(&self) {
        let n = self.nconnect;
        sh(&format!(
            "mount -t nfs -o vers=3,nconnect={n},hard,actimeo=1,nordirplus,port=2049,mountport=20048,mountproto=tcp 127.0.0.1:/mnt/pool /mnt/v3
             mount -t nfs -o vers=4.2,nconnect={n},hard,actimeo=1 127.0.0.1:/mnt/pool /mnt/v4"
        ));
        let connections = sh("grep -c xprt: /proc/self/mountstats");
        assert_eq!(connections.trim(), (2 * n).to_string(), "connections of both clients");
    }

    /// CPU time so far, to explain a long run. 100 ticks are a second.
    fn account(&self) {
        let ticks = |path: &str, fields: std::ops::Range<usize>| -> u64 {
            let stat = fs::read_to_string(path).unwrap();
            stat.split_whitespace()
                .skip(fields.start)
                .take(fields.len())
                .map(|n| n.parse::<u64>().unwrap())
                .sum()
        };
        let pids = sh("pidof mount.fsstack");
        let daemon: u64 =
            pids.split_whitespace().map(|pid| ticks(&format!("/proc/{pid}/stat"), 13..15)).sum();
        // Of both CPUs: user, nice, system; interrupts.
        let all = ticks("/proc/stat", 1..4) + ticks("/proc/stat", 6..8);
        say(&format!("{} s of CPU, the daemon {} of them", all / 100, daemon / 100));
    }

    /// Takes everything down in order, and checks the kernel's log.
    pub(crate) fn end(self) {
        self.account();
        if self.nconnect > 0 {
            sh("umount /mnt/v4 && umount /mnt/v3");
        }
        self.stop_server();
        self.unmount_pool();
        sh("umount /mnt/a && umount /mnt/b");
        complains_of_nothing();
    }
}

/// Exports the pool with the output of `fsstack nfs show`.
fn export(root: Root) {
    let output = sh("fsstack nfs show /mnt/pool --clients 127.0.0.1 --install");
    assert!(output.ends_with("; no server runs: it reads that when it is started\n"), "{output}");
    match root {
        Root::Nobody => sh("chmod 1777 /mnt/pool"),
        Root::Itself => sh("sed -i 's/(rw,/(rw,no_root_squash,/' /etc/exports.d/*"),
    };
}

/// Checks that the kernel's log has only usual messages.
pub(crate) fn complains_of_nothing() {
    let complaints = attempt(
        "dmesg | grep -E 'BUG|WARNING|Oops|hung task|blocked for more|non-standard errno|Corruption'",
    );
    assert_eq!(complaints.stdout, "", "{}", sh("dmesg | tail -n 60"));
}
