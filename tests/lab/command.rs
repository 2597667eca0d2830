//! `cargo xtask lab` as operators run it: each command, fault and test bed, in labs separate from the tests'.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_lab::disks::Disks;
use fsstack_lab::gluster::{Gluster, Purge, Steps};
use fsstack_lab::shell::{Finished, command, which};
use fsstack_lab::{Skip, daemon, mounts, needs};
use serde_json::Value;

/// The program behind `cargo xtask`, in the daemon's directory.
fn xtask() -> Option<PathBuf> {
    Some(daemon::helper().ok()?.with_file_name("xtask")).filter(|program| program.exists())
}

/// A lab of this name; removed completely on drop.
struct Lab {
    program: PathBuf,
    name: &'static str,
}

impl Lab {
    /// `None`, and a skip, if `cargo xtask` is not built.
    fn named(name: &'static str) -> Option<Self> {
        match xtask() {
            Some(program) => {
                let lab = Self { program, name };
                // Leftovers of a killed run may have other sizes.
                lab.does(&["down", "--purge"]);
                Some(lab)
            }
            None => {
                Skip::because("needs xtask beside the daemon: `cargo build -p xtask`").announce();
                None
            }
        }
    }

    fn attempt(&self, words: &[&str]) -> Finished {
        let run = command(&self.program).args(["lab", "--name", self.name]).args(words);
        run.limit(Duration::from_secs(160)).output().unwrap()
    }

    #[track_caller]
    fn does(&self, words: &[&str]) -> String {
        let output = self.attempt(words);
        assert_eq!(output.code, 0, "{words:?}: {}{}", output.stdout, output.stderr);
        output.stdout
    }

    #[track_caller]
    fn refuses(&self, words: &[&str], why: &str) {
        let output = self.attempt(words);
        assert!(
            output.code != 0 && output.stderr.contains(why),
            "{words:?}: {}{}",
            output.stdout,
            output.stderr
        );
    }

    #[track_caller]
    fn status(&self) -> Value {
        serde_json::from_str(&self.does(&["status", "--json"])).unwrap()
    }

    /// Number of running bricks of a volume.
    #[track_caller]
    fn alive(&self, volume: &str) -> u64 {
        let status = self.status();
        let found = status["volumes"].as_array().unwrap().iter().find(|one| one["name"] == volume);
        found.unwrap_or_else(|| panic!("{status}"))["alive"].as_u64().unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let disks = Disks::all(self.name).unwrap_or_default();
        let gone = disks.iter().try_for_each(|disks| disks.down(Purge::Everything, Steps::Quiet));
        let gone = gone.and_then(|()| Gluster::named(self.name)?.down(Purge::Bricks, Steps::Quiet));
        assert!(gone.is_ok() || std::thread::panicking(), "{gone:?}");
    }
}

const UP: [&str; 7] = ["up", "--volumes", "dt2,rp2", "--bricks", "2", "--brick-size", "512M"];

