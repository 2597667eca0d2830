//! Locks hold between processes.

use std::thread;

use fsstack_lab::{self as lab, needs, until};

use crate::hung_branches::{FrozenDaemon, callers_waiting, described, filled};
use crate::script::{python, sh};

const CHOICES: [&str; 2] = ["locks=local", "locks=branch"];

#[test]
fn flock_keeps_two_processes_apart() {
    needs!(mounting(), program("flock"));
    for locks in CHOICES {
        let pool = lab::pool().tmp_branch("a").option(locks).mount();
        let work = "echo 0 > count
          bump() { for i in $(seq 40); do flock lock sh -c 'n=$(cat count); echo $((n + 1)) > count'; done; }
          bump & bump & wait; cat count
          flock lock sleep 1 & sleep 0.3; flock -n lock true || echo busy; wait; flock -n lock echo free";
        assert_eq!(sh(pool.path(), work), "80\nbusy\nfree", "{locks}");
    }
}

#[test]
fn posix_locks_of_two_processes_and_ranges() {
    needs!(mounting(), program("python3"));
    for locks in CHOICES {
        let pool = lab::pool().tmp_branch("a").option(locks).mount();
        let work = "
import fcntl, os
f = open('file', 'w+b'); f.write(bytes(100)); f.flush()
fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
def other(what):
    child = os.fork()
    if child == 0:
        code = 9
        try:
            g = open('file', 'r+b'); what(g); code = 0
        except OSError as e:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(other(lambda g: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)))
print(other(lambda g: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50)))
print(other(lambda g: fcntl.lockf(g, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 9)))
open('file').close()
print(other(lambda g: fcntl.lockf(g, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 9)), 'closing any descriptor gives POSIX locks up')
fcntl.lockf(f, fcntl.LOCK_SH, 10, 0)
print(other(lambda g: fcntl.lockf(g, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 0)))
";
        let answer = "1\n0\n1\n0 closing any descriptor gives POSIX locks up\n0";
        assert_eq!(python(pool.path(), work), answer, "{locks}");
    }
}

#[test]
fn waiting_for_a_lock_can_be_interrupted() {
    needs!(mounting(), program("flock"));
    for locks in CHOICES {
        let pool = lab::pool().tmp_branch("a").option(locks).mount();
        let work = "flock lock sleep 3 & sleep 0.3
          began=$(date +%s%N); timeout -s INT 0.4 flock lock true && echo locked || echo $?
          [ $(( $(date +%s%N) - began )) -lt 2000000000 ] && echo soon; wait";
        assert_eq!(sh(pool.path(), work), "124\nsoon", "{locks}");
    }
}

#[test]
fn a_lock_goes_with_the_process_that_held_it() {
    needs!(mounting(), program("flock"));
    for locks in CHOICES {
        let pool = lab::pool().tmp_branch("a").option(locks).mount();
        let work = "exec 8> lock; flock 8; ! flock -n lock true; exec 8>&-; flock -w 5 lock echo free
          (exec 9> lock; flock 9; kill -9 $BASHPID) || :; flock -w 5 lock echo free";
        assert_eq!(sh(pool.path(), work), "free\nfree", "{locks}");
    }
}

#[test]
fn many_waiters_for_one_lock_leave_threads_for_its_holder() {
    needs!(mounting(), program("python3"));
    for locks in CHOICES {
        let pool = lab::pool().tmp_branch("a").option(locks).mount();
        let work = "
import fcntl, os
f = open('file', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)
children = []
for _ in range(100):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            g = open('file', 'r+'); fcntl.lockf(g, fcntl.LOCK_EX); code = 0
        finally:
            os._exit(code)
    children.append(child)
print(os.listdir('.'))
fcntl.lockf(f, fcntl.LOCK_UN)
print(sum(os.waitpid(child, 0)[1] == 0 for child in children))";
        assert_eq!(python(pool.path(), work), "['file']\n100", "{locks}");
    }
}

