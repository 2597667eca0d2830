//! Files and directories that a client holds open, over whatever happens to the server.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::ground::{CLIENTS, Ground, forget, in_pool, say, sh, told, until};

/// Something that a client holds open.
struct Held {
    path: String,
    fd: File,
    ino: u64,
    text: Option<String>,
}

impl Held {
    fn new(client: &str, name: &str) -> Self {
        let path = format!("{client}/{name}");
        let is_dir = fs::metadata(&path).unwrap().is_dir();
        let fd =
            if is_dir { File::open(&path) } else { OpenOptions::new().read(true).write(true).open(&path) };
        let fd = fd.unwrap();
        let ino = fd.metadata().unwrap().ino();
        let text = (!is_dir).then(|| fs::read_to_string(&path).unwrap());
        Self { path, fd, ino, text }
    }

    /// It leads to its object.
    #[track_caller]
    fn check(&mut self) {
        let meta = self.fd.metadata();
        let meta = meta.unwrap_or_else(|e| panic!("{}: {e}", self.path));
        assert_eq!(meta.ino(), self.ino, "{}", self.path);
        let Some(text) = &self.text else {
            let below = fs::read_dir(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
            let below = below.unwrap_or_else(|e| panic!("{}: {e}", self.path));
            return assert_ne!(below.map(Result::unwrap).count(), 0, "{}", self.path);
        };
        let mut found = String::new();
        self.fd.seek(SeekFrom::Start(0)).unwrap();
        self.fd.read_to_string(&mut found).unwrap_or_else(|e| panic!("{}: {e}", self.path));
        assert_eq!(&found, text, "{}", self.path);
        // What is written by it arrives in the file of that name.
        self.fd.seek(SeekFrom::Start(0)).unwrap();
        self.fd.write_all(text.as_bytes()).unwrap_or_else(|e| panic!("{}: {e}", self.path));
        self.fd.sync_all().unwrap_or_else(|e| panic!("{}: {e}", self.path));
    }
}

struct Client {
    held: Vec<Held>,
}

impl Client {
    fn check(clients: &mut [Self], after: &str) {
        say(&format!("checking after: {after}"));
        // At once, and with nothing of it in memory.
        for _ in 0..2 {
            clients.iter_mut().flat_map(|client| &mut client.held).for_each(Held::check);
            forget();
        }
    }
}

pub(crate) fn story(ground: &mut Ground) {
    let mut clients: Vec<Client> = CLIENTS.iter().map(|client| hold(client)).collect();
    Client::check(&mut clients, "nothing");
    forget();
    Client::check(&mut clients, "drop_caches");
    ground.stop_server();
    ground.start_server();
    Client::check(&mut clients, "the server's restart");
    ground.stop_server();
    ground.unmount_pool();
    ground.mount_pool();
    ground.start_server();
    Client::check(&mut clients, "a remount of the pool");
    rename();
    forget();
    Client::check(&mut clients, "renames");
    ground.stop_server();
    ground.kill_daemon();
    ground.unmount_pool();
    rename_behind();
    ground.mount_pool();
    ground.start_server();
    Client::check(&mut clients, "kill -9 of the daemon, and renames on the branches");
    removed(&mut clients);
    drop(clients);
    without_a_branch(ground);
}

/// What is on a branch that is away is waited for, and is there when the branch is back. (By v3: clients of v4 must claim
/// back what they have open before the server's grace ends.)
fn without_a_branch(ground: &Ground) {
    let mut held = [hold("/mnt/v3")];
    let swap = |branches: &str| {
        ground.stop_server();
        ground.unmount_pool();
        ground.mount_pool_over(branches);
        ground.start_server();
    };
    swap("/mnt/a");
    forget();
    thread::scope(|scope| {
        let checks = scope.spawn(|| Client::check(&mut held, "a branch was away"));
        thread::sleep(Duration::from_secs(4));
        swap("/mnt/a:/mnt/b");
        checks.join().unwrap();
    });
}

fn hold(client: &str) -> Client {
    let here = format!("{client}/{}", Path::new(client).file_name().unwrap().to_str().unwrap());
    let make = || -> std::io::Result<()> {
        fs::create_dir_all(format!("{here}/dir/sub"))?;
        for name in ["file", "hard", "dir/deep"] {
            fs::write(format!("{here}/{name}"), format!("{here}/{name}"))?;
        }
        fs::write(format!("{here}/dir/sub/below"), "below")?;
        fs::hard_link(format!("{here}/hard"), format!("{here}/dir/hard too"))
    };
    make().unwrap();
    let names = ["file", "hard", "dir/deep", "dir", "dir/sub", ""];
    let held = names.iter().map(|name| Held::new(&here, name)).collect();
    Client { held }
}

/// Names change in the pool, past NFS.
fn rename() {
    for client in ["v3", "v4"] {
        let at = |name: &str| in_pool(&format!("{client}/{name}"));
        fs::rename(at("file"), at("dir/sub/file too")).unwrap();
        fs::rename(at("dir/sub"), at("sub too")).unwrap();
        fs::rename(at("dir"), at("dir too")).unwrap();
        fs::rename(in_pool(client), in_pool(&format!("{client} too"))).unwrap();
    }
}

/// Names change on the branches, while there is no pool.
fn rename_behind() {
    sh("for b in /mnt/a /mnt/b; do for v in v3 v4; do
          mv \"$b/$v too\" $b/$v; mv \"$b/$v/dir too\" $b/$v/other
        done; done 2>/dev/null; true");
}

/// What is gone is stale, and stays so when new files come.
fn removed(clients: &mut [Client]) {
    sh("rm -rf /mnt/pool/v3 /mnt/pool/v4");
    for n in 0..200 {
        fs::write(in_pool(&format!("new{n}")), "new").unwrap();
    }
    forget();
    say("checking that what was removed is stale");
    for held in clients.iter_mut().flat_map(|client| &mut client.held) {
        // (An NFS client renames what is open there, but these were removed past it.)
        until("ESTALE", || match held.fd.metadata() {
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(116), "{}: {e}", held.path);
                true
            }
            // The client's attribute cache: it asks again within seconds.
            Ok(meta) => {
                assert_eq!(meta.ino(), held.ino);
                false
            }
        });
    }
    assert_eq!(told("ls /mnt/v4 | wc -l").stdout.trim(), "200");
}
