//! mount(8), fstab and mount.fuse mount a pool; the kernel shows its flags.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::shell::command;
use fsstack_lab::{
    self as lab, Branch, CpuGroup, Kind, Layout, MiB, Pool, Skip, daemon, mounts, needs, until,
};
use rustix::fs::{FlockOperation, flock};

use crate::command::nfs_identity::fresh_identity;
use crate::command::{at, output_of};
use crate::schedules::{WorkerSchedule, workers_become};
use crate::script::{STRANGER, refused, sh};

/// Paths at which mount(8) looks for the helper of a type: the type in fstab, and the one in the mount table, used by a
/// remount.
const SBIN: [&str; 6] = [
    "/sbin/mount.fsstack",
    "/sbin/mount.fuse.fsstack",
    "/sbin/mount.fuseblk.fsstack",
    "/sbin/umount.fsstack",
    "/sbin/umount.fuse.fsstack",
    "/sbin/umount.fuseblk.fsstack",
];

/// The helper under test at mount(8)'s path, for one test at a time.
struct Installed {
    _links: Vec<Entry>,
    _turn: fs::File,
}

/// Links the helper there, unless another one is installed.
fn install() -> Result<Installed, Skip> {
    let turn = fs::File::create(cleanup::state_dir().unwrap().join("sbin.lock")).unwrap();
    flock(&turn, FlockOperation::LockExclusive).unwrap();
    let link = |at: &str| {
        if fs::symlink_metadata(at).is_ok() {
            return Err(Skip::because(format!("{at} is there already, and may be another one")));
        }
        let link = Entry::file(Path::new(at)).unwrap();
        let linked = symlink(daemon::helper().unwrap(), at);
        linked.map_err(|e| Skip::because(format!("{at} cannot be made: {e}")))?;
        Ok(link)
    };
    let links = SBIN.into_iter().map(link).collect::<Result<_, Skip>>()?;
    Ok(Installed { _links: links, _turn: turn })
}

macro_rules! installed {
    () => {
        match install() {
            Ok(installed) => installed,
            Err(skip) => return skip.announce(),
        }
    };
}

fn source(pool: &Pool, between: &str) -> String {
    pool.branches().iter().map(|b| b.path().display().to_string()).collect::<Vec<_>>().join(between)
}

fn options(pool: &Pool) -> Vec<String> {
    let found = mounts::at(pool.path()).unwrap().expect("a mount");
    found.options.split(',').map(str::to_owned).collect()
}

#[test]
fn mount_by_type() {
    needs!(mounting());
    let _installed = installed!();
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    let with = "create=ff,nofail,_netdev,x-systemd.requires=/srv,noatime";
    command("mount")
        .args(["-t", "fsstack", &source(&pool, ":")])
        .arg(pool.path())
        .args(["-o", with])
        .run()
        .unwrap();
    pool.write("file", b"x");
    assert_eq!(pool.holders("file"), ["a"]);
    assert_eq!(mounts::at(pool.path()).unwrap().unwrap().fs_type, "fuse.fsstack");
    assert!(options(&pool).contains(&"noatime".to_owned()));
    let shown = sh("/", &format!("findmnt -no SOURCE {}", pool.path().display()));
    assert_eq!(shown, source(&pool, ":"));
}

/// Mount as by systemd for a line of fstab whose unit has a weight: mount(8) and the helper are in the group and leave
/// it.
#[test]
fn a_daemon_that_mount_starts_in_a_cpu_cgroup_is_alone_there() {
    needs!(mounting(), niceness(), cpu_groups());
    let _installed = installed!();
    let group = CpuGroup::new("unit").unwrap();
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let mount = Entry::mount(pool.path()).unwrap();
    let enters = format!("echo $$ >'{}' && exec mount -t fsstack \"$@\"", group.members().display());
    command("sh").args(["-c", &enters, "sh", &source(&pool, ":")]).arg(pool.path()).run().unwrap();
    let daemon = daemon::server_of(pool.path()).unwrap();
    workers_become(daemon.pid, WorkerSchedule::Idle);
    mount.undo().unwrap();
    daemon.wait(Duration::from_secs(60)).unwrap();
}

/// A file system that takes no writes until this drops.
struct Frozen<'a>(&'a Branch);

impl<'a> Frozen<'a> {
    fn freeze(branch: &'a Branch) -> Self {
        command("fsfreeze").arg("-f").arg(branch.path()).run().unwrap();
        Self(branch)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        command("fsfreeze").arg("-u").arg(self.0.path()).run().unwrap();
    }
}

