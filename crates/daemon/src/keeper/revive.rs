//! The keeper as this program anew, after the daemon's death.
//!
//! It keeps what the next daemon needs and closes the rest, has the kernel send requests again that were read and not answered, and
//! starts the next daemon, which is its child as the last one was. Where daemons die one after another it ends the pool.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use fsstack_engine::admin::watch::Invalidator;
use fsstack_engine::kept::Kept;
use fsstack_fuse::notify::{Kernel, send_again};
use fsstack_pool::Printable;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sync::mpsc;
use fsstack_sys::handover::{self, Inherited};
use fsstack_sys::mounts::{self, UmountFlags, umount};
use fsstack_sys::{fusectl, keeper};

use super::{
    DEATHS, ENDS, FAILED, HANDS_OVER, SharedWord, add_death, become_program, failure, note_pending, now,
    program_before, serves, set_failure, stay_behind, tell_stderr, told, word,
};
use crate::cli::{Request, parse};
use crate::confine::give_up_rights;
use crate::handover::adopt::{TakenOver, timeout_of_kept};
use crate::handover::{PassedState, plain_arguments};
use crate::log::{self, LogSettings};
use crate::resolve::log_of;
use crate::signals::hold_signals;

/// Goes on with the memory that `arguments`, those behind `--revive`, lead to; in the daemon, serves the pool to its end.
///
/// # Errors
/// One line: why the pool is not served. It is gone then.
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let number = arguments.next().and_then(|word| word.into_string().ok()?.parse::<RawFd>().ok());
    let number = number.ok_or_else(|| format!("{}: started by a keeper only", super::REVIVE))?;
    let open = keeper::descriptors().map_err(|error| format!("descriptors: {error}"))?;
    let left = open.iter().copied().filter(|fd| *fd != number);
    let inherited = Inherited::new(left).map_err(|error| format!("descriptors: {error}"))?;
    let kept = keeper::take_first(number).and_then(Kept::left);
    let kept = kept.map_err(|error| format!("restart=keep: memory: {error}"))?;
    if word(&kept, SharedWord::Stage).load(SeqCst) == HANDS_OVER {
        return upgrade(kept, inherited);
    }
    let died = Death::of(&kept);
    let state = match read(&kept, &inherited) {
        Ok(state) => state,
        Err(why) => return give_up_blindly(&died, &why),
    };
    if word(&kept, SharedWord::Stage).load(SeqCst) == ENDS {
        return give_up(&state, &died, "it was ending the pool");
    }
    if died.are_too_many {
        // A daemon that served has left no word.
        let last = failure(&kept).map(|why| format!("; the last one: {why}")).unwrap_or_default();
        return give_up(&state, &died, &format!("it died three times within a minute{last}"));
    }
    let started = start(&kept, &state, inherited).and_then(|inherited| {
        stay_behind(&kept).map_err(|error| format!("no process: {error}"))?;
        Ok(inherited)
    });
    match started {
        Ok(inherited) => serve(Arc::new(kept), &state, inherited, &Cause::Death(died)),
        Err(why) => give_up(&state, &died, &why),
    }
}

/// Goes on from a daemon that has ended for an upgrade; as the program before, if the next one could not serve.
fn upgrade(kept: Kept, inherited: Inherited) -> Result<(), String> {
    let because = failure(&kept);
    let is_back = because.is_some();
    if is_back {
        // There is no other program to go back to: should this one die, too, it is started again.
        serves(&kept);
    }
    word(&kept, SharedWord::FailureLength).store(0, SeqCst);
    let started = read(&kept, &inherited).and_then(|state| {
        let inherited = start(&kept, &state, inherited)?;
        Ok((state, inherited))
    });
    let (state, inherited) = match started {
        Ok(started) => started,
        Err(why) => {
            return go_back(&kept, &why);
        }
    };
    match stay_behind(&kept) {
        Ok(()) => serve(Arc::new(kept), &state, inherited, &Cause::Upgrade(because)),
        Err(error) => go_back(&kept, &format!("no process: {error}")),
    }
}

