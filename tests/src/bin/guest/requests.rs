//! Cost of a client's operation for the pool: the calls that reach the server, and the requests that the server's
//! kernel sends to the daemon.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use fsstack_lab::Requests;
use rustix::fs::OFlags;

use crate::figures::{mounted_by_a_client, serve_both, unmount};
use crate::test_bed::{TestBed, say};

/// Number of names, or of pieces of 1 MiB.
const COUNT: usize = 32;
/// The server closes a file used by v3 after a few seconds without requests.
const SETTLED: Duration = Duration::from_secs(6);

/// One of the operations, the n-th time: on a name in a directory, or on an open file there, bypassing the client's
/// cache.
type Act = fn(&Path, &File, usize) -> io::Result<()>;

const ACTS: &[(&str, Act)] = &[
    ("create", |dir, _, n| File::create_new(dir.join(n.to_string())).map(drop)),
    ("stat", |dir, _, n| fs::symlink_metadata(dir.join(n.to_string())).map(drop)),
    ("open to read", |dir, _, n| File::open(dir.join(n.to_string())).map(drop)),
    ("write 1 MiB", |_, data, n| data.write_all_at(&vec![7; MIB], at(n))),
    ("write it again", |_, data, n| data.write_all_at(&vec![8; MIB], at(n))),
    ("read 1 MiB", |_, data, n| data.read_exact_at(&mut vec![0; MIB], at(n))),
    ("unlink", |dir, _, n| fs::remove_file(dir.join(n.to_string()))),
];
const MIB: usize = 1 << 20;

fn direct(path: &Path) -> File {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap();
    OpenOptions::new().create_new(true).read(true).write(true).custom_flags(flags).open(path).unwrap()
}

fn at(n: usize) -> u64 {
    (n * MIB) as u64
}

pub(crate) fn scenario(test_bed: &mut TestBed) {
    serve_both(test_bed);
    for target in mounted_by_a_client() {
        let Some((name, path)) = target.split_once('=').filter(|(name, _)| name.starts_with("pool")) else {
            continue;
        };
        let dir = Path::new(path).join(name);
        fs::create_dir(&dir).unwrap();
        let data = direct(&dir.join("data"));
        let requests = Requests::to(Path::new("/mnt/pool"));
        for (what, act) in ACTS {
            let before = calls(path);
            drop(requests.counted());
            (0..COUNT).for_each(|n| act(&dir, &data, n).unwrap());
            sleep(SETTLED);
            let asked = requests.counted();
            let mut made = calls(path);
            made.iter_mut().for_each(|(call, count)| *count -= before.get(call).copied().unwrap_or_default());
            say(&format!("{name}, {what}: calls{}; requests{}", each(&made), each(&asked)));
        }
    }
    unmount();
}

/// Number of each for one operation.
fn each(counted: &BTreeMap<String, usize>) -> String {
    let of_one = |(name, count): (&String, &usize)| format!(" {name} {:.2}", *count as f64 / COUNT as f64);
    counted.iter().filter(|(_, count)| **count > 0).map(of_one).collect()
}

/// Calls that the client of the mount at `path` has made so far.
fn calls(path: &str) -> BTreeMap<String, usize> {
    let text = fs::read_to_string("/proc/self/mountstats").unwrap();
    let mounted = format!(" mounted on {path} ");
    let ours = text.split("device ").find(|device| device.contains(&mounted)).expect("the client's mount");
    let (_, rows) = ours.split_once("per-op statistics").expect("its calls");
    let row = |line: &str| {
        let (call, numbers) = line.trim().split_once(": ")?;
        Some((call.to_owned(), numbers.split_whitespace().next()?.parse().ok()?))
    };
    rows.lines().filter_map(row).collect()
}