/// The daemon cannot close its index, and so not end: umount.fsstack must not end before it.
#[test]
fn umount_fsstack_returns_when_the_daemon_has_ended() {
    needs!(mounting(), loops(), program("fsfreeze"));
    let _installed = installed!();
    for with in ["transport=dev", "transport=auto", "restart=keep"] {
        let pool = lab::pool().tmp_branch("a").xfs_branch("state", MiB(310)).unmounted();
        let _mount = Entry::mount(pool.path()).unwrap();
        let (branch, state) = (pool.branch("a").path(), pool.branch("state"));
        let options = format!("{with},nfs-export,state-dir={}", state.path().display());
        command("mount").args(["-t", "fsstack", "-o", &options]).args([branch, pool.path()]).run().unwrap();
        let daemon = daemon::server_of(pool.path()).unwrap();
        pool.write("file", b"x");
        let frozen = Frozen::freeze(state);
        let target = pool.path().to_owned();
        let unmounts = std::thread::spawn(move || command("/sbin/umount.fsstack").arg(target).run());
        until("the mount is gone", || mounts::at(pool.path()).unwrap().is_none());
        // An umount that does not wait ends in this time.
        std::thread::sleep(Duration::from_secs(1));
        let early = unmounts.is_finished() && daemon.lives();
        drop(frozen);
        unmounts.join().unwrap().unwrap();
        assert_eq!((early, daemon.lives()), (false, false), "{with}: umount ended before the daemon");
    }
}

#[test]
fn umount_fsstack_of_a_pool_that_is_bound_elsewhere_does_not_wait() {
    needs!(mounting());
    let _installed = installed!();
    let mut pool = lab::pool().tmp_branch("a").mount();
    let other = tempfile::tempdir().unwrap();
    let _bound = Entry::mount(other.path()).unwrap();
    command("mount").arg("--bind").args([pool.path(), other.path()]).run().unwrap();
    // Below the limit of a command, and of the helper.
    command("/sbin/umount.fsstack").arg(pool.path()).limit(Duration::from_secs(30)).run().unwrap();
    fs::write(other.path().join("file"), "x").unwrap();
    command("/sbin/umount.fsstack").arg(other.path()).run().unwrap();
    assert_eq!(pool.holders("file"), ["a"]);
    pool.unmount();
}

#[test]
fn a_line_of_fstab() {
    needs!(mounting());
    let _installed = installed!();
    let pool = lab::pool().tmp_branch("pair01").tmp_branch("pair02").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    let fstab = tempfile::NamedTempFile::new().unwrap();
    let above = pool.branch("pair01").path().parent().unwrap();
    let line =
        format!("{}/pair0* {} fsstack defaults,nofail,_netdev 0 0\n", above.display(), pool.path().display());
    fs::write(fstab.path(), line).unwrap();
    command("mount").arg("-T").arg(fstab.path()).arg(pool.path()).run().unwrap();
    fs::write(pool.branch("pair02").path().join("on the second"), "x").unwrap();
    assert_eq!(pool.list(""), ["on the second"]);
    command("umount").arg(pool.path()).run().unwrap();
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
}

#[test]
fn mount_with_remount_changes_a_pool() {
    needs!(mounting());
    let _installed = installed!();
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").mount();
    let remount = |options: &str| {
        let options = format!("remount,{options}");
        command("mount").args(["-o", &options]).arg(pool.path()).output().unwrap()
    };
    let key = |key: &str| output_of(&["get", &at(&pool), key]);
    let done = remount("create=mfs,attr-timeout=3");
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!((key("create").as_str(), key("attr-timeout").as_str()), ("mfs\n", "3\n"));
    assert_eq!(remount("ro,noexec").code, 0);
    assert!(["ro", "noexec"].iter().all(|flag| options(&pool).contains(&(*flag).to_owned())));
    assert!(refused(pool.path(), "echo > new").contains("Read-only"));
    assert_eq!(remount("rw,exec").code, 0);
    pool.write("new", b"x");
    // All or nothing, and the reason is printed.
    let wrong = remount("create=lus,attr-timeout=often");
    assert_ne!(wrong.code, 0);
    assert!(wrong.stderr.contains("attr-timeout"), "{}", wrong.stderr);
    assert_eq!(key("create"), "mfs\n");
}

