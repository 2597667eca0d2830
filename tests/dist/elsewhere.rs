//! Release files for systems that are not this machine's: any distribution, RPM distributions, another machine, containers.

use std::fs;
use std::path::Path;
use std::time::Duration;

use fsstack_lab::needs;
use fsstack_lab::shell::{command, which};

use crate::bare::Bare;
use crate::{dist, file};

/// This machine's name for the kernel.
const HERE: &str = std::env::consts::ARCH;

/// Mounts a pool in a system, and looks at it.
const MOUNT: &str = "
    mkdir -p /srv/disk1 /srv/disk2 /srv/pool
    mount -t tmpfs disk1 /srv/disk1; mount -t tmpfs disk2 /srv/disk2
    mount.fsstack /srv/disk1:/srv/disk2 /srv/pool -o create=mfs,minfreespace=1M,seccomp=kill
    grep -o fuse.fsstack /proc/mounts
    echo words > /srv/pool/file; cat /srv/disk?/file
    fsstack status /srv/pool | grep -c /srv/disk";

/// Unmounts it; the daemon has ended then.
const UNMOUNT: &str =
    "umount.fsstack /srv/pool; if pgrep -x mount.fsstack; then exit 1; fi; cat /srv/disk?/file";

#[test]
fn the_static_programs_serve_a_pool_where_there_is_no_c_library() {
    needs!(mounting(), program("busybox"), program("unshare"), program("tar"));
    let dist = match dist() {
        Ok(dist) => dist,
        Err(skip) => return skip.announce(),
    };
    let system = Bare::new();
    command("tar")
        .arg("-C")
        .arg(system.root())
        .args(["--strip-components=1", "--keep-directory-symlink", "--no-overwrite-dir", "-xzf"])
        .arg(file(&dist, &format!("{HERE}-linux-static.tar.gz")))
        .run()
        .unwrap();
    let versions = "for program in mount.fsstack fsstack fsstack-bench; do $program --version; done";
    let script = format!("inside '{versions}'; inside '{MOUNT}'; inside '{UNMOUNT}'");
    let printed = system.script(&script).run().unwrap().stdout;
    let (versions, rest) =
        printed.split_at(printed.find("fuse.fsstack").unwrap_or_else(|| panic!("{printed}")));
    assert_eq!(
        versions.lines().filter(|line| line.contains(env!("CARGO_PKG_VERSION"))).count(),
        3,
        "{versions}"
    );
    assert_eq!(rest, "fuse.fsstack\nwords\n2\nwords\n");
}

/// By Debian's rpm, in a system with busybox only: no RPM distribution can be had here.
#[test]
fn the_rpm_package_is_installed_used_and_removed() {
    needs!(mounting(), program("busybox"), program("unshare"), program("rpm"));
    let dist = match dist() {
        Ok(dist) => dist,
        Err(skip) => return skip.announce(),
    };
    let package = file(&dist, &format!("{HERE}.rpm"));
    let system = Bare::new();
    let script = format!(
        "rpm() {{ command rpm --root \"$PWD\" --dbpath /var/lib/rpm \"$@\"; }}
        rpm --initdb
        rpm --install --nodeps '{}'; rpm --verify --nodeps fsstack; rpm --query --configfiles fsstack
        inside '{MOUNT}'
        # It stays while a pool is mounted, and may be replaced.
        if rpm --erase fsstack > run/said 2>&1; then exit 1; fi; grep -o 'unmount them first' run/said
        rpm --install --replacepkgs --nodeps '{0}'; inside 'cat /srv/pool/file'
        inside '{UNMOUNT}'
        inside 'rm -rf /var/lib/fsstack; umount /srv/disk1 /srv/disk2; rmdir /srv/*'
        rpm --erase fsstack; find . -xdev -path '*fsstack*' -not -path './var/lib/rpm/*'",
        package.display()
    );
    let printed = system.script(&script).run().unwrap().stdout;
    let expected = "/etc/fsstack/example.conf\n/etc/fsstack/example.toml\n/etc/logrotate.d/fsstack\n\
                    fuse.fsstack\nwords\n2\nunmount them first\nwords\nwords\n";
    assert_eq!(printed, expected);
    let field = |tag: &str| {
        let query = ["--query", "--package", "--queryformat", tag];
        command("rpm").args(query).arg(&package).run().unwrap().stdout
    };
    assert_eq!(
        field("%{VERSION} %{ARCH} %{LICENSE}"),
        format!("{} {HERE} MIT OR Apache-2.0", env!("CARGO_PKG_VERSION"))
    );
    // Nothing of a library: it is for distributions with any.
    assert!(!field("[%{REQUIRENAME}\n]").contains("libc"), "{}", field("[%{REQUIRENAME}\n]"));
}

