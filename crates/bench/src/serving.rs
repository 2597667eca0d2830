//! Processes that serve a directory: those of its file system and of all that it is stacked on.
//!
//! A daemon has its mount point among its arguments. Mounts are also matched by device, so that a bind mount leads to
//! its daemon. The lower layers of a union file system are in the mount table and its daemon's arguments.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_lab::mounts::{self, Mounted};
use fsstack_lab::shell::command;

/// Programs of a stack by the kernel's names (at most 15 characters), with our names for them.
const PROGRAMS: &[(&str, &str)] = &[
    ("mount.fsstack", FSSTACK),
    ("mount-fsstack", FSSTACK),
    ("fsstack", FSSTACK),
    ("mhddfs", "mhddfs"),
    ("mergerfs", "mergerfs"),
    ("glusterfs", GLUSTERFS),
    ("glusterfsd", BRICK),
    ("glusterd", "glusterd"),
    ("ganesha.nfsd", NFS_SERVER),
    ("nfsd", NFS_SERVER),
    ("unfsd", NFS_SERVER),
    ("zfs-fuse", ZFS),
    ("fuse-nfs", "NFS client"),
];

const FSSTACK: &str = "fsstack";
const GLUSTERFS: &str = "glusterfs";
pub(crate) const BRICK: &str = "glusterfsd";
const NFS_SERVER: &str = "NFS server";
const ZFS: &str = "zfs-fuse";

/// Programs whose own directories are on other file systems.
const UNIONS: &[&str] = &[FSSTACK, "mhddfs", "mergerfs"];

/// A process of the stack, and its program's name in results.
pub(crate) type Server = (u32, &'static str);

/// A process of a known program.
#[derive(Debug)]
struct Known {
    pid: u32,
    program: &'static str,
    arguments: Vec<OsString>,
}

impl Known {
    fn all() -> Vec<Self> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(Self::of).collect()
    }

    fn of(pid: u32) -> Option<Self> {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let (_, program) = PROGRAMS.iter().find(|(name, _)| *name == comm.trim_end())?;
        let raw = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let arguments = raw.split(|&b| b == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
        Some(Self { pid, program, arguments })
    }

    fn names(&self, points: &[&Path]) -> bool {
        self.arguments.iter().any(|argument| points.contains(&Path::new(argument)))
    }

    /// True if it is part of a GlusterFS volume's server: a brick, the self-heal daemon, or the management daemon.
    fn serves_volume(&self, volume: &str) -> bool {
        let id = |prefix: &str| self.arguments.iter().any(|a| a.as_bytes().starts_with(prefix.as_bytes()));
        match self.program {
            BRICK => id(&format!("{volume}.")),
            GLUSTERFS => id(&format!("shd/{volume}")),
            program => program == "glusterd",
        }
    }
}

/// Lists the processes that serve `dir`, with the NFS server `exported_by` through which it is read, if any.
pub(crate) fn serving(dir: &Path, exported_by: Option<u32>) -> Vec<Server> {
    Search::of(dir, exported_by.map(|pid| (pid, NFS_SERVER)).into_iter().collect()).found
}

/// A file system in a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) fs_type: String,
    /// A directory of it.
    pub(crate) dir: PathBuf,
}

/// File systems that `dir` is stacked on, its own first, as far as this machine has them.
pub(crate) fn layers(dir: &Path) -> Vec<Layer> {
    Search::of(dir, Vec::new()).layers
}

struct Search {
    known: Vec<Known>,
    table: Vec<Mounted>,
    /// Devices already visited.
    devices: BTreeSet<(u32, u32)>,
    found: Vec<Server>,
    /// The file systems visited.
    layers: Vec<Layer>,
}

impl Search {
    fn of(dir: &Path, found: Vec<Server>) -> Self {
        let table = mounts::all().unwrap_or_default();
        let mut search =
            Self { known: Known::all(), table, devices: BTreeSet::new(), found, layers: Vec::new() };
        search.below(dir);
        search
    }

    fn below(&mut self, dir: &Path) {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        // The deepest mount; of several at one path the last.
        let over = self.table.iter().filter(|mounted| dir.starts_with(&mounted.target));
        let Some(mounted) = over.max_by_key(|m| m.target.as_os_str().len()).cloned() else { return };
        if !self.devices.insert(mounted.device()) {
            return;
        }
        self.layers.push(Layer { fs_type: mounted.fs_type.clone(), dir: dir.clone() });
        if mounted.is_fuse() {
            self.fuse(&mounted).into_iter().for_each(|dir| self.below(&dir));
        } else if mounted.fs_type.starts_with("nfs") {
            // The exporting server is unknown: any on this machine counts.
            self.take(|known| known.program == NFS_SERVER);
        }
    }

