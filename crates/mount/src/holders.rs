//! Who keeps an exported pool from being unmounted, and how each lets go.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use fsstack_pool::Printable;

use crate::nfs::escaped;

/// What the kernel's server exports: what it was told, and what it has been asked for.
const EXPORTED: [&str; 2] = ["/var/lib/nfs/etab", "/proc/fs/nfsd/exports"];
/// How many threads the kernel's server has.
const THREADS: &str = "/proc/fs/nfsd/threads";

/// Somebody who holds a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The kernel's NFS server, for these clients.
    Kernel {
        /// As exports(5) has them.
        clients: Vec<String>,
        /// The pool's mount point.
        mount_point: PathBuf,
    },
    /// A process that has something of the pool open: nfs-ganesha, a shell.
    Process {
        /// What it calls itself.
        name: String,
        /// Its number.
        pid: i32,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { clients, mount_point } => {
                let path = Printable::path(mount_point);
                write!(f, "the kernel's NFS server exports it: ")?;
                for client in clients {
                    write!(f, "exportfs -u {client}:{path}; ")?;
                }
                write!(f, "exportfs -f; then unmount, after a few seconds")
            }
            Self::Process { name, pid } if name.starts_with("ganesha") => {
                write!(f, "nfs-ganesha (process {pid}) exports it: stop the server first")
            }
            Self::Process { name, pid } => write!(f, "{name} (process {pid}) uses it"),
        }
    }
}

/// Who holds the pool at `mount_point`, but for the process that serves it. What cannot be seen is left out.
pub fn of(mount_point: &Path) -> Vec<Holder> {
    let tables = EXPORTED.map(|table| fs::read_to_string(table).unwrap_or_default());
    let clients = clients(&tables.concat(), mount_point);
    let kernel = (is_serving() && !clients.is_empty())
        .then(|| Holder::Kernel { clients, mount_point: mount_point.to_owned() });
    kernel.into_iter().chain(processes(Path::new("/proc"), mount_point)).collect()
}

/// Whether the kernel's NFS server runs on this machine.
pub fn is_serving() -> bool {
    let threads = fs::read_to_string(THREADS).unwrap_or_default();
    threads.trim().parse::<u32>().is_ok_and(|threads| threads > 0)
}

/// The clients that the lines of a table name for the pool, each once.
fn clients(table: &str, mount_point: &Path) -> Vec<String> {
    let path = escaped(mount_point);
    let mut clients = Vec::new();
    for line in table.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some(&*path) {
            continue;
        }
        let names = words.filter_map(|word| word.split_once('(')).map(|(client, _)| client.to_owned());
        for client in names {
            if !clients.contains(&client) {
                clients.push(client);
            }
        }
    }
    clients
}

/// The processes that have the mount point, or what lies below it, open, or work there. Links are only read: nobody
/// waits for the pool.
fn processes(proc: &Path, mount_point: &Path) -> Vec<Holder> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut holders: Vec<Holder> = Vec::new();
    for pid in pids.filter(|pid| *pid != own) {
        let dir = proc.join(pid.to_string());
        let open = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().map(|fd| fd.path());
        let mut links = open.chain(["cwd", "root"].map(|link| dir.join(link)));
        if links.any(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(mount_point))) {
            let name = fs::read_to_string(dir.join("comm")).unwrap_or_default();
            holders.push(Holder::Process { name: name.trim_end().to_owned(), pid });
        }
    }
    holders.sort_by_key(|holder| match holder {
        Holder::Kernel { .. } => 0,
        Holder::Process { pid, .. } => *pid,
    });
    holders
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn clients_are_read_from_either_table() {
        let etab = "/srv/pool\t10.0.0.0/8(rw,sync,fsid=1)\n/srv/other\t*(ro)\n";
        let asked = "# Path Client(Flags)\n/srv/pool\t10.0.0.0/8(rw,sync)\n/srv/pool\t*(ro)\n";
        assert_eq!(clients(&[etab, asked].concat(), Path::new("/srv/pool")), ["10.0.0.0/8", "*"]);
        assert_eq!(clients("/a\\040b\th(rw)\n", Path::new("/a b")), ["h"]);
        assert!(clients(etab, Path::new("/srv")).is_empty());
    }

    #[test]
    fn who_has_something_open_is_named() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, comm, to) in [("7000001", "ganesha.nfsd\n", "/srv/pool"), ("7000002", "sh\n", "/srv/pool2")]
        {
            let dir = proc.path().join(pid);
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("comm"), comm).unwrap();
            symlink(to, dir.join("fd/3")).unwrap();
            symlink("/", dir.join("cwd")).unwrap();
        }
        let found = processes(proc.path(), Path::new("/srv/pool"));
        assert_eq!(found, [Holder::Process { name: "ganesha.nfsd".into(), pid: 7_000_001 }]);
        assert!(found[0].to_string().contains("stop the server first"));
    }

    #[test]
    fn the_kernels_server_is_told_how_to_let_go() {
        let holder = Holder::Kernel { clients: vec!["10.0.0.0/8".into()], mount_point: "/srv/pool".into() };
        assert!(holder.to_string().contains("exportfs -u 10.0.0.0/8:/srv/pool; exportfs -f"));
    }
}