/// By another type, whose options include a block size.
#[test]
fn mount_with_remount_changes_a_pool_with_a_device() {
    needs!(mounting(), loops(), program("mkfs.ext4"));
    let _installed = installed!();
    let identity = format!("nfs-identity={}", fresh_identity());
    let pool = lab::pool().tmp_branch("a").option("nfs-export").option(&identity).mount();
    assert_eq!(mounts::at(pool.path()).unwrap().unwrap().fs_type, "fuseblk.fsstack");
    for (wanted, create) in [("ro,create=mfs", "mfs\n"), ("rw,create=ff", "ff\n")] {
        let done =
            command("mount").args(["-o", &format!("remount,{wanted}")]).arg(pool.path()).output().unwrap();
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert_eq!(output_of(&["get", &at(&pool), "create"]), create);
    }
    pool.write("new", b"x");
}

#[test]
fn mount_tells_why_it_failed() {
    needs!(mounting());
    let _installed = installed!();
    let pool = lab::pool().tmp_branch("a").unmounted();
    let said = command("mount").args(["-t", "fsstack", "/nowhere/at/all"]).arg(pool.path()).output().unwrap();
    assert_eq!(said.code, 32);
    assert!(said.stderr.contains("/nowhere/at/all"), "{}", said.stderr);
}

#[test]
fn a_fake_mount_mounts_nothing() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").unmounted();
    pool.mount_command().unwrap().arg("-f").run().unwrap();
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
}