    /// Adds the server of a FUSE mount; returns the directories below it.
    fn fuse(&mut self, mounted: &Mounted) -> Vec<PathBuf> {
        let same = self.table.iter().filter(|other| other.device() == mounted.device());
        let points: Vec<PathBuf> = same.map(|other| other.target.clone()).collect();
        let points: Vec<&Path> = points.iter().map(PathBuf::as_path).collect();
        let mut below = Vec::new();
        for known in self.known.iter().filter(|known| known.names(&points)) {
            if UNIONS.contains(&known.program) {
                let words = known.arguments.iter().chain([&mounted.source]);
                below
                    .extend(words.flat_map(|word| directories(word)).filter(|dir| !points.contains(&&**dir)));
            }
        }
        let gluster = mounted.fs_type == "fuse.glusterfs";
        if self.take(|known| known.names(&points)) == 0 && !gluster {
            // A machine has at most one, without a mount point in its arguments.
            self.take(|known| known.program == ZFS);
        }
        if gluster && let Some(volume) = volume_of(&mounted.source) {
            self.take(|known| known.serves_volume(&volume));
        }
        below
    }

    /// Returns the number of added processes.
    fn take(&mut self, which: impl Fn(&Known) -> bool) -> usize {
        let servers: Vec<Server> =
            self.known.iter().filter(|k| which(k)).map(|known| (known.pid, known.program)).collect();
        let count = servers.len();
        for server in servers {
            if !self.found.contains(&server) {
                self.found.push(server);
            }
        }
        count
    }
}

/// Directories in an argument: a list of branches, a branch with its mode.
fn directories(word: &OsStr) -> Vec<PathBuf> {
    let pieces = word.as_bytes().split(|b| b":,;=".contains(b));
    let paths = pieces.map(|piece| PathBuf::from(OsStr::from_bytes(piece)));
    paths.filter(|path| path.is_absolute() && path.is_dir()).collect()
}

/// `host:/volume/below` or `host:volume`.
fn volume_of(source: &OsStr) -> Option<String> {
    let (_, path) = source.to_str()?.rsplit_once(':')?;
    path.trim_start_matches('/').split('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Versions of the programs that serve `dir`, one per line.
pub(crate) fn versions(dir: &Path, exported_by: Option<u32>) -> Vec<String> {
    let mut results = Vec::new();
    let mut asked: Vec<&str> = Vec::new();
    for (pid, program) in serving(dir, exported_by) {
        // The server of bricks may be in a container with its own libraries.
        if asked.contains(&program) || [BRICK, "glusterd"].contains(&program) {
            continue;
        }
        asked.push(program);
        let how = if program == NFS_SERVER { "-v" } else { "--version" };
        // The running executable, even if the file was replaced.
        let asking = command(format!("/proc/{pid}/exe")).arg(how).limit(Duration::from_secs(10)).output();
        let said = asking.ok().and_then(|said| {
            let lines = said.stdout.lines().chain(said.stderr.lines()).map(str::trim);
            lines.map(str::to_owned).find(|line| line.contains(|c: char| c.is_ascii_digit()))
        });
        results.extend(
            said.map(|said| if said.contains(program) { said } else { format!("{program}: {said}") }),
        );
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_directory_has_no_servers() {
        assert_eq!(serving(Path::new("/proc"), None), []);
        let own = layers(Path::new("/proc/sys"));
        assert_eq!(own, [Layer { fs_type: "proc".into(), dir: "/proc/sys".into() }]);
        assert_eq!(serving(Path::new("/proc"), Some(7)), [(7, NFS_SERVER)]);
    }

    #[test]
    fn branches_are_found_in_every_spelling() {
        let found = |word: &str| directories(OsStr::new(word));
        assert_eq!(found("/proc=RW,10G:/sys"), [Path::new("/proc"), Path::new("/sys")]);
        assert_eq!(found("/proc,/sys"), [Path::new("/proc"), Path::new("/sys")]);
        assert_eq!(found("-o"), Vec::<PathBuf>::new());
        let volume = |source: &str| volume_of(OsStr::new(source));
        assert_eq!(volume("10.77.7.2:/dt8/below").as_deref(), Some("dt8"));
        assert_eq!(volume("localhost:rp2").as_deref(), Some("rp2"));
        assert_eq!(volume("/dev/sda1"), None);
    }
}