#[test]
fn a_lab_is_made_looked_at_and_taken_down() {
    needs!(mounting(), gluster());
    let Some(lab) = Lab::named("errands") else { return };
    let said = lab.does(&UP);
    assert!(said.contains("up in "), "{said}");
    for volume in ["dt2", "rp2"] {
        let line = said.lines().find(|line| line.starts_with(volume)).unwrap();
        let at = Path::new(line.split_whitespace().last().unwrap());
        assert_eq!(mounts::at(at).unwrap().unwrap().fs_type, "fuse.glusterfs");
        std::fs::write(at.join("file"), volume).unwrap();
    }
    let status = lab.status();
    assert_eq!(status["bricks"].as_array().unwrap().len(), 2);
    for volume in status["volumes"].as_array().unwrap() {
        assert_eq!(
            (&volume["alive"], &volume["bricks"], &volume["usable"]),
            (&2.into(), &2.into(), &true.into())
        );
    }
    assert!(lab.does(&["status"]).contains("dt2"));
    let listed = lab.does(&["exec", "--", "gluster", "volume", "list"]);
    assert!(listed.contains("dt2") && listed.contains("rp2"), "{listed}");
    lab.refuses(&["exec", "--", "false"], "false ended with 1");
    // Everything exists already.
    let server = &status["server"];
    lab.does(&UP);
    assert_eq!(lab.status()["server"], *server);
    // Clients behind a slow link, and back.
    lab.does(&[&UP[..], &["--wan", "200mbit"]].concat());
    assert_eq!(lab.status()["wan"], true);
    lab.does(&UP);
    assert_eq!(lab.status()["wan"], false);
    lab.does(&["pool", "--volumes", "dt2,rp2", "-o", "create=ff,minfreespace=1M"]);
    let pool = Gluster::named("errands").unwrap().home().join("pool");
    std::fs::write(pool.join("through the pool"), "bytes").unwrap();
    lab.refuses(&["pool", "--volumes", "dt2,rp2"], "pool --down");
    lab.does(&["pool", "--down"]);
    assert_eq!(mounts::at(&pool).unwrap(), None);
    // Down twice; the volumes' content is there when it is up again.
    assert!(lab.does(&["down"]).contains("nothing is left"));
    assert!(lab.does(&["down"]).contains("nothing is left"));
    assert!(lab.status()["server"].is_null());
    lab.refuses(&["exec", "--", "true"], "");
    lab.does(&UP);
    let mounted = Gluster::named("errands").unwrap().mount_point("rp2".parse().unwrap());
    assert_eq!(std::fs::read(mounted.join("file")).unwrap(), b"rp2");
    lab.refuses(&["up", "--volumes", "dt4", "--bricks", "2"], "say --bricks");
    lab.refuses(&["up", "--volumes", "what"], "what");
}

#[test]
fn each_fault_is_made_and_ended() {
    needs!(mounting(), gluster());
    let Some(lab) = Lab::named("faults") else { return };
    lab.does(&UP);
    lab.does(&["fault", "kill-brick", "dt2", "1"]);
    assert_eq!((lab.alive("dt2"), lab.alive("rp2")), (1, 2));
    lab.refuses(&["fault", "kill-brick", "dt2", "1"], "brick 1 of dt2 does not run");
    lab.refuses(&["fault", "kill-brick", "dt2", "3"], "dt2 has 2 bricks, none is 3");
    lab.does(&["fault", "heal"]);
    assert_eq!(lab.alive("dt2"), 2);

    for frozen in [&["fault", "freeze", "rp2", "2"][..], &["fault", "freeze"]] {
        lab.does(frozen);
        let status = lab.status();
        assert_eq!(status["frozen"], true, "{status}");
        lab.does(&["fault", "thaw"]);
        assert_eq!(lab.status()["frozen"], false);
    }

    lab.does(&["fault", "cut-link"]);
    assert_eq!(lab.status()["cut"], true);
    lab.does(&["fault", "thaw"]);
    assert_eq!(lab.status()["cut"], false);

    lab.does(&["fault", "fill", "1", "--left", "8"]);
    let status = lab.status();
    assert_eq!(
        (&status["bricks"][0]["filled"], &status["bricks"][1]["filled"]),
        (&true.into(), &false.into())
    );
    assert!(status["bricks"][0]["free"].as_u64().unwrap() <= 9 << 20, "{status}");
    lab.refuses(&["fault", "fill", "7"], "there is no brick 7");
    lab.does(&["fault", "thaw"]);
    assert_eq!(lab.status()["bricks"][0]["filled"], false);

    lab.does(&["fault", "stop"]);
    assert!(lab.status()["server"].is_null());
    lab.does(&["fault", "heal"]);
    assert_eq!((lab.alive("dt2"), lab.alive("rp2")), (2, 2));
    // A lab with any fault can be taken down.
    lab.does(&["fault", "freeze"]);
    assert!(lab.does(&["down"]).contains("nothing is left"));
}

