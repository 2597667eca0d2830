//! Injects failures of system calls: the n-th of a thread, from a test, or of a process, from its environment.
//!
//! `FSSTACK_FAULT=kill:N` kills the process at its N-th call, before it is made; `stop:N` stops it there until it gets SIGCONT;
//! `fail:N:ERRNO` fails that call with an error number. N starts at 1. `trap:FILE` kills it each time that a test makes FILE, whose first
//! word is N: at the N-th call after that. The file is removed then. With the words `N stop KIND` it is stopped, at the N-th call of that
//! kind, or of any.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

use crate::call::Call;

/// Environment variable with the fault of a process.
const VARIABLE: &str = "FSSTACK_FAULT";

/// Fault injection of a thread: calls counted and failures due.
#[derive(Clone, Copy)]
struct Plan {
    made: u64,
    fails: Option<(u64, Errno)>,
    /// True if the calls after it fail too.
    for_good: bool,
    /// Number of a second call that fails; 0 for none.
    also: u64,
    /// Only calls of this kind count for the first failure. How many there were, and how many calls later the second one comes.
    kind: Option<(Call, u64, u64)>,
    /// The first call that failed.
    failed: Option<Call>,
}

impl Plan {
    const NOTHING: Self = Self { made: 0, fails: None, for_good: false, also: 0, kind: None, failed: None };
}

/// A fault given in the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Kill { nth: u64 },
    Stop { nth: u64 },
    Fail { nth: u64, errno: Errno },
    Trap { file: PathBuf },
}

/// Number of a call in the thread's scope, and the action before it.
type FaultAction = (u64, Box<dyn FnOnce()>);

thread_local! {
    static PLAN: Cell<Option<Plan>> = const { Cell::new(None) };
    static DEED: RefCell<Option<FaultAction>> = const { RefCell::new(None) };
}

/// Runs `work` on the calling thread. Returns its result and how many calls of it could have failed.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let (result, plan) = scope(Plan::NOTHING, work);
    (result, plan.made)
}

/// Runs `work` on the calling thread; its `nth` call (from 1) fails with `errno`. Returns its result and the failed
/// call, if there were that many.
pub fn fail<T>(nth: u64, errno: Errno, work: impl FnOnce() -> T) -> (T, Option<Call>) {
    let (result, plan) = scope(Plan { fails: Some((nth, errno)), ..Plan::NOTHING }, work);
    (result, plan.failed)
}

/// Like [`fail`], and every later call fails too until `work` ends, as for an unreachable branch.
pub fn cut_off<T>(nth: u64, errno: Errno, work: impl FnOnce() -> T) -> (T, Option<Call>) {
    let (result, plan) = scope(Plan { fails: Some((nth, errno)), for_good: true, ..Plan::NOTHING }, work);
    (result, plan.failed)
}

/// Like [`fail`], and the call `later` calls after the `nth` fails too: one branch is unreachable, another is not.
pub fn fail_twice<T>(nth: u64, later: u64, errno: Errno, work: impl FnOnce() -> T) -> (T, Option<Call>) {
    let (result, plan) = scope(Plan { fails: Some((nth, errno)), also: nth + later, ..Plan::NOTHING }, work);
    (result, plan.failed)
}

/// Like [`fail_twice`], where `nth` counts the calls of one kind: how many others are made before may depend on the time.
pub fn fail_kind_twice<T>(
    (kind, nth): (Call, u64),
    later: u64,
    errno: Errno,
    work: impl FnOnce() -> T,
) -> (T, Option<Call>) {
    let plan = Plan { fails: Some((nth, errno)), kind: Some((kind, 0, later)), ..Plan::NOTHING };
    let (result, plan) = scope(plan, work);
    (result, plan.failed)
}

/// Runs `work` on the calling thread, and `action` right before its `nth` call (from 1). Returns its result and whether
/// there were that many calls. `action` may wait for another thread's work at that point.
pub fn before<T>(nth: u64, action: impl FnOnce() + 'static, work: impl FnOnce() -> T) -> (T, bool) {
    DEED.set(Some((nth, Box::new(action))));
    let (result, _) = scope(Plan::NOTHING, work);
    (result, DEED.take().is_none())
}

fn scope<T>(plan: Plan, work: impl FnOnce() -> T) -> (T, Plan) {
    /// Restores the outer scope's plan, also when `work` panics.
    struct Outer(Option<Plan>);
    impl Drop for Outer {
        fn drop(&mut self) {
            PLAN.set(self.0);
        }
    }
    let _outer = Outer(PLAN.replace(Some(plan)));
    let result = work();
    (result, PLAN.get().unwrap_or(plan))
}

