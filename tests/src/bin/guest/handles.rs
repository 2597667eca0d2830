//! Files and directories that clients hold open over all events of the server.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use fsstack_tests::events::{Events, Sort};

use crate::test_bed::{CLIENTS, TestBed, attempt, complains_of_nothing, forget, in_pool, say, sh, until};

/// An object that a client holds open.
struct HeldHandle {
    path: String,
    sort: Sort,
    fd: File,
    ino: u64,
    text: Option<String>,
}

impl HeldHandle {
    fn new(client: &str, name: &str, sort: Sort) -> Self {
        let path = format!("{client}/{name}");
        let fd = match sort {
            Sort::Dir => File::open(&path),
            Sort::File | Sort::HardLink => OpenOptions::new().read(true).write(true).open(&path),
        };
        let fd = fd.unwrap();
        let ino = fd.metadata().unwrap().ino();
        let text = (sort != Sort::Dir).then(|| fs::read_to_string(&path).unwrap());
        Self { path, sort, fd, ino, text }
    }

    /// Checks that it leads to its object.
    fn check(&mut self) -> Result<(), String> {
        let said = |e: std::io::Error| format!("{}: {e}", self.path);
        let ino = self.fd.metadata().map_err(said)?.ino();
        if ino != self.ino {
            return Err(format!("{} is {ino} and no more {}", self.path, self.ino));
        }
        let Some(text) = &self.text else {
            let below = fs::read_dir(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).map_err(said)?;
            let empty =
                below.map(|entry| entry.map(drop)).collect::<Result<Vec<()>, _>>().map_err(said)?.is_empty();
            return if empty { Err(format!("{} is empty", self.path)) } else { Ok(()) };
        };
        let mut found = vec![0; text.len()];
        self.fd.read_exact_at(&mut found, 0).map_err(said)?;
        if found != text.as_bytes() {
            return Err(format!("{} leads to another file's bytes", self.path));
        }
        // Data written through it arrives in the file.
        self.fd.write_all_at(text.as_bytes(), 0).and_then(|()| self.fd.sync_all()).map_err(said)
    }
}

pub(crate) struct HoldingClient {
    events: Events,
    held: Vec<HeldHandle>,
}

impl HoldingClient {
    pub(crate) fn new(client: &str) -> Self {
        hold(client)
    }

    /// Prints the results.
    pub(crate) fn report(&self) {
        println!("{}", self.events);
    }

    /// Checks all handles of all clients.
    pub(crate) fn check(clients: &mut [Self], after: &str) {
        say(&format!("checking after: {after}"));
        // At once, and with empty caches.
        for _ in 0..2 {
            for client in &mut *clients {
                for held in &mut client.held {
                    client.events.tried(after, held.sort, held.check());
                }
                client.events.assert_right();
            }
            forget();
        }
    }
}

pub(crate) fn scenario(test_bed: &mut TestBed) {
    let mut clients: Vec<HoldingClient> = CLIENTS.iter().map(|client| hold(client)).collect();
    forget();
    HoldingClient::check(&mut clients, "drop_caches");
    test_bed.stop_server();
    test_bed.start_server();
    HoldingClient::check(&mut clients, "the server's restart");
    again(test_bed, "/mnt/a:/mnt/b");
    HoldingClient::check(&mut clients, "a remount of the pool");
    rename();
    forget();
    HoldingClient::check(&mut clients, "renames in the pool");
    // A further branch before the others, whose positions change.
    sh("mkdir -p /srv/c");
    again(test_bed, "/srv/c:/mnt/b:/mnt/a");
    HoldingClient::check(&mut clients, "another order of branches, and one more");
    again(test_bed, "/mnt/b:/mnt/a");
    HoldingClient::check(&mut clients, "a branch less");
    test_bed.stop_server();
    test_bed.kill_daemon();
    test_bed.unmount_pool();
    rename_behind();
    // As after a reboot.
    sh("umount /mnt/a /mnt/b && mount -t xfs /dev/vdc /mnt/b && mount -t xfs /dev/vdb /mnt/a");
    test_bed.mount_pool();
    test_bed.start_server();
    HoldingClient::check(&mut clients, "kill -9, renames on the branches, and branches mounted anew");
    lose_copies(&mut clients);
    move_files(&mut clients);
    again(test_bed, "/mnt/a:/mnt/b");
    HoldingClient::check(&mut clients, "moves to another branch");
    killed_under_the_server(test_bed, &mut clients);
    clients.iter().for_each(HoldingClient::report);
    removed(test_bed, &mut clients);
    drop(clients);
    without_a_branch(test_bed);
    // The server's configuration is the same as in the beginning.
    sh("fsstack nfs show /mnt/pool --clients 127.0.0.1 | grep -qxF \"$(grep ^/mnt /etc/exports.d/*)\"");
}

/// The daemon is killed while the server runs. Callers then get an I/O error from the kernel. When the server has been
/// stopped during a new mount of the pool, everything works again.
fn killed_under_the_server(test_bed: &TestBed, clients: &mut [HoldingClient]) {
    say("the daemon is killed under the running server");
    complains_of_nothing();
    test_bed.kill_daemon();
    for client in CLIENTS {
        // By a handle that the server's kernel has cached: the root's. One that the dead daemon would have to resolve
        // is ESTALE.
        let error = fs::metadata(format!("{client}/a new name")).expect_err("an answer of nobody");
        assert_eq!(error.raw_os_error(), Some(5), "{client}: {error}");
    }
    again(test_bed, "/mnt/a:/mnt/b");
    // The kernel's own ENOTCONN, which its server logs once.
    sh("dmesg | grep 'non-standard errno: -107'");
    sh("dmesg -c >/dev/null");
    HoldingClient::check(clients, "kill -9 under the running server");
}