/// The fallback without podman and docker.
#[test]
fn a_server_runs_without_a_container_engine() {
    needs!(mounting(), gluster());
    let Some(lab) = Lab::named("chroot") else { return };
    lab.does(&[&UP[..], &["--engine", "chroot"]].concat());
    assert_eq!(lab.status()["engine"], "unshare and chroot");
    assert!(lab.does(&["exec", "--", "gluster", "volume", "list"]).contains("rp2"));
    lab.does(&["fault", "kill-brick", "dt2", "1"]);
    lab.does(&["fault", "heal"]);
    assert_eq!((lab.alive("dt2"), lab.alive("rp2")), (2, 2));
    assert!(lab.does(&["down"]).contains("nothing is left"));
    if which("docker").is_none() {
        lab.refuses(&[&UP[..], &["--engine", "docker"]].concat(), "docker: it is not installed");
    }
}

/// Killed at any moment, the next command continues or removes what is there.
#[test]
fn an_up_that_was_killed_half_way_is_repaired_by_the_next() {
    needs!(mounting(), gluster());
    let Some(lab) = Lab::named("killed") else { return };
    for (n, after) in [50, 200, 500, 900, 1500, 2500].into_iter().enumerate() {
        // Only the command gets the signal; what it has started goes on or ends by itself.
        let killed = "\"$@\" > /dev/null 2>&1 & sleep $AFTER; kill -9 $!; wait $! || :";
        let up = command("sh").args(["-c", killed, "sh"]).arg(&lab.program);
        let up = up
            .args(["lab", "--name", lab.name])
            .args(UP)
            .env("AFTER", format!("{}.{:03}", after / 1000, after % 1000));
        up.limit(Duration::from_secs(60)).run().unwrap();
        if n % 2 == 0 {
            lab.does(&UP);
            let status = lab.status();
            assert_eq!((lab.alive("dt2"), lab.alive("rp2")), (2, 2), "after {after} ms: {status}");
            let usable = |one: &Value| one["usable"] == true;
            assert!(status["volumes"].as_array().unwrap().iter().all(usable), "after {after} ms: {status}");
        }
        assert!(lab.does(&["down"]).contains("nothing is left"), "after {after} ms");
    }
}

#[test]
fn every_ground_is_made_and_taken_down() {
    needs!(mounting(), loops());
    let Some(lab) = Lab::named("grounds") else { return };
    let disks = ["xfs", "ext4", "btrfs-raid5", "btrfs-raid5-lzo", "btrfs-raid5-zstd"];
    for test_bed in disks.into_iter().chain(["zfs-raidz", "zfs-raidz-lzjb", "zfs-raidz-gzip"]) {
        let output = lab.attempt(&["up", "--ground", test_bed, "--bricks", "3", "--brick-size", "512M"]);
        if output.code != 0 {
            // A machine whose distribution lacks it.
            let why = output.stderr.lines().last().unwrap_or_default().to_owned();
            assert!(why.contains(&format!("{test_bed} needs the program")), "{}", output.stderr);
            Skip::because(why).announce();
            continue;
        }
        let status = lab.status();
        let mounted: Vec<PathBuf> = serde_json::from_value(status["grounds"][test_bed].clone()).unwrap();
        assert_eq!(mounted.len(), if test_bed.contains("raid") { 1 } else { 3 }, "{status}");
        let kind = |at: &PathBuf| mounts::at(at).unwrap().unwrap().fs_type;
        let begins = test_bed.split('-').next().unwrap();
        assert!(mounted.iter().all(|at| kind(at).contains(begins)), "{test_bed}: {:?}", kind(&mounted[0]));
        for at in &mounted {
            assert!(output.stdout.contains(at.to_str().unwrap()), "{}", output.stdout);
            std::fs::write(at.join("file"), test_bed).unwrap();
        }
        // A second `up` changes nothing; `down` leaves nothing mounted.
        lab.does(&["up", "--ground", test_bed, "--bricks", "3", "--brick-size", "512M"]);
        assert_eq!(std::fs::read(mounted[0].join("file")).unwrap(), test_bed.as_bytes());
        lab.does(&["down"]);
        assert_eq!(lab.status()["grounds"][test_bed], Value::Array(vec![]));
    }
    lab.refuses(&["up", "--ground", "ntfs"], "is no ground");
    lab.refuses(
        &["up", "--ground", "btrfs-raid5", "--bricks", "2", "--brick-size", "512M"],
        "needs at least 3 disks",
    );
}
