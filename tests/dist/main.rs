//! Packages of `cargo xtask dist` on a system without any part of fsstack: `cargo xtask test --tier dist`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod bare;
mod elsewhere;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_lab::debian::System;
use fsstack_lab::shell::command;
use fsstack_lab::{Skip, needs};
use serde_json::Value;

/// Environment variable with the packages' directory.
const VARIABLE: &str = "FSSTACK_DIST";

fn dist() -> Result<PathBuf, Skip> {
    std::env::var_os(VARIABLE).map(PathBuf::from).ok_or_else(|| {
        Skip::because(format!("needs packages, named by {VARIABLE}: cargo xtask test --tier dist"))
    })
}

/// The one file whose name ends in `ending`.
fn file(dist: &Path, ending: &str) -> PathBuf {
    let sums = fs::read_to_string(dist.join("SHA256SUMS")).unwrap();
    let names: Vec<&str> = sums.lines().filter_map(|line| line.split("  ").nth(1)).collect();
    let found: Vec<&&str> = names.iter().filter(|name| name.ends_with(ending)).collect();
    assert_eq!(found.len(), 1, "one {ending} in {names:?}");
    dist.join(found[0])
}

/// The Debian package of that name.
fn package(dist: &Path, name: &str) -> PathBuf {
    let architecture = command("dpkg").arg("--print-architecture").run().unwrap().stdout;
    dist.join(format!("{name}_{}-1_{}.deb", env!("CARGO_PKG_VERSION"), architecture.trim()))
}

/// A fresh system with the package in /root.
fn fresh(package: &Path) -> Result<System, Skip> {
    let system = System::fresh().map_err(|e| Skip::because(format!("needs a fresh system: {e:#}")))?;
    fs::copy(package, system.root().join("root").join(package.file_name().unwrap())).unwrap();
    Ok(system)
}

/// Runs scripts in turn in one fresh system; returns their output.
fn in_a_fresh_system(package: &Path, scripts: &[&str]) -> Result<String, Skip> {
    let script = [&["cd /root"], scripts].concat().join("\n");
    match fresh(package)?.script(&script).run() {
        Ok(done) => Ok(done.stdout),
        Err(e) => panic!("{e:#}"),
    }
}

/// Makes two branches, a mount point and its line in fstab, and lists every file of the system.
const PREPARE: &str = r#"
    mkdir -p /srv/disk1 /srv/disk2 /srv/pool
    mount -t tmpfs disk1 /srv/disk1; mount -t tmpfs disk2 /srv/disk2
    echo '/srv/disk1:/srv/disk2  /srv/pool  fsstack  create=mfs,minfreespace=1M  0  0' > /etc/fstab
    files() { find / -xdev | grep -vE '^/var/(lib/dpkg|lib/apt|cache|log/apt|log/dpkg.log)' | sort; }
    not() { if "$@" > /dev/null 2>&1; then echo "this should not work: $*" >&2; exit 1; fi; }
    ended() { for i in $(seq 200); do pgrep -x mount.fsstack > /dev/null || return 0; sleep 0.05; done; return 1; }
    files > /run/before
"#;

const INSTALL: &str = "apt-get install -qq -y ./fsstack_*.deb > /run/said 2>&1 || { cat /run/said; exit 1; }";

/// Purges the package; only dpkg's own records remain.
const PURGE: &str = "apt-get purge -qq -y fsstack > /run/said 2>&1 || { cat /run/said; exit 1; }; files > /run/after; \
                     diff /run/before /run/after >&2";

