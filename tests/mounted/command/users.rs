//! A user's pool, mounted through fusermount3: only that user and root may query and change it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use fsstack_lab::{self as lab, Skip, daemon, needs};

use super::*;
use crate::script::{STRANGER, sh};

/// In a separate mount namespace, where a user may open /dev/fuse whatever the machine's rules are.
#[test]
fn a_user_may_query_a_pool_of_their_own() {
    needs!(mounting(), program("fusermount3"), program("unshare"), program("setpriv"));
    let fusermount = lab::shell::which("fusermount3").unwrap();
    if fs::metadata(fusermount).unwrap().permissions().mode() & 0o4000 == 0 {
        return Skip::because("fusermount3 is not set-uid").announce();
    }
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let home = pool.path().parent().unwrap();
    // The user's runtime directory; open to others here, so that only the socket's mode keeps them out.
    let run = home.join("run");
    fs::create_dir(&run).unwrap();
    for owned in [pool.path(), &run, pool.branch("a").path(), pool.branch("b").path()] {
        chown(owned, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    fs::copy(daemon::helper().unwrap(), home.join("mount.fsstack")).unwrap();
    fs::copy(binary(), home.join("fsstack")).unwrap();
    let branches = format!("{}:{}", branch(&pool, "a"), branch(&pool, "b"));
    let scenario = format!(
        r#"as() {{ user=$1; shift; setpriv --reuid $user --regid $user --clear-groups "$@"; }}
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        export XDG_RUNTIME_DIR="$PWD/run"
        trap 'umount -l pool 2>/dev/null || :' EXIT
        as {STRANGER} ./mount.fsstack {branches} pool -o create=ff 2> /dev/null
        echo socket $(stat -c '%a %u' run/fsstack/*.sock)
        as {STRANGER} ./fsstack list --json > list
        as {STRANGER} ./fsstack status "$PWD/pool" --json > status
        echo his $(as {STRANGER} ./fsstack get "$PWD/pool" create)
        as {STRANGER} ./fsstack set "$PWD/pool" create=mfs > /dev/null
        echo changed $(as {STRANGER} ./fsstack get "$PWD/pool" create)
        as {other} ./fsstack status "$PWD/pool" 2> said || echo another $?
        as {other} ./fsstack set "$PWD/pool" create=ff 2>> said || echo another $?
        XDG_RUNTIME_DIR= ./fsstack get "$PWD/pool" create 2>> said || echo elsewhere $?
        as {STRANGER} fusermount3 -u pool
        gone() {{ for i in $(seq 1200); do [ -e run/fsstack/*.json ] || break; sleep 0.05; done; ls run/fsstack; }}
        gone
        as {STRANGER} ./mount.fsstack {branches} pool -o seccomp=kill 2> /dev/null
        as {STRANGER} ./fsstack status "$PWD/pool" --json > status
        pid=$(grep -o '"pid": *[0-9]*' status | grep -o '[0-9]*')
        as {STRANGER} mkdir pool/dir; as {STRANGER} touch pool/dir/file; as {STRANGER} mv pool/dir pool/other
        echo confined $(grep -hE '^(Seccomp|NoNewPrivs):' /proc/$pid/task/*/status | sort -u)
        as {STRANGER} kill -TERM $pid
        gone; mountpoint -q pool || echo unmounted"#,
        other = STRANGER - 1,
    );
    fs::write(home.join("scenario"), scenario).unwrap();
    let output = sh(home, "unshare --mount --propagation private bash -euo pipefail scenario");
    let expected = format!(
        "socket 600 {STRANGER}\nhis ff\nchanged mfs\nanother 5\nanother 5\nelsewhere 3\nconfined NoNewPrivs: 1 Seccomp: 2\nunmounted"
    );
    assert_eq!(output, expected);
    let read = |name: &str| fs::read_to_string(home.join(name)).unwrap();
    let listed = checked("list", &read("list"));
    // Root's pools of other tests may be listed too.
    let pools = listed["pools"].as_array().unwrap();
    assert!(pools.iter().any(|one| one["mount_point"] == at(&pool).as_str()), "{listed:#}");
    checked("status", &read("status"));
    let said = read("said");
    assert_eq!(said.lines().filter(|line| line.contains("permission denied")).count(), 2, "{said}");
}