#[test]
fn the_packages_for_arm64_run_on_that_machine() {
    needs!(program("dpkg-deb"), program("rpm"), program("qemu-aarch64"));
    let dist = match dist() {
        Ok(dist) => dist,
        Err(skip) => return skip.announce(),
    };
    let package = file(&dist, "_arm64.deb");
    let field = |name: &str| {
        command("dpkg-deb").arg("--field").args([&package, Path::new(name)]).run().unwrap().stdout
    };
    assert_eq!((field("Architecture").trim(), field("Depends").trim()), ("arm64", "mount"));
    let dir = tempfile::tempdir().unwrap();
    command("dpkg-deb").arg("--extract").args([&package, dir.path()]).run().unwrap();
    let run = |program: &str, args: &[&str]| {
        command("qemu-aarch64").arg(dir.path().join(program)).args(args).run().unwrap().stdout
    };
    for program in ["usr/sbin/mount.fsstack", "usr/sbin/fsstack", "usr/bin/fsstack-bench"] {
        let printed = run(program, &["--version"]);
        assert!(printed.contains(env!("CARGO_PKG_VERSION")), "{program}: {printed}");
    }
    let options = fs::read_to_string("../docs/options.md").unwrap();
    assert_eq!(run("usr/sbin/mount.fsstack", &["--print", "options-md"]), options);
    let query = ["--query", "--package", "--queryformat", "%{ARCH}"];
    let rpm = command("rpm").args(query).arg(file(&dist, "aarch64.rpm")).run().unwrap().stdout;
    assert_eq!(rpm, "aarch64");
}

#[test]
fn the_container_image_shows_the_demo() {
    needs!(mounting(), program("podman"));
    let dist = match dist() {
        Ok(dist) => dist,
        Err(skip) => return skip.announce(),
    };
    // Storage of its own, so that nothing of this machine's containers is touched.
    let dir = tempfile::tempdir().unwrap();
    let podman = || {
        let mut run = command("podman").limit(Duration::from_secs(180));
        for (option, name) in [("--root", "storage"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            run = run.arg(option).arg(dir.path().join(name));
        }
        let run = run.args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"]);
        if which("runc").is_some() { run.arg("--runtime=runc") } else { run }
    };
    podman().arg("load").arg("--input").arg(file(&dist, ".oci.tar")).run().unwrap();
    let name = format!("localhost/fsstack:{}", env!("CARGO_PKG_VERSION"));
    let run = podman().args(["run", "--rm", "--privileged", "--network=none"]);
    // runc refuses a container without a control group.
    let run = if which("runc").is_some() { run } else { run.arg("--cgroups=disabled") };
    // podman's default limits are higher than root may set in some containers and virtual machines.
    let run = run.args(["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]);
    let shown = run.arg(&name).run();
    let removed = podman().args(["rmi", "--force", &name]).run();
    let shown = shown.unwrap();
    removed.unwrap();
    assert!(!shown.stderr.contains("not found"), "{}", shown.stderr);
    let shown = shown.stdout;
    let last = shown.split_once("Unmounted.").unwrap_or_else(|| panic!("{shown}")).1;
    let films = last.lines().filter(|line| line.ends_with(".mkv")).count();
    assert_eq!(films, 6, "all are on the two disks that stayed: {shown}");
}