#[test]
fn a_package_is_installed_used_and_purged() {
    needs!(mounting(), program("mmdebstrap"), program("unshare"));
    let used = r#"
        fsstack --version; mount.fsstack --version; fsstack-bench --version
        dpkg --verify fsstack
        mount -a
        findmnt -no FSTYPE /srv/pool
        echo words > /srv/pool/file; cat /srv/disk?/file
        fsstack status /srv/pool | grep -c /srv/disk
        for page in /usr/share/man/man8/{mount.,}fsstack.8.gz; do zcat $page | head -1 | cut -c 1-3; done
        bash -c '. /usr/share/bash-completion/completions/fsstack; complete -p fsstack' | grep -o -- '-F _fsstack'
        # It stays while a pool is mounted, and may be replaced.
        if apt-get purge -qq -y fsstack > /run/said 2>&1; then exit 1; fi; grep -o 'unmount them first' /run/said
        apt-get install -qq -y --reinstall ./fsstack_*.deb > /dev/null 2>&1
        cat /srv/pool/file
        umount /srv/pool; ended; cat /srv/disk?/file"#;
    let printed = dist()
        .and_then(|dist| in_a_fresh_system(&package(&dist, "fsstack"), &[PREPARE, INSTALL, used, PURGE]));
    let printed = match printed {
        Ok(printed) => printed,
        Err(skip) => return skip.announce(),
    };
    let (versions, rest) =
        printed.split_at(printed.find("fuse.fsstack").unwrap_or_else(|| panic!("{printed}")));
    assert_eq!(versions.lines().count(), 3, "{versions}");
    let expected = "fuse.fsstack\nwords\n2\n.ie\n.ie\n-F _fsstack\nunmount them first\nwords\nwords\n";
    assert_eq!(rest, expected);
}

/// Runs the unit's commands as systemd would, where it cannot boot; systemd checks its syntax.
#[test]
fn the_unit_mounts_and_clears_up_and_the_log_is_rotated() {
    needs!(mounting(), program("mmdebstrap"), program("unshare"));
    let used = r#"
        unit=/usr/lib/systemd/system/fsstack@.service
        cp /etc/fsstack/example.conf /etc/fsstack/media.conf
        systemd-analyze verify --man=no fsstack@media.service
        # NFS servers start after the pool, and stop before it.
        grep -x 'Before=nfs-server.service nfs-ganesha.service' $unit > /dev/null
        line() { sed -n "s/^$1=-\?//p" $unit | sed 's/\$\$/$/g'; }
        run() { (set -a; eval "$(line Environment)"; . /etc/fsstack/media.conf; eval "$(line $1)"); }
        run ExecStart
        findmnt -no FSTYPE /srv/pool
        fsstack get /srv/pool create; fsstack status /srv/pool > /dev/null
        # What systemd sends to end it.
        pkill -TERM -x mount.fsstack; ended; not findmnt /srv/pool
        run ExecStopPost || :
        run ExecStart
        pkill -KILL -x mount.fsstack; ended; while stat -f /srv/pool > /dev/null 2>&1; do sleep 0.05; done
        run ExecStopPost; not findmnt /srv/pool; stat -c %F /srv/pool
        # A log of its own, for others to keep short.
        mount.fsstack /srv/disk1:/srv/disk2 /srv/pool -o log=/var/log/fsstack/pool.log
        # The helper returns before the daemon says what it has mounted.
        until [ -s /var/log/fsstack/pool.log ]; do sleep 0.05; done
        logrotate --force --state /run/rotated /etc/logrotate.d/fsstack
        stat -c '%n %s' /var/log/fsstack/pool.log; ls /var/log/fsstack/pool.log.1
        umount /srv/pool; ended; grep -o unmounted /var/log/fsstack/pool.log"#;
    let printed = dist()
        .and_then(|dist| in_a_fresh_system(&package(&dist, "fsstack"), &[PREPARE, INSTALL, used, PURGE]));
    let printed = match printed {
        Ok(printed) => printed,
        Err(skip) => return skip.announce(),
    };
    let expected = "fuse.fsstack\nmspmfs>any\ndirectory\n/var/log/fsstack/pool.log 0\n/var/log/fsstack/pool.log.1\nunmounted\n";
    assert_eq!(printed, expected);
}

