//! The server: glusterd and its bricks in a container, or in a chroot with its own namespaces.
//!
//! A container engine only starts and removes it. Everything else uses its processes, which are found by their network
//! namespace: commands enter it by nsenter, a freeze is SIGSTOP. So all engines behave alike once it runs.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Signal, getrlimit};

use crate::daemon::Process;
use crate::network::Namespace;
use crate::shell::{Run, command, which};

/// File that records the engine and the server's first process.
const RECORD: &str = "server";

/// Engine that runs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// podman with the runtime of that name, on a layer above the image or in the image itself.
    Podman(&'static str, Root),
    /// docker, if its engine answers.
    Docker,
    /// unshare and chroot.
    Chroot,
}

/// Where a container writes outside its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// To an overlay, which not every file system supports.
    Overlay,
    /// To the image.
    Plain,
}

impl Engine {
    /// All candidates, best first.
    pub const ALL: [Self; 6] = [
        Self::Podman("runc", Root::Overlay),
        Self::Podman("crun", Root::Overlay),
        Self::Podman("runc", Root::Plain),
        Self::Podman("crun", Root::Plain),
        Self::Docker,
        Self::Chroot,
    ];

    /// Parses its name: `podman`, `docker` or `chroot`.
    #[must_use]
    pub fn family(self) -> &'static str {
        match self {
            Self::Podman(..) => "podman",
            Self::Docker => "docker",
            Self::Chroot => "chroot",
        }
    }

    /// Name in the lab's status.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Podman(runtime, Root::Overlay) => format!("podman with {runtime}"),
            Self::Podman(runtime, Root::Plain) => format!("podman with {runtime}, without overlay"),
            Self::Docker => "docker".into(),
            Self::Chroot => "unshare and chroot".into(),
        }
    }

    fn there(self) -> bool {
        match self {
            Self::Podman(runtime, _) => which("podman").is_some() && which(runtime).is_some(),
            Self::Docker => {
                let answers = || command("docker").arg("info").limit(Duration::from_secs(10)).run();
                which("docker").is_some() && answers().is_ok_and(|check| !check.stdout.contains("ERROR"))
            }
            Self::Chroot => true,
        }
    }
}

/// Name of a lab's container and network namespace, unique on the machine.
pub(crate) fn name_of(home: &Path) -> String {
    let name = home.file_name().unwrap_or_default().to_string_lossy();
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619);
    let hash = home.as_os_str().as_bytes().iter().fold(2_166_136_261, mix);
    format!("fsstack-{name}-{:06x}", hash & 0xff_ffff)
}

/// The server's namespace.
pub(crate) fn namespace(home: &Path) -> Namespace {
    Namespace::named(&name_of(home))
}

/// All processes of the server: those in its network, except clients, which are in our PID namespace.
pub(crate) fn processes(home: &Path) -> Result<Vec<Process>> {
    let namespace = namespace(home);
    if !namespace.exists() {
        return Ok(Vec::new());
    }
    let network = PathBuf::from(format!("net:[{}]", namespace.inode()?));
    let ours = fs::read_link("/proc/self/ns/pid")?;
    let is_its = |pid: i32| {
        let link = |which: &str| fs::read_link(format!("/proc/{pid}/ns/{which}"));
        link("net").is_ok_and(|net| net == network) && link("pid").is_ok_and(|pid| pid != ours)
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if is_its(pid) {
            found.extend(Process::of(pid));
        }
    }
    Ok(found)
}

/// The arguments that a process was started with.
pub(crate) fn arguments(process: Process) -> Vec<String> {
    let raw = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    raw.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// True if a process is stopped by SIGSTOP.
pub(crate) fn is_stopped(process: Process) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
}

/// First process of a running server, which is never frozen. One in another network than the lab's is lost: the
/// namespace was removed and remade, as after a crash, and no client reaches it.
pub(crate) fn init(home: &Path) -> Option<Process> {
    let network = namespace(home).inode().ok()?;
    let of = |process: &Process| fs::metadata(format!("/proc/{}/ns/net", process.pid));
    recorded(home).filter(|process| of(process).is_ok_and(|net| net.ino() == network))
}