/// Counts the call. Returns an errno if a fault is due for it.
pub(crate) fn due(call: Call) -> Option<Errno> {
    by_thread(call).or_else(|| by_process(call))
}

fn by_thread(call: Call) -> Option<Errno> {
    let mut plan = PLAN.get()?;
    plan.made += 1;
    let count = match &mut plan.kind {
        None => plan.made,
        Some((kind, seen, _)) => {
            *seen += u64::from(*kind == call);
            if *kind == call { *seen } else { 0 }
        }
    };
    if let (Some((.., later)), Some((nth, _))) = (plan.kind, plan.fails)
        && nth == count
    {
        plan.also = plan.made + later;
    }
    let is_due = |nth| nth == count || plan.also == plan.made || plan.for_good && nth < plan.made;
    let errno = plan.fails.and_then(|(nth, errno)| is_due(nth).then_some(errno));
    if errno.is_some() {
        plan.failed.get_or_insert(call);
    }
    PLAN.set(Some(plan));
    let due = DEED.with_borrow_mut(|action| action.take_if(|(nth, _)| *nth == plan.made));
    if let Some((_, action)) = due {
        action();
    }
    errno
}

fn by_process(call: Call) -> Option<Errno> {
    static ORDER: OnceLock<Option<Order>> = OnceLock::new();
    static MADE: AtomicU64 = AtomicU64::new(0);
    let order = ORDER.get_or_init(from_environment).as_ref()?;
    let made = MADE.fetch_add(1, Ordering::Relaxed) + 1;
    match order {
        Order::Kill { nth } if *nth == made => die(),
        Order::Stop { nth } if *nth == made => {
            stop();
            None
        }
        Order::Fail { nth, errno } if *nth == made => Some(*errno),
        Order::Trap { file } => {
            walk_into(file, call);
            None
        }
        Order::Kill { .. } | Order::Stop { .. } | Order::Fail { .. } => None,
    }
}

/// Counts the call if the trap is there and is for such calls; dies or stops if it is the one that the trap waits for.
fn walk_into(trap: &Path, call: Call) {
    /// Text of the trap, by which it differs from the one before, and the calls since it was made.
    static TRAP: Mutex<(String, u64)> = Mutex::new((String::new(), 0));
    let Ok(text) = std::fs::read_to_string(trap) else { return };
    let mut words = text.split_whitespace();
    let Some(nth) = words.next().and_then(|word| word.parse::<u64>().ok()) else { return };
    let kind = words.next().filter(|word| *word == "stop").and(words.next());
    if kind.is_some_and(|kind| kind != "any" && kind != format!("{call:?}")) {
        return;
    }
    let stops = kind.is_some();
    let mut seen = TRAP.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.0 != text {
        *seen = (text, 0);
    }
    seen.1 += 1;
    if seen.1 != nth || std::fs::remove_file(trap).is_err() {
        return;
    }
    drop(seen);
    if stops { stop() } else { die() }
}

