//! Holders of an exported pool, which keep it from being unmounted, and the remedy for each.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use fsstack_pool::Printable;
use fsstack_sync::mpsc;
use fsstack_sync::time::{Duration, Instant};

use crate::exports::{self, escaped};

/// Number of threads of the kernel's server.
const THREADS: &str = "/proc/fs/nfsd/threads";
/// Writing a mount's path here makes the kernel's server drop its locks; from Linux 6.9 on also all state of v4
/// clients.
const UNLOCK: &str = "/proc/fs/nfsd/unlock_filesystem";

/// Time limit for reading the maps of all processes.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A holder of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The kernel's NFS server.
    Kernel {
        /// Clients, as in exports(5), and path: the pool, or one below it. Empty if the server still holds an export
        /// that was removed.
        exports: Vec<(String, PathBuf)>,
        /// The pool's mount point.
        mount_point: PathBuf,
    },
    /// A process with a file of the pool open or mapped, or a directory of it in use: nfs-ganesha, a shell.
    Process {
        /// Its own name, in printable text.
        name: String,
        /// Its process id.
        pid: i32,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { exports, mount_point } => {
                write!(
                    f,
                    "the kernel's NFS server exports it; to stop the server, whose clients then wait: rpc.nfsd 0; or to \
                     take this pool alone from them (with clients of v4: by Linux 6.9 and later): "
                )?;
                for (client, path) in exports {
                    write!(f, "exportfs -u {}; ", exported(client, path))?;
                }
                let path = shell_word(escaped(mount_point).as_bytes());
                write!(f, "exportfs -f; printf '%s\\n' {path} > {UNLOCK}; then unmount, after a few seconds")
            }
            Self::Process { name, pid } if name.starts_with("ganesha") => {
                write!(f, "nfs-ganesha (process {pid}) exports it: stop the server first")
            }
            Self::Process { name, pid } => write!(f, "{name} (process {pid}) uses it"),
        }
    }
}

/// Formats an export for exportfs(8) as a word of the shell. exportfs takes the first colon as the end of the client.
fn exported(client: &str, path: &Path) -> String {
    let client = if client.contains(':') { format!("[{client}]") } else { client.to_owned() };
    shell_word(&[client.as_bytes(), b":", path.as_os_str().as_bytes()].concat())
}

/// Quotes `bytes` as one word of the shell; unprintable bytes need a shell that knows `$'...'`.
fn shell_word(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/.:_-@%+,=".contains(byte);
    let printable = Printable(bytes).to_string();
    if bytes.iter().all(plain) {
        printable
    } else if printable.as_bytes() == bytes {
        format!("'{}'", printable.replace('\'', "'\\''"))
    } else {
        let escaped = bytes.iter().map(|byte| match byte {
            byte if plain(byte) => char::from(*byte).to_string(),
            byte => format!("\\{byte:03o}"),
        });
        format!("$'{}'", escaped.collect::<String>())
    }
}

/// Lists the holders of the pool at `mount_point`, without its own daemon. Holders that are not visible are left out.
pub fn of(mount_point: &Path) -> Vec<Holder> {
    let kernel = is_serving().then(|| kernel(mount_point)).flatten();
    kernel.into_iter().chain(processes(Path::new("/proc"), mount_point)).collect()
}

fn kernel(mount_point: &Path) -> Option<Holder> {
    let exports = exports_of(&exports::exported().unwrap_or_default(), mount_point);
    (!exports.is_empty() || exports::is_known_to_the_kernel(mount_point))
        .then(|| Holder::Kernel { exports, mount_point: mount_point.to_owned() })
}

/// Clients of the pool's exports, without duplicates.
fn exports_of(table: &[exports::ExportLine], mount_point: &Path) -> Vec<(String, PathBuf)> {
    let mut exports = Vec::new();
    for line in table.iter().filter(|line| line.is_of(mount_point)) {
        for client in &line.clients {
            let export = (client.name.clone(), line.path.clone());
            if !exports.contains(&export) {
                exports.push(export);
            }
        }
    }
    exports
}

/// True if the kernel's NFS server runs on this machine.
pub fn is_serving() -> bool {
    let threads = fs::read_to_string(THREADS).unwrap_or_default();
    threads.trim().parse::<u32>().is_ok_and(|threads| threads > 0)
}

/// Lists the processes that have a file at or below the mount point open or mapped, or use a directory there. Links are
/// only read, so the pool is never waited for.
fn processes(proc: &Path, mount_point: &Path) -> Vec<Holder> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let leads = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(mount_point));
    let uses = |pid: &i32| {
        let dir = proc.join(pid.to_string());
        links_in(&dir.join("fd")).chain(["cwd", "root", "exe"].map(|link| dir.join(link))).any(leads)
    };
    let (mut pids, others): (Vec<i32>, Vec<i32>) = pids.filter(|pid| *pid != own).partition(uses);
    pids.extend(with_maps(proc, mount_point, others));
    pids.sort_unstable();
    let holder = |pid: i32| {
        let name = fs::read(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
        let name = Printable(name.strip_suffix(b"\n").unwrap_or(&name)).to_string();
        Holder::Process { name, pid }
    };
    pids.into_iter().map(holder).collect()
}

fn links_in(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|link| link.path())
}

