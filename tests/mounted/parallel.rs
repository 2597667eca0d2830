//! A name that is not at its cached location, or nowhere, is looked up on all remote branches in parallel.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, Pool, mounts, needs};

use crate::hung_branches::FrozenDaemon;
use crate::script::sh;

/// Number of requests that wait for a pool's daemon.
fn waiting(pool: &Pool) -> u32 {
    let connection = mounts::at(pool.path()).unwrap().unwrap().connection();
    let count = format!("/sys/fs/fuse/connections/{connection}/waiting");
    fs::read_to_string(count).unwrap().trim().parse().unwrap()
}

/// Four pools act as four servers: their daemons are frozen during the lookup.
#[test]
fn four_network_branches_are_asked_at_once() {
    needs!(mounting());
    let connections = Path::new("/sys/fs/fuse/connections");
    if fs::read_dir(connections).map_or(true, |mut entries| entries.next().is_none())
        && mounts::at(connections).unwrap().is_none()
    {
        // Mounted in a private directory; it shows the number of waiting requests.
        sh("/", &format!("mount -t fusectl fusectl {}", connections.display()));
    }
    let servers: Vec<Pool> =
        (0..4).map(|_| lab::pool().tmp_branch("disk").option("entry-timeout=0").mount()).collect();
    let branches: Vec<String> = servers.iter().map(|server| server.path().display().to_string()).collect();
    servers.iter().for_each(|server| server.mkdir("d"));
    servers[2].write("d/film", b"on the third");
    // The directory's own lookup must not be repeated, which begins with its first copy, however slow the machine is.
    let pool = lab::pool().over(&branches).option("branch-timeout=0").option("entry-timeout=60").mount();
    assert_eq!(pool.list("d"), ["film"]);
    // Nor must the kernel forget the directory, as when another test has it drop what it keeps.
    let _held = fs::File::open(pool.at("d")).unwrap();
    // From now on the directory's copies are open, and their paths resolved.
    assert!(!pool.at("d/nothing").exists());
    let still: Vec<_> = servers.iter().map(|server| FrozenDaemon::new(server.daemon())).collect();
    let asked = std::thread::spawn({
        let path = pool.at("d/missing");
        move || fs::symlink_metadata(path).map_err(|error| error.kind())
    });
    // None has answered, and all have a request.
    let began = Instant::now();
    let requests = loop {
        let requests: Vec<_> = servers.iter().map(waiting).collect();
        if !requests.contains(&0) || began.elapsed() > Duration::from_secs(20) {
            break requests;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    drop(still);
    let answer = asked.join().unwrap().map(drop);
    assert!(!requests.contains(&0), "only some were asked: {requests:?}, then {answer:?}");
    assert_eq!(answer, Err(std::io::ErrorKind::NotFound));
    assert_eq!(pool.read("d/film"), b"on the third");
    sh(pool.path(), "rm -r d");
}