/// Stops the process until it gets SIGCONT, this thread at once.
#[expect(unsafe_code, reason = "raise(3), which signals the calling thread")]
fn stop() {
    // SAFETY: raise(3) takes no pointer. A signal for the process might be taken by another thread, and the call still be made.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Ends the process like a power cut: nothing is flushed or unwound.
pub fn die() -> ! {
    // Signalling one's own process cannot fail; if it did, the abort below ends it.
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}

/// # Panics
///
/// If the variable is malformed: a fault that is silently not injected would let a test pass.
fn from_environment() -> Option<Order> {
    let value = std::env::var_os(VARIABLE)?;
    let order = value.to_str().and_then(parse);
    assert!(
        order.is_some(),
        "{VARIABLE}={} is none of kill:N, stop:N, fail:N:ERRNO and trap:FILE",
        value.display()
    );
    order
}

fn parse(value: &str) -> Option<Order> {
    let (what, rest) = value.split_once(':')?;
    let order = match what {
        "kill" => Order::Kill { nth: rest.parse().ok()? },
        "stop" => Order::Stop { nth: rest.parse().ok()? },
        "fail" => {
            let (nth, errno) = rest.split_once(':')?;
            let errno = errno.parse().ok().filter(|number| (1..4096).contains(number))?;
            Order::Fail { nth: nth.parse().ok()?, errno: Errno::from_raw_os_error(errno) }
        }
        "trap" if !rest.is_empty() => Order::Trap { file: rest.into() },
        _ => return None,
    };
    Some(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{SysError, call};

    fn three() -> [Result<u8, SysError>; 3] {
        [Call::Open, Call::Stat, Call::Mkdir].map(|which| call(which, || Ok(1)))
    }

    #[test]
    fn calls_are_counted() {
        assert_eq!(count(three).1, 3);
        assert_eq!(count(|| ()).1, 0);
    }

    #[test]
    fn the_nth_call_fails_and_is_named() {
        let (answers, failed) = fail(2, Errno::NOSPC, three);
        let refused = SysError::new(Call::Stat, Errno::NOSPC);
        assert_eq!(answers, [Ok(1), Err(refused), Ok(1)]);
        assert_eq!(failed, Some(Call::Stat));
        assert_eq!(fail(4, Errno::NOSPC, three).1, None);
    }

    #[test]
    fn a_descriptor_out_of_range_stays_so() {
        let (answers, failed) = cut_off(2, Errno::NOTCONN, three);
        let refused = |call| Err(SysError::new(call, Errno::NOTCONN));
        assert_eq!(answers, [Ok(1), refused(Call::Stat), refused(Call::Mkdir)]);
        assert_eq!(failed, Some(Call::Stat));
    }

    #[test]
    fn two_calls_fail_and_what_is_between_does_not() {
        let (answers, failed) = fail_twice(1, 2, Errno::NOTCONN, three);
        assert_eq!(answers.map(|answer| answer.is_err()), [true, false, true]);
        assert_eq!(failed, Some(Call::Open));
    }

    #[test]
    fn calls_of_one_kind_are_counted_alone() {
        let twice = || [three(), three()].concat();
        let (answers, failed) = fail_kind_twice((Call::Stat, 2), 1, Errno::NOTCONN, twice);
        let refused: Vec<bool> = answers.iter().map(Result::is_err).collect();
        assert_eq!((&refused[..], failed), (&[false, false, false, false, true, true][..], Some(Call::Stat)));
        let (answers, failed) = fail_kind_twice((Call::Unlink, 1), 1, Errno::NOTCONN, three);
        assert_eq!((answers.map(|answer| answer.is_err()), failed), ([false; 3], None));
    }

    #[test]
    fn a_deed_is_done_before_the_nth_call() {
        let done = std::rc::Rc::new(Cell::new(0));
        let action = |done: &std::rc::Rc<Cell<u32>>| {
            let done = done.clone();
            move || done.set(done.get() + 1)
        };
        assert!(before(3, action(&done), three).1);
        assert_eq!(done.get(), 1);
        assert!(!before(4, action(&done), three).1);
        assert_eq!((done.get(), count(three).1), (1, 3));
    }

    #[test]
    fn an_interrupted_call_is_made_again() {
        let ((answers, failed), made) = count(|| fail(1, Errno::INTR, three));
        assert_eq!((answers, failed, made), ([Ok(1); 3], Some(Call::Open), 0));
    }

    #[test]
    fn the_environments_words() {
        assert_eq!(parse("kill:3"), Some(Order::Kill { nth: 3 }));
        assert_eq!(parse("stop:4"), Some(Order::Stop { nth: 4 }));
        assert_eq!(parse("fail:7:28"), Some(Order::Fail { nth: 7, errno: Errno::NOSPC }));
        assert_eq!(parse("trap:/a:b"), Some(Order::Trap { file: "/a:b".into() }));
        for wrong in ["", "trap:", "kill", "kill:x", "fail:1", "fail:1:0", "fail:1:x", "stop:x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    /// Runs this test again in a process with `plan` in its environment.
    fn with_environment(plan: &str) -> std::process::Output {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "fault::tests::the_environment_fails_or_kills_the_process";
        again.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(VARIABLE, plan);
        again.output().unwrap()
    }

    #[test]
    fn the_environment_fails_or_kills_the_process() {
        use std::os::unix::process::ExitStatusExt;
        if std::env::var_os(VARIABLE).is_some() {
            let failed: Vec<u64> = (1..=5).filter(|_| call(Call::Open, || Ok(())).is_err()).collect();
            println!("failed: {failed:?}");
            return;
        }
        let failing = with_environment("fail:3:28");
        assert!(failing.status.success());
        assert!(String::from_utf8_lossy(&failing.stdout).contains("failed: [3]"));
        let home = tempfile::tempdir().unwrap();
        let trap = home.path().join("trap");
        let trapped = |nth| {
            std::fs::write(&trap, nth).unwrap();
            let status = with_environment(&format!("trap:{}", trap.display())).status;
            (status.signal(), trap.exists())
        };
        assert_eq!(trapped("5 of the first test"), (Some(libc::SIGKILL), false));
        assert_eq!(trapped("6"), (None, true));
        assert_eq!(with_environment("kill:5").status.signal(), Some(libc::SIGKILL));
        assert!(with_environment("kill:6").status.success());
        assert!(!with_environment("nonsense").status.success());
    }
}