/// Becomes the program before; ends the pool where that cannot be.
fn go_back(kept: &Kept, why: &str) -> Result<(), String> {
    set_failure(kept, why);
    let error = program_before(kept).map_or_else(|error| error, |before| become_program(kept, before));
    let ended = Death { at: now(), how: "has ended for an upgrade".into(), are_too_many: false };
    give_up_blindly(&ended, &format!("{why}; program before: {error}"))
}

/// Why there is another daemon.
enum Cause {
    Death(Death),
    /// With the reason why the new program could not serve, where this is the one before.
    Upgrade(Option<String>),
}

/// How the last daemon ended.
struct Death {
    at: u64,
    how: String,
    are_too_many: bool,
}

impl Death {
    fn of(kept: &Kept) -> Self {
        let at = word(kept, SharedWord::DiedAt).load(SeqCst);
        let how = told(word(kept, SharedWord::DiedOf).load(SeqCst));
        let deaths = &kept.own_words()[SharedWord::Deaths as usize..][..DEATHS];
        let mut times = std::array::from_fn(|at| deaths[at].load(SeqCst));
        let are_too_many = add_death(&mut times, at);
        deaths.iter().zip(&times).for_each(|(death, time)| death.store(*time, SeqCst));
        Self { at, how, are_too_many: are_too_many && !may_die_often() }
    }
}

/// A test's daemon may die as often as it likes.
fn may_die_often() -> bool {
    cfg!(feature = "fault") && std::env::var_os("FSSTACK_TEST_DEATHS").is_some()
}

fn number_of_state(kept: &Kept) -> RawFd {
    RawFd::try_from(word(kept, SharedWord::State).load(SeqCst)).unwrap_or(-1)
}

fn read(kept: &Kept, inherited: &Inherited) -> Result<PassedState, String> {
    let failed = |why: String| format!("restart=keep: state of the pool: {why}");
    let file = inherited.copy(number_of_state(kept)).map_err(|error| failed(error.to_string()))?;
    let bytes = handover::read_sealed(file.as_fd()).map_err(|error| failed(error.to_string()))?;
    PassedState::read(&bytes).map_err(|error| failed(error.to_string()))
}

/// Has the kernel send requests again, and closes the descriptors that no daemon needs.
fn start(kept: &Kept, state: &PassedState, mut inherited: Inherited) -> Result<Inherited, String> {
    let device = inherited.copy(state.mount.device).map_err(|error| format!("/dev/fuse: {error}"))?;
    // Requests that were read by a descriptor of the dead one go to the queue that all read: the other descriptors may go then.
    send_again(device.as_fd()).map_err(|error| format!("/dev/fuse: requests are not sent again: {error}"))?;
    // What it does not know it asks for; what a request that was half done has changed may be cached.
    let kernel = Kernel::behind(device.as_fd(), state.mount.dev);
    kernel.map_err(|error| format!("/dev/fuse: {error}"))?.all_names();
    let (mut needed, objects): (HashSet<RawFd>, _) =
        (state.descriptors().into_iter().collect(), kept.objects());
    needed.insert(number_of_state(kept));
    needed.extend(RawFd::try_from(word(kept, SharedWord::Before).load(SeqCst)));
    for number in inherited.numbers() {
        let of_a_handle =
            || keeper::stat_of(number).is_ok_and(|stat| objects.contains(&(stat.dev, stat.ino)));
        if !needed.contains(&number) && !of_a_handle() {
            drop(inherited.take(number));
        }
    }
    give_up_rights().map_err(|error| format!("capabilities: {error}"))?;
    Ok(inherited)
}