/// The unit in a system that has booted: its properties, the daemon's death, and removal of the package.
#[test]
fn systemd_starts_the_pool_in_a_group_of_its_own_and_again_when_it_dies() {
    needs!(mounting(), program("mmdebstrap"), program("unshare"));
    let scenario = r#"
        mkdir -p /srv/disk1 /srv/disk2 /srv/pool; mount -t tmpfs a /srv/disk1; mount -t tmpfs b /srv/disk2
        apt-get install -qq -y ./fsstack_*.deb > /dev/null
        sed '/^OPTIONS/d' /etc/fsstack/example.conf > /etc/fsstack/media.conf
        systemctl enable --quiet --now fsstack@media
        findmnt -no FSTYPE /srv/pool; echo words > /srv/pool/file
        # In a group of its own, where SCHED_IDLE threads do not starve.
        pid=$(systemctl show -P MainPID fsstack@media)
        grep -q 'fsstack@media.service$' /proc/$pid/cgroup
        daemon=$(pgrep -P $pid)
        chrt -p $(grep -l fuse-0 /proc/$daemon/task/*/comm | head -1 | cut -d/ -f5) | grep -o 'SCHED_.*'
        # An open file goes on over the daemon's death and an upgrade; both are the same service to systemd.
        exec 7>> /srv/pool/file
        kill -KILL $daemon; echo 'after a death' >&7
        systemctl reload fsstack@media && echo 'after an upgrade' >&7
        exec 7>&-; [ $pid = $(systemctl show -P MainPID fsstack@media) ]
        # A service that died with its keeper is started again, and what it left cleared away.
        systemctl kill --signal=KILL --kill-whom=main fsstack@media
        for i in $(seq 300); do
            again=$(systemctl show -P MainPID fsstack@media)
            [ $again = 0 ] || [ $again = $pid ] || ! systemctl -q is-active fsstack@media || break
            sleep 0.1
        done
        cat /srv/pool/file; findmnt -no FSTYPE /srv/pool
        systemctl stop fsstack@media; findmnt /srv/pool || echo stopped
        systemctl start fsstack@media; findmnt -no FSTYPE /srv/pool
        apt-get purge -qq -y fsstack > /dev/null; findmnt /srv/pool || echo purged
        cat /srv/disk?/file; find /etc /run /usr /var -xdev -name '*fsstack*' | grep -v '^/var/lib/dpkg\|^/var/cache\|/run/systemd' || echo nothing left"#;
    let printed = dist().and_then(|dist| {
        let system = fresh(&package(&dist, "fsstack"))?;
        let ended = system.boot(scenario).unwrap().output().unwrap();
        let read = |name: &str| fs::read_to_string(system.root().join("root").join(name));
        let why =
            || Skip::because(format!("needs systemd in cgroups of its own: {}", ended.stderr.trim_end()));
        let printed = read("output").map_err(|_| why())?;
        assert_eq!(ended.code, 0, "{printed}{}", read("said").unwrap());
        Ok(printed)
    });
    let printed = match printed {
        Ok(printed) => printed,
        Err(skip) => return skip.announce(),
    };
    // The system's groups are those of the unified hierarchy, and there is one for the CPU only if that has its controller.
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let scheduled =
        if controllers.split_whitespace().any(|name| name == "cpu") { "SCHED_IDLE" } else { "SCHED_OTHER" };
    let expected = format!(
        "fuse.fsstack\n{scheduled}\nwords\nafter a death\nafter an upgrade\nfuse.fsstack\nstopped\nfuse.fsstack\npurged\n\
         words\nafter a death\nafter an upgrade\nnothing left\n"
    );
    assert_eq!(printed, expected);
}

/// The tarball for this machine.
fn tarball(dist: &Path) -> PathBuf {
    file(dist, &format!("{}-linux-static.tar.gz", std::env::consts::ARCH))
}

#[test]
fn the_tarball_has_what_the_package_has_and_the_sums_are_right() {
    needs!(program("tar"), program("dpkg-deb"), program("sha256sum"));
    let dist = match dist() {
        Ok(dist) => dist,
        Err(skip) => return skip.announce(),
    };
    command("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).dir(&dist).run().unwrap();
    // Mode, owner, and path with a link's target.
    let parts = |listed: &str, prefix: &dyn Fn(&str) -> String| -> BTreeSet<(String, String, String)> {
        let part = |line: &str| {
            let mut words = line.split_whitespace();
            let (mode, owner) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
            let path = words.skip(3).collect::<Vec<_>>().join(" ");
            (mode, owner.replace("root/root", "0/0"), prefix(path.trim_end_matches('/')))
        };
        listed.lines().map(part).collect()
    };
    let package = command("dpkg-deb").arg("--contents").arg(package(&dist, "fsstack")).run().unwrap().stdout;
    let tarball = command("tar").args(["--list", "-v", "-f"]).arg(tarball(&dist)).run().unwrap().stdout;
    // Debian has zsh's completions in a folder of its own.
    let package = package.replace("zsh/vendor-completions", "zsh/site-functions");
    let package = parts(&package, &|path| path.trim_start_matches('.').to_owned());
    let tarball = parts(&tarball, &|path| path.find('/').map_or("", |at| &path[at..]).to_owned());
    assert_eq!(package, tarball);
    assert!(tarball.iter().all(|(_, owner, _)| owner == "0/0"), "{tarball:?}");
    // It runs from any directory where it is unpacked.
    let dir = tempfile::tempdir().unwrap();
    command("tar")
        .args(["-x", "--strip-components=1", "-C"])
        .arg(dir.path())
        .arg("-f")
        .arg(self::tarball(&dist))
        .limit(Duration::from_secs(120))
        .run()
        .unwrap();
    let version = command(dir.path().join("usr/sbin/mount.fsstack")).arg("--version").run().unwrap().stdout;
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}

/// A debugger finds the symbols by a program's build id.
#[test]
fn the_symbols_of_each_program_are_in_a_package_of_their_own() {
    needs!(program("dpkg-deb"), program("readelf"), program("nm"), program("addr2line"));
    let dist = match dist() {
        Ok(dist) => dist,
        Err(skip) => return skip.announce(),
    };
    let dir = tempfile::tempdir().unwrap();
    let packages = ["fsstack", "fsstack-dbgsym"].map(|name| package(&dist, name));
    for package in &packages {
        command("dpkg-deb").arg("--extract").args([package, dir.path()]).run().unwrap();
    }
    let field = |package: &Path, name: &str| {
        command("dpkg-deb").arg("--field").arg(package).arg(name).run().unwrap().stdout.trim().to_owned()
    };
    assert_eq!(field(&packages[1], "Depends"), format!("fsstack (= {})", field(&packages[0], "Version")));
    let ids = field(&packages[1], "Build-Ids");
    for program in ["usr/sbin/mount-fsstack", "usr/sbin/fsstack", "usr/bin/fsstack-bench"] {
        let program = dir.path().join(program);
        let notes = command("readelf").args(["--notes", "--wide"]).arg(&program).run().unwrap().stdout;
        let id = notes.lines().find_map(|line| line.split_once("Build ID: ")).unwrap().1.trim();
        assert!(ids.split(' ').any(|one| one == id), "{id}: {ids}");
        let symbols = format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
        let symbols = dir.path().join(symbols);
        let functions = command("nm").args(["--defined-only"]).arg(&symbols).run().unwrap().stdout;
        let main = functions.lines().find_map(|line| line.strip_suffix(" T main")).unwrap();
        let named = command("addr2line").args(["-f", "-e"]).arg(&symbols).arg(main).run().unwrap().stdout;
        assert!(named.starts_with("main\n"), "{named}");
        let left = command("nm").arg(&program).output().unwrap();
        assert!(left.stdout.is_empty(), "{}: not stripped", program.display());
    }
}

#[test]
fn the_bill_of_materials_is_whole() {
    let dist = match dist() {
        Ok(dist) => dist,
        Err(skip) => return skip.announce(),
    };
    let printed: Value = serde_json::from_slice(&fs::read(file(&dist, ".cdx.json")).unwrap()).unwrap();
    assert_eq!((&printed["bomFormat"], &printed["specVersion"]), (&"CycloneDX".into(), &"1.6".into()));
    let components = printed["components"].as_array().unwrap();
    let named = components.iter().chain([&printed["metadata"]["component"]]);
    let known: BTreeSet<&str> = named.map(|one| one["bom-ref"].as_str().unwrap()).collect();
    assert_eq!(known.len(), components.len() + 1, "each is named once");
    for uses in printed["dependencies"].as_array().unwrap() {
        let mut all = uses["dependsOn"].as_array().unwrap().iter().chain([&uses["ref"]]);
        assert!(all.all(|one| known.contains(one.as_str().unwrap())), "{uses}");
    }
    // The licence of each third-party library is in the other file.
    let licences = fs::read_to_string(file(&dist, ".licences.txt")).unwrap();
    for one in components.iter().filter(|one| one["hashes"].is_array()) {
        let line = format!(
            "{} {}: {}",
            one["name"].as_str().unwrap(),
            one["version"].as_str().unwrap(),
            one["licenses"][0]["expression"].as_str().unwrap()
        );
        assert!(licences.lines().any(|printed| printed == line), "no line {line}");
    }
}