/// Returns those of `pids` with a mapping below `mount_point`. Reading the maps of a process can block while that
/// process changes them, for as long as the pool or another branch that it waits for.
fn with_maps(proc: &Path, mount_point: &Path, pids: Vec<i32>) -> Vec<i32> {
    let (proc, mount_point) = (proc.to_owned(), mount_point.to_owned());
    let (found, those) = mpsc::channel();
    fsstack_sync::thread::spawn(move || {
        let leads = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(&mount_point));
        let maps = |pid: &i32| links_in(&proc.join(pid.to_string()).join("map_files")).any(leads);
        // The receiver is gone if that took too long.
        pids.into_iter().filter(maps).try_for_each(|pid| found.send(pid))
    });
    let end = Instant::now() + RELEASE_TIMEOUT;
    let left = || end.saturating_duration_since(Instant::now());
    std::iter::from_fn(|| those.recv_timeout(left()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The kernel's table has names for clients that exportfs(8) does not accept.
    #[test]
    fn clients_are_named_with_what_is_exported_to_them() {
        let table = exports::parse(
            b"/srv/pool\t10.0.0.0/8(rw,sync,fsid=1)\n/srv/pool/sub\t*(ro)\n/srv/pool\t*(ro)\n/srv/pool\t*(ro)\n/srv\th(ro)\n",
        );
        let of = |mount_point: &str| exports_of(&table, Path::new(mount_point));
        let export = |client: &str, path: &str| (client.to_owned(), PathBuf::from(path));
        let all = [export("10.0.0.0/8", "/srv/pool"), export("*", "/srv/pool/sub"), export("*", "/srv/pool")];
        assert_eq!(of("/srv/pool"), all);
        assert!(of("/srv/po").is_empty());
    }

    #[test]
    fn a_process_with_an_open_file_is_named() {
        let proc = tempfile::tempdir().unwrap();
        let (ganesha, forger) = (&b"ganesha.nfsd\n"[..], &b"x\nok\x1b[2m\xff \n"[..]);
        for (pid, comm, to) in [
            ("7000001", ganesha, "/srv/pool"),
            ("7000002", b"sh\n", "/srv/pool2"),
            ("7000003", forger, "/srv/pool/file"),
        ] {
            let dir = proc.path().join(pid);
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("comm"), comm).unwrap();
            symlink(to, dir.join("fd/3")).unwrap();
            symlink("/", dir.join("cwd")).unwrap();
        }
        let found = processes(proc.path(), Path::new("/srv/pool"));
        assert_eq!(found[0], Holder::Process { name: "ganesha.nfsd".into(), pid: 7_000_001 });
        assert!(found[0].to_string().contains("stop the server first"));
        assert_eq!(found[1].to_string(), "x\\012ok\\033[2m\\377  (process 7000003) uses it");
        assert_eq!(found.len(), 2);
    }

    /// A program or library of the pool, or a file that was mapped and closed.
    #[test]
    fn a_process_that_runs_or_maps_a_file_is_named() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, exe, map) in [
            ("7000001", "/bin/sh", "/srv/pool/lib.so (deleted)"),
            ("7000002", "/srv/pool/bin/tool", "/lib/libc.so.6"),
            ("7000003", "/bin/sh", "/srv/pool2/lib.so"),
        ] {
            let dir = proc.path().join(pid);
            fs::create_dir_all(dir.join("map_files")).unwrap();
            fs::write(dir.join("comm"), "tool\n").unwrap();
            symlink(exe, dir.join("exe")).unwrap();
            symlink(map, dir.join("map_files/400000-401000")).unwrap();
        }
        let found = processes(proc.path(), Path::new("/srv/pool"));
        let uses = |pid| Holder::Process { name: "tool".into(), pid };
        assert_eq!(found, [uses(7_000_001), uses(7_000_002)]);
    }

    /// The printed command is valid for a shell.
    #[test]
    fn the_remedy_for_the_kernels_server_is_named() {
        let told = |clients: &[&str], mount_point: &str| {
            let exports = clients.iter().map(|client| ((*client).to_owned(), mount_point.into())).collect();
            Holder::Kernel { exports, mount_point: mount_point.into() }.to_string()
        };
        let plain = told(&["10.0.0.0/8", "2001:db8::/32", "*"], "/srv/pool");
        for command in [
            "rpc.nfsd 0; ",
            "exportfs -u 10.0.0.0/8:/srv/pool; exportfs -u '[2001:db8::/32]:/srv/pool'; exportfs -u '*:/srv/pool'; exportfs -f; ",
            "; printf '%s\\n' /srv/pool > /proc/fs/nfsd/unlock_filesystem; ",
        ] {
            assert!(plain.contains(command), "{plain}");
        }
        let odd = told(&["h"], "/srv/it's a pool");
        assert!(odd.contains("exportfs -u 'h:/srv/it'\\''s a pool'; "), "{odd}");
        assert!(odd.contains("printf '%s\\n' '/srv/it'\\''s\\040a\\040pool' > "), "{odd}");
    }

    #[test]
    fn a_word_of_the_shell_is_what_it_was() {
        assert_eq!(shell_word(b"/srv/pool"), "/srv/pool");
        assert_eq!(shell_word(b"/srv/$(x) \"y\""), "'/srv/$(x) \"y\"'");
        assert_eq!(shell_word("/srv/Bl\u{f6}cke".as_bytes()), "'/srv/Bl\u{f6}cke'");
        assert_eq!(shell_word(b"/srv/a\n'\xff"), "$'/srv/a\\012\\047\\377'");
    }
}
