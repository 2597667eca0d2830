//! Cost of the pool compared with its branch, exported by the same server; and the gain of several connections with a
//! limit each. The figures are `fsstack-bench`'s, of mounts made here.

use std::time::Duration;

use crate::test_bed::{TestBed, attempt, say, sh, sh_within, until};
use crate::timeouts::A_MINUTE;

/// Numbers of connections per client.
const CONNECTIONS: [u32; 5] = [1, 2, 4, 8, 16];
/// Longer than a busy machine takes.
const LONGEST: Duration = Duration::from_secs(1800);
/// Rate limit of a connection.
const PACE: &str = "64mbit";
/// Exports: a disk; a pool on another; a pool on that, too, whose names and attributes the kernel keeps for a minute.
const EXPORTS: [(&str, &str); 3] = [("branch", "/mnt/b"), ("pool", "/mnt/pool"), ("kept", "/mnt/kept")];
/// The first two of [`EXPORTS`].
const BOTH: &[(&str, &str)] = EXPORTS.split_at(2).0;
const VERSIONS: [(&str, &str); 2] =
    [("v3", "vers=3,nolock,port=2049,mountport=20048,mountproto=tcp"), ("v4.2", "vers=4.2")];

/// Measures the pool and its branch.
pub(crate) fn beside(test_bed: &mut TestBed) {
    serve(test_bed, &EXPORTS, || {
        sh("mkdir -p /mnt/a/plain /mnt/a/kept /mnt/kept");
        test_bed.mount_pool_over("/mnt/a/plain");
        let options = "nfs-export,minfreespace=4M,state-dir=/var/lib/kept";
        sh(&format!("mount.fsstack /mnt/a/kept /mnt/kept -o {options}{A_MINUTE}"));
    });
    beside_its_branch();
    unmount();
    test_bed.stop_server();
    until("an unmounted pool", || attempt("umount /mnt/kept").code == 0);
}

/// Measures one connection and several.
pub(crate) fn connections(test_bed: &mut TestBed) {
    serve_both(test_bed);
    by_connections();
    unmount();
}

pub(crate) fn serve_both(test_bed: &TestBed) {
    serve(test_bed, BOTH, || test_bed.mount_pool_over("/mnt/a"));
}

fn serve(test_bed: &TestBed, exports: &[(&str, &str)], mount_pools: impl FnOnce()) {
    test_bed.stop_server();
    test_bed.unmount_pool();
    mount_pools();
    let options = "rw,sync,no_subtree_check,no_root_squash,insecure";
    for (n, (_, path)) in exports.iter().enumerate() {
        sh(&format!(
            "echo '{path} *({options},fsid=5d1f6a0e-3c1b-4a52-9a53-0d4f6e6a7b1{n})' >>/etc/exports.new"
        ));
    }
    // Servers with 4 GiB of memory accept this much in one call; smaller ones can be configured so.
    std::fs::write("/proc/fs/nfsd/max_block_size", "1048576").unwrap();
    sh(
        "rm /etc/exports.d/* && mv /etc/exports.new /etc/exports && exportfs -r && rpc.nfsd 8 && modprobe veth",
    );
    std::fs::write("/proc/fs/nfsd/v4_end_grace", "Y").unwrap();
}

pub(crate) fn unmount() {
    sh("for mount in $(sed -n 's/^[^ ]* \\(.mnt.f.[^ ]*\\) .*/\\1/p' /proc/mounts); do umount $mount; done");
}

/// Path of a program: busybox's shell prefers its own `ip` and `tc` to those on PATH, and they support neither veth
/// pairs nor rate limits.
fn program(name: &str) -> String {
    let places = ["/usr/sbin", "/usr/bin"].map(|dir| format!("{dir}/{name}"));
    places.into_iter().find(|place| std::path::Path::new(place).exists()).expect("a program that was brought")
}

/// A separate machine as far as NFS is concerned: it has a link to the server and a name.
struct ClientMachine {
    process: u32,
    number: u32,
}

impl ClientMachine {
    fn new(number: u32, pace: Option<&str>) -> Self {
        let process: u32 =
            sh("unshare -n -u sleep 100000 </dev/null >/dev/null 2>&1 & echo $!").trim().parse().unwrap();
        // When it is the program, it has left our network.
        until("a client", || {
            std::fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim() == "sleep")
        });
        let client = Self { process, number };
        let (ip, tc) = (program("ip"), program("tc"));
        sh(&format!(
            "{ip} link add s{number} type veth peer name c{number} && {ip} link set c{number} netns {process} &&
             {ip} addr add 10.7.{number}.1/24 dev s{number} && {ip} link set s{number} up"
        ));
        client.sh(&format!(
            "hostname client{number} && {ip} addr add 10.7.{number}.2/24 dev c{number} && {ip} link set c{number} up && {ip} link set lo up"
        ));
        if let Some(pace) = pace {
            sh(&format!("{tc} qdisc add dev s{number} root fq maxrate {pace} flow_limit 10000 limit 100000"));
        }
        client
    }

    fn sh(&self, line: &str) {
        sh(&format!("nsenter -t {} -n -u sh -c '{line}'", self.process));
    }

    /// Mounts `exports` with both versions; returns the targets for `--target`.
    fn mount(&self, exports: &[(&str, &str)], suffix: &str, more: &str) -> Vec<String> {
        let mut targets = Vec::new();
        for (version, options) in VERSIONS {
            for (name, path) in exports {
                let target = format!("{name}-{version}{suffix}");
                let at = format!("/mnt/f/{target}");
                self.sh(&format!(
                    "mkdir -p {at} && mount -t nfs -o {options},hard{more} 10.7.{}.1:{path} {at}",
                    self.number
                ));
                targets.push(format!("--target {target}={at}"));
            }
        }
        targets
    }
}

/// Runs the bench, with its report on the console.
fn bench(arguments: &str) {
    let line =
        format!("fsstack-bench {arguments} --out /tmp/out >/tmp/said 2>&1 || {{ cat /tmp/said; exit 1; }}");
    sh_within(LONGEST, &line);
    println!("{}", sh("cat /tmp/out/report.md && rm -r /tmp/out"));
}

/// Mounts both exports with both versions for a client without caches; returns the targets.
pub(crate) fn mounted_by_a_client() -> Vec<String> {
    mounted(BOTH)
}

fn mounted(exports: &[(&str, &str)]) -> Vec<String> {
    let targets = ClientMachine::new(100, None).mount(exports, "", ",nconnect=4,actimeo=0,lookupcache=none");
    targets.into_iter().filter_map(|target| Some(target.strip_prefix("--target ")?.to_owned())).collect()
}

/// Each version's pools with the branch.
fn beside_its_branch() {
    say("the pools beside their branch");
    let targets = mounted(&EXPORTS);
    for pair in targets.chunks(EXPORTS.len()) {
        let targets = pair.iter().map(|target| format!("--target {target}")).collect::<Vec<_>>().join(" ");
        bench(&format!(
            "compare {targets} --rounds 7 --op write,read --block 1M --file-size 32M --direct --tasks 2"
        ));
        bench(&format!("compare {targets} --rounds 7 --op create,stat --entries 50"));
    }
}

fn by_connections() {
    say("one and several connections, each with a limit");
    let mount = |count: &u32| {
        ClientMachine::new(*count, Some(PACE)).mount(
            BOTH,
            &format!(".nconnect{count}"),
            &format!(",nconnect={count}"),
        )
    };
    let targets: Vec<String> = CONNECTIONS.iter().flat_map(mount).collect();
    bench(&format!("experiment nfs-nconnect {} --rounds 1", targets.join(" ")));
}