/// Unmounts the pool and mounts it over these branches.
fn again(test_bed: &TestBed, branches: &str) {
    test_bed.stop_server();
    test_bed.unmount_pool();
    test_bed.mount_pool_over(branches);
    test_bed.start_server();
}

/// Directories lose the copy that their number came from.
fn lose_copies(clients: &mut [HoldingClient]) {
    for (n, client) in clients.iter_mut().enumerate() {
        let name = format!("two-{n}");
        sh(&format!("mkdir /mnt/a/{name} /mnt/b/{name} && touch /mnt/b/{name}/below"));
        client.held.push(HeldHandle::new(CLIENTS[n], &name, Sort::Dir));
        fs::remove_dir(format!("/mnt/a/{name}")).unwrap();
    }
    forget();
    HoldingClient::check(clients, "a directory lost its first copy");
}

/// Files grow until their branch is full.
fn move_files(clients: &mut [HoldingClient]) {
    for client in ["v3", "v4"] {
        let path = sh(&format!("cd /mnt/pool && find {client} -name 'file too'"));
        let path = path.trim();
        let from = if Path::new("/mnt/a").join(path).exists() { "/mnt/a" } else { "/mnt/b" };
        // Half of that is the pool's floor.
        sh(&format!("fallocate -l $(($(stat -f -c '%a * %S' {from}) - 8 * 1024 * 1024)) {from}/ballast"));
        let file = OpenOptions::new().write(true).open(in_pool(path)).unwrap();
        file.write_all_at(&vec![b'.'; 16 << 20], 4096).unwrap();
        drop(file);
        sh(&format!("rm {from}/ballast"));
        assert!(!Path::new(from).join(path).exists(), "{path} did not move");
    }
    forget();
    HoldingClient::check(clients, "moves to another branch");
}

/// Clients wait for objects on a missing branch, and find them when it is back. By v3 only: v4 clients must reclaim
/// open files before the server's grace period ends.
fn without_a_branch(test_bed: &TestBed) {
    let mut held = [hold("/mnt/v3")];
    again(test_bed, "/mnt/a");
    forget();
    thread::scope(|scope| {
        let checks = scope.spawn(|| HoldingClient::check(&mut held, "a branch was away"));
        thread::sleep(Duration::from_secs(4));
        again(test_bed, "/mnt/a:/mnt/b");
        checks.join().unwrap();
    });
}

fn hold(client: &str) -> HoldingClient {
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
    let names = [
        ("file", Sort::File),
        ("hard", Sort::HardLink),
        ("dir/deep", Sort::File),
        ("dir", Sort::Dir),
        ("dir/sub", Sort::Dir),
        ("", Sort::Dir),
    ];
    let held = names.iter().map(|(name, sort)| HeldHandle::new(&here, name, *sort)).collect();
    HoldingClient { events: Events::of(if client == CLIENTS[0] { "knfsd v3" } else { "knfsd v4.2" }), held }
}

/// Names change in the pool, not through NFS.
fn rename() {
    for client in ["v3", "v4"] {
        let at = |name: &str| in_pool(&format!("{client}/{name}"));
        fs::rename(at("file"), at("dir/sub/file too")).unwrap();
        fs::rename(at("dir/sub"), at("sub too")).unwrap();
        fs::rename(at("dir"), at("dir too")).unwrap();
        fs::rename(in_pool(client), in_pool(&format!("{client} too"))).unwrap();
    }
}

/// Names change on the branches, while the pool is not mounted.
fn rename_behind() {
    sh("for b in /mnt/a /mnt/b; do for v in v3 v4; do
          mv \"$b/$v too\" $b/$v; mv \"$b/$v/dir too\" $b/$v/other
        done; done 2>/dev/null; true");
}

/// Removed objects are stale, and stay so when new files are made. A newer server keeps a removed file alive that a v4
/// client has open, without a name, until it closes it.
fn removed(test_bed: &TestBed, clients: &mut [HoldingClient]) {
    sh("rm -rf /mnt/pool/*");
    for n in 0..200 {
        fs::write(in_pool(&format!("new{n}")), "new").unwrap();
    }
    forget();
    say("checking that what was removed is stale");
    let held = || clients.iter().flat_map(|client| &client.held);
    let live_on = held().filter(|held| !is_gone(held, |file| file.nlink() == 0)).count();
    if live_on > 0 {
        say(&format!("{live_on} live on without a name: the server is restarted"));
        test_bed.stop_server();
        test_bed.start_server();
        held().for_each(|held| assert!(is_gone(held, |_| false)));
    }
    assert_eq!(attempt("ls /mnt/v4 | wc -l").stdout.trim(), "200");
}

/// Waits until it is stale, or until `lives_on` holds for a file that v4 has open.
fn is_gone(held: &HeldHandle, lives_on: impl Fn(&fs::Metadata) -> bool) -> bool {
    let may_live_on = held.sort != Sort::Dir && held.path.starts_with(CLIENTS[1]);
    let mut gone = false;
    // An NFS client renames files that are open there, but these were removed by others.
    until("ESTALE", || match held.fd.metadata() {
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(116), "{}: {e}", held.path);
            gone = true;
            true
        }
        // From the client's attribute cache, which expires within seconds.
        Ok(meta) => {
            assert_eq!(meta.ino(), held.ino);
            may_live_on && lives_on(&meta)
        }
    });
    gone
}