#[test]
fn by_mount_fuse_and_the_type_before_the_source() {
    needs!(mounting(), program("mount.fuse3"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    // mount.fuse runs the program before the `#`, from PATH.
    let programs = tempfile::tempdir().unwrap();
    symlink(daemon::helper().unwrap().with_file_name("fsstack"), programs.path().join("fsstack")).unwrap();
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let mount = command(lab::shell::which("mount.fuse3").unwrap()).env("PATH", path);
    let source = format!("fsstack#{}", source(&pool, ","));
    mount.arg(source).arg(pool.path()).args(["-o", "rw,dev,suid,create=ff"]).run().unwrap();
    pool.write("file", b"x");
    assert_eq!(pool.holders("file"), ["a"]);
}

#[test]
fn flags_reach_the_kernel() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").mount();
    sh(pool.path(), "cp /bin/true true; mknod null c 1 3");
    for plain in ["ro", "noexec", "nosuid", "nodev"] {
        assert!(!options(&pool).contains(&plain.to_owned()), "{plain} without being asked");
    }
    let asked = ["ro", "noexec", "nosuid", "nodev", "noatime"];
    pool.remount_with(&[&asked[..], &["fsname=attic", "subtype=films"]].concat());
    for asked in asked {
        assert!(options(&pool).contains(&asked.to_owned()), "{asked} is not shown");
    }
    let shown = |column: &str| sh("/", &format!("findmnt -no {column} {}", pool.path().display()));
    assert!(shown("OPTIONS").split(',').any(|option| option == "noatime"));
    assert_eq!((shown("SOURCE"), shown("FSTYPE")), ("attic".into(), "fuse.films".into()));
    assert!(refused(pool.path(), "echo > new").contains("Read-only"));
    assert!(refused(pool.path(), "./true").contains("denied"));
    assert!(
        refused(pool.path(), "echo > null").contains("ead-only")
            || refused(pool.path(), "cat null").contains("denied")
    );
}

#[test]
fn the_pool_has_the_restrictions_of_a_branchs_mount() {
    needs!(mounting(), root());
    let _installed = installed!();
    let mut pool = lab::pool().tmpfs_branch("a", MiB(16)).tmpfs_branch("b", MiB(16)).unmounted();
    let log = tempfile::NamedTempFile::new().unwrap();
    let flag = |branch: &str, flags: &str| {
        sh(pool.branch(branch).path(), &format!("mount -o remount,{flags} ."));
    };
    flag("b", "noexec,nosuid");
    pool.remount_with(&[&format!("log={}", log.path().display())]);
    let has = |pool: &lab::Pool, flag: &str| options(pool).contains(&flag.to_owned());
    assert!(has(&pool, "noexec") && has(&pool, "nosuid") && !has(&pool, "nodev"));
    sh(pool.path(), "cp /bin/true true");
    assert!(refused(pool.path(), "./true").contains("denied"));
    let said = std::fs::read_to_string(log.path()).unwrap();
    assert!(said.contains("mounted nosuid,noexec, as branch"), "{said}");
    let checked = crate::command::run(&["doctor", &at(&pool)]).stdout;
    let branch = pool.branch("b").path().display();
    assert!(
        checked.contains(&format!("warn  {branch}: mounted nosuid,noexec, and so is the whole pool")),
        "{checked}"
    );
    // The pool alone cannot drop the restriction.
    sh("/", &format!("mount -o remount,exec,suid {}", pool.path().display()));
    assert!(has(&pool, "noexec") && has(&pool, "nosuid"));
    // Nor can a branch that is added bring one.
    let home = tempfile::tempdir().unwrap();
    let more = Branch::make("more", Kind::Tmpfs(MiB(8)), Layout::Sparse, home.path()).unwrap();
    let (at, source) = (pool.path().display().to_string(), more.path().display().to_string());
    sh(more.path(), "mount -o remount,nodev,noexec .");
    let (_, said) = crate::command::refused(&["branch", "add", &at, &source]);
    assert!(said.contains("remount,nodev") && !said.contains("noexec,"), "{said}");
    sh("/", &format!("mount -o remount,nodev {at}"));
    crate::command::output_of(&["branch", "add", &at, &source]);
    assert!(has(&pool, "nodev"));
    let checked = crate::command::run(&["doctor", &at]).stdout;
    let warning = format!("warn  {source}: mounted nodev,noexec, and so is the whole pool");
    assert!(checked.contains(&warning), "{checked}");
}

/// The path of a branch that is away belongs to the mount below, whose flags say nothing of the branch.
#[test]
fn a_remount_lifts_no_restriction_of_a_branch_that_is_away() {
    needs!(mounting(), root());
    let _installed = installed!();
    let mut pool = lab::pool().tmpfs_branch("a", MiB(16)).tmpfs_branch("b", MiB(16)).unmounted();
    sh(pool.branch("b").path(), "mount -o remount,noexec,nosuid,nodev .");
    pool.remount();
    pool.branch_mut("b").unmount_lazily();
    let has =
        |pool: &lab::Pool| ["noexec", "nosuid", "nodev"].map(|flag| options(pool).contains(&flag.to_owned()));
    let remount = format!("mount -o remount,exec,suid,dev,noatime {} 2>&1", pool.path().display());
    let noticed = sh("/", &remount);
    assert_eq!(has(&pool), [true; 3]);
    assert!(options(&pool).contains(&"noatime".to_owned()));
    let branch = pool.branch("b").path().display().to_string();
    assert!(noticed.contains(&format!("stays nosuid,nodev,noexec, as branch {branch} is not")), "{noticed}");
}

/// A user's pool: mounted, used and unmounted by that user. In a separate mount namespace, where /dev/fuse may be
/// opened whatever the machine's rules are.
#[test]
fn a_user_mounts_through_fusermount3() {
    needs!(mounting(), program("fusermount3"), program("unshare"), program("pgrep"));
    let fusermount = lab::shell::which("fusermount3").unwrap();
    if fs::metadata(fusermount).unwrap().permissions().mode() & 0o4000 == 0 {
        return Skip::because("fusermount3 is not set-uid").announce();
    }
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    for owned in [pool.path(), pool.branch("a").path(), pool.branch("b").path()] {
        chown(owned, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    let home = pool.path().parent().unwrap();
    fs::copy(daemon::helper().unwrap(), home.join("mount.fsstack")).unwrap();
    let user = format!("setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups");
    let scenario = format!(
        r#"mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        trap 'umount -l pool 2>/dev/null || :' EXIT
        {user} ./mount.fsstack {source} pool 2> said; grep -q fusermount3 said
        findmnt -no FSTYPE,OPTIONS pool
        {user} bash -euc 'cd pool; echo bytes > file; mkdir -m 700 dir; mv file dir/; cat dir/file
            getfattr --only-values -n user.fsstack.write-path dir/file; echo'
        ls pool 2>/dev/null || echo closed to root
        stat -c %u branches/*/dir/file
        pid=$(pgrep -f "$PWD/branches/a:"); {user} fusermount3 -u pool
        for i in $(seq 100); do [ -e /proc/$pid/fd/0 ] || break; sleep 0.05; done; [ ! -e /proc/$pid/fd/0 ] && echo ended"#,
        source = source(&pool, ":"),
    );
    let script = home.join("scenario");
    fs::write(&script, scenario).unwrap();
    let scenario = format!("unshare --mount --propagation private bash -euo pipefail {}", script.display());
    let said = sh(home, &scenario);
    let (mount, rest) = said.split_once('\n').unwrap();
    assert!(mount.contains("nosuid") && mount.contains(&format!("user_id={STRANGER}")), "{mount}");
    assert_eq!(rest, format!("bytes\nstacked\nclosed to root\n{STRANGER}\nended"));
}