/// The recorded process, if it runs.
fn recorded(home: &Path) -> Option<Process> {
    let record = fs::read_to_string(home.join(RECORD)).ok()?;
    let mut numbers = record.lines().nth(1)?.split(' ');
    let pid = numbers.next()?.parse().ok()?;
    Some(Process { pid, started: numbers.next()?.parse().ok()? }).filter(|process| process.lives())
}

/// The engine that started it.
pub(crate) fn engine(home: &Path) -> Option<Engine> {
    let record = fs::read_to_string(home.join(RECORD)).ok()?;
    let name = record.lines().next()?;
    Engine::ALL.into_iter().find(|engine| engine.name() == name)
}

/// True if anything of a server is left.
pub(crate) fn stands(home: &Path) -> bool {
    processes(home).is_ok_and(|left| !left.is_empty())
}

/// Runs a program inside the server.
pub(crate) fn inside(home: &Path, program: &str) -> Result<Run> {
    let init = init(home).context("the lab's server does not run: `cargo xtask lab up` starts it")?;
    Ok(command("nsenter")
        .args(["-t", &init.pid.to_string(), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--"])
        .arg(program)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
}

/// Starts it with the first engine that works, of the requested family if there is one.
pub(super) fn start(home: &Path, rootfs: &Path, family: Option<&str>) -> Result<Engine> {
    let before = engine(home);
    let asked = |engine: &Engine| family.is_none_or(|family| family == engine.family());
    let mut order: Vec<Engine> = before.into_iter().chain(Engine::ALL).filter(asked).collect();
    ensure!(!order.is_empty(), "no engine is called {}", family.unwrap_or_default());
    order.dedup();
    let mut refused = Vec::new();
    for engine in order {
        if !engine.there() {
            refused.push(format!("{}: it is not installed, or does not answer", engine.name()));
            continue;
        }
        remove(home)?;
        let started = start_by(engine, home, rootfs).and_then(|process| {
            fs::write(
                home.join(RECORD),
                format!("{}\n{} {}\n", engine.name(), process.pid, process.started),
            )?;
            answers(home)
        });
        match started {
            Ok(()) => return Ok(engine),
            Err(e) => refused.push(format!("{}: {e:#}", engine.name())),
        }
    }
    bail!("nothing here can run the server: {}", refused.join("; "))
}

/// Ends it in any state.
pub(crate) fn remove(home: &Path) -> Result<()> {
    let name = name_of(home);
    let removed = if home.join("pm").is_dir() {
        let ended = podman(home, "runc").args(["rm", "-f", "-t", "0", &name]).output().map(drop);
        for left in crate::mounts::below(&home.join("pm"))?.iter().rev() {
            crate::mounts::detach(&left.target)?;
        }
        ended
    } else if engine(home) == Some(Engine::Docker) {
        command("docker").args(["rm", "-f", &name]).output().map(drop)
    } else {
        Ok(())
    };
    let began = Instant::now();
    loop {
        let mut left = processes(home)?;
        // A lost one is the first process of its PID namespace: all others end with it.
        left.extend(recorded(home));
        if left.is_empty() {
            break;
        }
        ensure!(
            began.elapsed() < Duration::from_secs(10),
            "{} processes of the server do not end",
            left.len()
        );
        left.into_iter().try_for_each(|process| process.signal(Signal::KILL))?;
        sleep(Duration::from_millis(20));
    }
    remove_groups(&name)?;
    removed
}

/// Its remaining control groups.
pub(super) fn groups(name: &str) -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(top).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    below.chain([top.to_owned()]).map(|dir| dir.join(name)).filter(|dir| dir.is_dir()).collect()
}

fn remove_groups(name: &str) -> Result<()> {
    let began = Instant::now();
    // A group is busy until the last process in it has been reaped.
    while !groups(name).is_empty() && began.elapsed() < Duration::from_secs(5) {
        for group in groups(name) {
            remove_tree(&group);
        }
        sleep(Duration::from_millis(10));
    }
    ensure!(groups(name).is_empty(), "control groups of {name} are still busy");
    Ok(())
}

fn remove_tree(group: &Path) {
    let below = fs::read_dir(group).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    below.filter(|path| path.is_dir()).for_each(|path| remove_tree(&path));
    let _tried_again = fs::remove_dir(group);
}

fn podman(home: &Path, runtime: &str) -> Run {
    let at = |dir: &str| home.join("pm").join(dir);
    let mut run = command("podman");
    for (option, dir) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
        run = run.arg(option).arg(at(dir));
    }
    run.args(["--cgroup-manager=cgroupfs", "--events-backend=file", "--runtime", runtime])
}

fn start_by(engine: Engine, home: &Path, rootfs: &Path) -> Result<Process> {
    match engine {
        Engine::Podman(runtime, root) => by_podman(home, rootfs, runtime, root),
        Engine::Docker => by_docker(home, rootfs),
        Engine::Chroot => by_chroot(home, rootfs),
    }
}

/// Directories of the lab in the container: path here, and there.
fn volumes(home: &Path) -> [String; 3] {
    let here = |dir: &str, there: &str| format!("{}:{there}", home.join(dir).display());
    [
        here("state", "/var/lib/glusterd"),
        here("log", "/var/log/glusterfs"),
        here("bricks", "/bricks") + ":rslave",
    ]
}

/// At most our own limits: containers request limits that not every root user may set.
fn limits() -> [String; 2] {
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20).min(1 << 20);
    [format!("nofile={files}:{files}"), "nproc=4096:4096".into()]
}