fn serve(kept: Arc<Kept>, state: &PassedState, inherited: Inherited, cause: &Cause) -> Result<(), String> {
    let signals = hold_signals().map_err(|error| format!("signals: {error}"))?;
    // Should this daemon die before it has noted its own.
    let mut inherited = inherited;
    let noted = inherited.take(number_of_state(&kept)).map_err(|error| format!("state: {error}"))?;
    let noted = std::mem::ManuallyDrop::new(noted);
    let told = kept.clone();
    std::panic::set_hook(Box::new(move |info| fail(&told, &format!("it panicked: {info}"))));
    // Only where there is another program to go back to: it has the same work.
    let limit = matches!(cause, Cause::Upgrade(None)).then(|| Limit::start(kept.clone()));
    let taken = match cause {
        Cause::Death(_) => TakenOver::revive(state, inherited, kept.clone()),
        Cause::Upgrade(because) => TakenOver::upgraded(state, inherited, kept.clone(), because.clone()),
    };
    let mut taken = taken.unwrap_or_else(|why| fail(&kept, &why));
    // It serves: from here on it has all the time, and another failure is a death.
    drop(limit);
    let _ours = std::panic::take_hook();
    taken.begin();
    taken.look_again();
    taken.tell_what_is_lost();
    if let Cause::Death(died) = cause {
        taken.tell_of_death(&died.how, now().saturating_sub(died.at));
    }
    drop(std::mem::ManuallyDrop::into_inner(noted));
    taken.attend(signals)
}

/// Ends this daemon, which cannot serve, at once: what it would close by its end is the keeper's too, and needed by the next one.
fn fail(kept: &Kept, why: &str) -> ! {
    set_failure(kept, why);
    tell_stderr(why);
    note_pending(kept);
    keeper::end(FAILED)
}

/// Ends this daemon if it is not dropped in time.
struct Limit(#[expect(dead_code, reason = "its drop tells the thread")] mpsc::Sender<()>);

impl Limit {
    fn start(kept: Arc<Kept>) -> io::Result<Self> {
        let (served, watch) = mpsc::channel();
        let limit = timeout_of_kept(&kept);
        let thread = fsstack_sync::thread::Builder::new().name("upgrade-limit".into());
        let started = thread.spawn(move || {
            if watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                fail(&kept, &format!("it did not take the pool over within {} s", limit.as_secs()));
            }
        });
        started.map(|_| Self(served))
    }
}

/// Ends a pool of which only the command line is known.
fn give_up_blindly(died: &Death, why: &str) -> Result<(), String> {
    let arguments = plain_arguments().into_iter().skip(1);
    let Ok(Request::Mount(typed)) = parse(arguments) else { return Err(why.to_owned()) };
    let log = LogSettings { target: log_of(&typed.lists), level: tracing::Level::INFO };
    end(&died.how, why, Path::new(&typed.target), None, &log)
}

/// Ends the pool.
fn give_up(state: &PassedState, died: &Death, why: &str) -> Result<(), String> {
    let settings = state.settings.settings()?;
    let ended = end(&died.how, why, &settings.mount_point, state.mount.dev, &settings.options.log);
    drop(TakenOver::listed(state, &settings));
    ended
}

fn end(how: &str, why: &str, target: &Path, dev: Option<u64>, log: &LogSettings) -> Result<(), String> {
    let mount_point = Printable::path(target).to_string();
    let line = format!(
        "{mount_point}: restart=keep: the daemon {how} and is not started again: {why}; the pool is unmounted, programs that use it see \
         errors: mount it again when the cause is known (the log above, coredumpctl)"
    );
    // Without a log the pool is unmounted all the same.
    let log = log::start_anyway(log);
    tracing::error!("{line}");
    // Callers that wait are freed first: unmounting may wait for requests.
    if let Some(dev) = dev
        && let Err(error) = fusectl::abort(fusectl::connection_of(dev))
    {
        tracing::debug!(%error, "the connection ends with the process");
    }
    let flags = UmountFlags { nofollow: true, detach: true, force: true };
    if is_at(target, dev)
        && let Err(error) = umount(target, flags)
    {
        tracing::error!("{mount_point}: cannot be unmounted: {}; use umount -l", error.errno);
    }
    match log {
        Ok(log) => log.flush(),
        Err(error) => return Err(format!("{line} (log: {error})")),
    }
    Err(line)
}

/// True if the mount on top at `target` is the pool, whose device is `dev`. Where that is not known any FUSE file system counts: it cannot
/// be asked while this process has /dev/fuse open.
fn is_at(target: &Path, dev: Option<u64>) -> bool {
    let top = mounts::list().unwrap_or_default().into_iter().rfind(|mount| mount.mount_point == target);
    top.is_some_and(|top| dev.map_or(top.is_fuse(), |dev| top.device() == dev))
}