#[test]
fn waiters_for_a_lock_on_the_branch_are_bounded() {
    needs!(mounting(), program("python3"), not_on_gluster("it answers a thousand waiters in minutes"));
    let pool = lab::pool().tmp_branch("a").option("locks=branch").mount();
    // More than may wait at once: a caller beyond the limit gets ENOLCK, and all others get the lock eventually.
    let work = "
import errno, fcntl, os, threading, time
f = open('file', 'w'); fcntl.flock(f, fcntl.LOCK_EX)
answer = []
def wait():
    g = open('file', 'r+')
    try:
        fcntl.flock(g, fcntl.LOCK_EX); answer.append(0)
    except OSError as e:
        answer.append(e.errno)
threading.stack_size(65536)
threads = [threading.Thread(target=wait) for _ in range(1100)]
for t in threads: t.start()
while len(answer) < 1100 - 1024: time.sleep(0.01)
assert set(answer) == {errno.ENOLCK}, answer
fcntl.flock(f, fcntl.LOCK_UN)
for t in threads: t.join()
print(answer.count(errno.ENOLCK), answer.count(0))";
    assert_eq!(python(pool.path(), work), "76 1024");
}

#[test]
fn locks_of_an_open_file_description_go_with_its_last_descriptor() {
    needs!(mounting(), program("python3"));
    for locks in CHOICES {
        let pool = lab::pool().tmp_branch("a").option(locks).mount();
        let work = "
import fcntl, os, struct, time
F_OFD_SETLK = 37
def lock(fd):
    try:
        fcntl.fcntl(fd, F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
        return 'locked'
    except OSError as e:
        return 'busy'
open('file', 'w').close()
one, other = (os.open('file', os.O_RDWR) for _ in range(2))
copy = os.dup(one)
print(lock(one), lock(other))
os.close(one)
print(lock(other))
os.close(copy)
for _ in range(100):  # the daemon gets the last close, which does not wait for it
    last = lock(other)
    if last == 'locked':
        break
    time.sleep(0.05)
print(last)
";
        assert_eq!(python(pool.path(), work), "locked busy\nbusy\nlocked", "{locks}");
    }
}

/// Waiters for a lock on a hung branch, early and late ones: each gets an error, and so do later callers.
#[test]
fn a_wait_for_a_lock_on_a_branch_that_hangs_is_answered() {
    needs!(mounting(), program("mergerfs"));
    let pool = filled(described().option("locks=branch"));
    let open = |name: &str| std::fs::File::options().read(true).write(true).open(pool.at(name)).unwrap();
    let files: Vec<_> = (0..4).map(|n| open(&format!("on-a/{n}"))).collect();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let ask = |file: &std::fs::File, how: rustix::fs::FlockOperation| {
        let file = file.try_clone().unwrap();
        thread::spawn(move || rustix::fs::fcntl_lock(&file, how).err())
    };
    let ranges = files[..2].iter().map(|file| ask(file, rustix::fs::FlockOperation::LockExclusive));
    let whole = files[2..].iter().map(|file| {
        let file = file.try_clone().unwrap();
        thread::spawn(move || rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).err())
    });
    let waiters: Vec<_> = ranges.chain(whole).collect();
    until("all have an answer", || waiters.iter().all(thread::JoinHandle::is_finished));
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), Some(rustix::io::Errno::IO));
    }
    // From now on calls fail at once, and none waits in the kernel.
    assert_eq!(
        ask(&files[0], rustix::fs::FlockOperation::LockExclusive).join().unwrap(),
        Some(rustix::io::Errno::IO)
    );
    assert_eq!(callers_waiting(), 0);
    drop(files);
    drop(frozen);
    until("the branch answers again", || std::fs::read(pool.at("on-a/30")).is_ok());
    // Answered calls may still take effect; their results go with the files.
    let file = open("on-a/0");
    until("it can be locked again", || {
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}