fn by_podman(home: &Path, rootfs: &Path, runtime: &str, root: Root) -> Result<Process> {
    let name = name_of(home);
    let pid_file = home.join("pid");
    let network = format!("--network=ns:{}", namespace(home).path().display());
    let mut run =
        podman(home, runtime).args(["run", "-d", "--privileged", "--name", &name, "--hostname", &name]);
    run = run.arg(network).arg(format!("--cgroup-parent=/{name}")).arg("--pidfile").arg(&pid_file);
    for limit in limits() {
        run = run.arg("--ulimit").arg(limit);
    }
    for volume in volumes(home) {
        run = run.arg("-v").arg(volume);
    }
    let layer = if root == Root::Overlay { ":O" } else { "" };
    let rootfs = format!("{}{layer}", rootfs.display());
    run.args(["--tmpfs", "/run", "--rootfs", &rootfs, "/usr/bin/tini", "--", "/usr/sbin/glusterd", "-N"])
        .run()?;
    process(fs::read_to_string(&pid_file)?.trim())
}

fn by_docker(home: &Path, rootfs: &Path) -> Result<Process> {
    let name = name_of(home);
    let image = format!("{name}:1");
    if command("docker").args(["image", "inspect", &image]).run().is_err() {
        let script = r#"tar -C "$0" -c . | docker import - "$1""#;
        let import = command("bash").args(["-euo", "pipefail", "-c", script]).arg(rootfs).arg(&image);
        import.limit(Duration::from_secs(300)).run()?;
    }
    let mut run =
        command("docker").args(["run", "-d", "--name", &name, "--hostname", &name, "--network=none"]);
    run = run.args(["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--tmpfs", "/run"]);
    for volume in volumes(home) {
        run = run.arg("-v").arg(volume);
    }
    // docker cannot join a namespace by path: the server enters it by itself.
    run = run.arg("-v").arg(format!("{}:/lab-network", namespace(home).path().display()));
    let enter = ["nsenter", "--net=/lab-network", "/usr/bin/tini", "--", "/usr/sbin/glusterd", "-N"];
    run.arg(&image).args(enter).run()?;
    let check = command("docker").args(["inspect", "-f", "{{.State.Pid}}", &name]).run()?;
    process(check.stdout.trim())
}

/// Runs as the first process of its own namespaces; its mounts are invisible elsewhere.
const SERVE: &str = r#"set -eu
root=$1 home=$2 name=$3
hostname "$name"
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$home/state" "$root/var/lib/glusterd"
mount --bind "$home/log" "$root/var/log/glusterfs"
mount --rbind "$home/bricks" "$root/bricks"
mount --make-rslave "$root/bricks"
exec chroot "$root" /usr/bin/tini -- /usr/sbin/glusterd -N
"#;

fn by_chroot(home: &Path, rootfs: &Path) -> Result<Process> {
    let script = home.join("serve.sh");
    fs::write(&script, SERVE)?;
    let network = format!("--net={}", namespace(home).path().display());
    let unshare = ["--mount", "--propagation", "slave", "--pid", "--fork", "--uts", "--ipc", "--kill-child"];
    command("setsid")
        .args(["--fork", "nsenter", &network, "unshare"])
        .args(unshare)
        .args(["sh".as_ref(), script.as_os_str(), rootfs.as_os_str(), home.as_os_str()])
        .arg(name_of(home))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .run()?;
    let began = Instant::now();
    loop {
        // The first process of the namespace; the others start after it.
        let first = processes(home)?.into_iter().min_by_key(|process| process.started);
        let serves = |process: &Process| arguments(*process).iter().any(|word| word.contains("tini"));
        match first.filter(serves) {
            Some(process) => return Ok(process),
            None if began.elapsed() < Duration::from_secs(5) => sleep(Duration::from_millis(20)),
            None => bail!("{} ended before it came to the server", script.display()),
        }
    }
}

fn process(pid: &str) -> Result<Process> {
    Process::of(pid.parse()?).context("the container ended at once")
}

fn answers(home: &Path) -> Result<()> {
    let began = Instant::now();
    loop {
        let ask =
            inside(home, "gluster")?.args(["--mode=script", "volume", "list"]).limit(Duration::from_secs(10));
        match ask.run() {
            Ok(_) => return Ok(()),
            Err(_) if began.elapsed() < Duration::from_secs(20) => sleep(Duration::from_millis(50)),
            Err(e) => return Err(e.context("glusterd does not answer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::needs;

    /// A network namespace, removed on drop.
    struct Network(Namespace);

    impl Network {
        fn make(namespace: Namespace) -> Self {
            command("ip").args(["netns", "add"]).arg(namespace.path().file_name().unwrap()).run().unwrap();
            Self(namespace)
        }
    }

    impl Drop for Network {
        fn drop(&mut self) {
            crate::network::remove_namespace(&self.0.path()).unwrap();
        }
    }

    /// First process of a PID namespace in the lab's network, recorded as the server.
    fn serve(home: &Path) -> Process {
        let network = format!("--net={}", namespace(home).path().display());
        let sleep_there = ["--fork", "nsenter", &network, "unshare", "--pid", "--fork", "--kill-child"];
        command("setsid").args(sleep_there).args(["sleep", "1000"]).run().unwrap();
        let began = Instant::now();
        loop {
            let sleeps = |process: &Process| arguments(*process).first().is_some_and(|name| name == "sleep");
            if let Some(process) = processes(home).unwrap().into_iter().find(sleeps) {
                let name = Engine::Chroot.name();
                fs::write(home.join(RECORD), format!("{name}\n{} {}\n", process.pid, process.started))
                    .unwrap();
                return process;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it does not begin");
            sleep(Duration::from_millis(20));
        }
    }

    /// The namespace was removed and remade, as after a crash.
    #[test]
    fn a_server_in_a_network_that_was_lost_does_not_count_and_is_ended() {
        needs!(root(), program("ip"), program("nsenter"), program("unshare"));
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let network = Network::make(namespace(home));
        let lost = serve(home);
        assert_eq!(init(home), Some(lost));
        drop(network);
        let _network = Network::make(namespace(home));
        assert_eq!(init(home), None, "no client reaches it");
        assert_eq!(engine(home), Some(Engine::Chroot), "it is started anew by the engine that it had");
        remove(home).unwrap();
        assert!(!lost.lives());
        let anew = serve(home);
        assert_eq!(init(home), Some(anew));
        remove(home).unwrap();
        assert!(!anew.lives());
    }
}
