//! A process that outlives the daemon: `restart=keep`.
//!
//! The daemon is its child, and both have one table of descriptors. So the keeper has /dev/fuse with all clones, and every file that the
//! daemon has open, without a message between them. It opens nothing, and does nothing but wait, and hand signals on to the daemon.
//!
//! When the daemon dies it becomes this program anew, in its place and with its descriptors (`revive.rs`), which starts the next daemon.
//! For an upgrade the daemon ends by itself, with requests at rest, and the keeper becomes the new program in the same way. If that one
//! cannot serve the pool, the keeper becomes the program before.
//! Requests wait in the kernel meanwhile. The next daemon knows from memory that both have mapped what is open (`fsstack_engine::kept`),
//! and from a state like that of an upgrade how the pool is mounted; that state is written anew whenever an operator changes something.

#[cfg(feature = "fault")]
mod damage;
mod decision;
mod revive;

use std::ffi::OsString;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::kept::Kept;
use fsstack_pool::settings::Restart;
use fsstack_sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use fsstack_sys::handover::{self, become_file};
use fsstack_sys::keeper::{self, Ended, fork_with_same_descriptors};
use fsstack_sys::process::{self, Fork};
use fsstack_sys::thread::leave_descriptors;

use crate::handover::{Passing, plain_arguments};
use crate::launch::LaunchError;
use crate::operate::Served;
use crate::settings::Settings;

use decision::{AfterEnd, DEATHS, ENDED, ENDS, HANDS_OVER, SERVES, add_death, after_end};
pub(crate) use revive::run;

/// The option before the number of the memory's descriptor.
pub(crate) const REVIVE: &str = "--revive";
/// `--revive`, and the descriptor.
pub(crate) const ARGUMENTS: usize = 2;

/// Exit code of a program that ends without a word of its own.
const FAILED: i32 = 2;

/// Words that the keeper and the daemon share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharedWord {
    /// How far the daemon is.
    Stage = 0,
    /// Number of the descriptor of the state.
    State = 1,
    /// The keeper's process.
    Keeper = 2,
    /// When the daemon died, in milliseconds since the machine's start, and how.
    DiedAt = 3,
    DiedOf = 4,
    /// When the last ones died.
    Deaths = 5,
    /// Number of the descriptor of the program to become: set by a daemon that hands over.
    Next = 8,
    /// Number of the descriptor of the program before, until the next one serves.
    Before = 9,
    /// Signals that the daemon has not seen.
    Signals = 10,
    /// Length of the text that says why the next program could not serve, and the text.
    FailureLength = 16,
    Failure = 17,
}

/// Descriptors that the keeper may open and the daemon may not: it needs a few before it can close those of the dead daemon.
const OF_THE_KEEPER: u64 = 32;

/// Bytes of [`SharedWord::Failure`].
const FAILURE_BYTES: usize = 240;

/// An exit code in [`SharedWord::DiedOf`]; else it is a signal.
const EXIT: u64 = 1 << 32;

fn word(kept: &Kept, word: SharedWord) -> &AtomicU64 {
    &kept.own_words()[word as usize]
}

fn now() -> u64 {
    u64::try_from(handover::since_boot().as_millis()).unwrap_or(u64::MAX)
}

/// Leaves a keeper behind where the pool is to have one: goes on in a child. The process must have one thread.
///
/// # Errors
/// There is no memory, or no process to be had.
pub(crate) fn begin(settings: &Settings) -> Result<Option<Arc<Kept>>, LaunchError> {
    if settings.options.restart == Restart::Off {
        return Ok(None);
    }
    let begun = Kept::new().and_then(|kept| stay_behind(&kept).map(|()| Arc::new(kept)));
    begun.map(Some).map_err(|error| LaunchError::system(format!("restart=keep: no keeper: {error}")))
}

/// Becomes the keeper; returns in a child of it. The child leads a session if the keeper does: where sessions are scheduling groups,
/// its threads are scheduled as those of a daemon without a keeper.
fn stay_behind(kept: &Kept) -> io::Result<()> {
    word(kept, SharedWord::Keeper).store(std::process::id().into(), SeqCst);
    let leads = process::leads_session();
    match fork_with_same_descriptors()? {
        Fork::Child => {
            if leads && let Err(error) = process::setsid() {
                tracing::debug!(%error, "restart=keep: the daemon is in the keeper's session");
            }
            Ok(())
        }
        Fork::Parent(daemon) => keep(kept, daemon),
    }
}

/// Waits for the daemon's end, and ends with it, or begins anew.
fn keep(kept: &Kept, daemon: i32) -> ! {
    let ended = match keeper::attend(daemon, || is_ending(kept)) {
        Ok(ended) => ended,
        Err(_) => keeper::end(FAILED),
    };
    let how = match ended {
        Ended::Exit(code) => EXIT | u64::try_from(code).unwrap_or_default(),
        Ended::Killed(signal) => u64::try_from(signal).unwrap_or_default(),
    };
    let stage = word(kept, SharedWord::Stage).load(SeqCst);
    let is_passed = word(kept, SharedWord::Next).load(SeqCst) != 0;
    let program = match after_end(stage, is_passed) {
        AfterEnd::Revive => {
            word(kept, SharedWord::DiedOf).store(how, SeqCst);
            word(kept, SharedWord::DiedAt).store(now(), SeqCst);
            keeper::own_program()
        }
        AfterEnd::Upgrade | AfterEnd::GoBack => {
            // Blocked here: they wait until the next daemon is looked after.
            keeper::raise(word(kept, SharedWord::Signals).swap(0, SeqCst));
            if is_passed { next_program(kept) } else { last_program(kept, how) }
        }
        AfterEnd::End => keeper::end(match ended {
            Ended::Exit(code) => code,
            Ended::Killed(signal) => 128 + signal,
        }),
    };
    let error = match program {
        Ok(program) => become_program(kept, program),
        Err(error) => error,
    };
    tell_stderr(&format!("restart=keep: the program cannot be run again: {error}; the pool ends"));
    keeper::end(FAILED)
}

/// Whether the daemon is about to end, and another one to start.
fn is_ending(kept: &Kept) -> bool {
    word(kept, SharedWord::Stage).load(SeqCst) == HANDS_OVER
        && [SharedWord::Next, SharedWord::FailureLength].iter().any(|at| word(kept, *at).load(SeqCst) != 0)
}

/// The program before, where the next one has ended before it served.
fn last_program(kept: &Kept, how: u64) -> io::Result<OwnedFd> {
    if failure(kept).is_none() {
        set_failure(kept, &format!("it {} before it served", told(how)));
    }
    program_before(kept)
}

/// Becomes the program that was passed by a daemon that has ended for an upgrade; returns the program to go on with where that cannot be.
fn next_program(kept: &Kept) -> io::Result<OwnedFd> {
    let next = word(kept, SharedWord::Next).swap(0, SeqCst);
    // Stays open, for the way back.
    let own = ManuallyDrop::new(keeper::own_program()?);
    word(kept, SharedWord::Before).store(u64::try_from(own.as_raw_fd()).unwrap_or_default(), SeqCst);
    let opened = handover::copy_of(i32::try_from(next).unwrap_or(-1));
    let error = match opened {
        Ok(program) => become_program(kept, program),
        Err(error) => error,
    };
    set_failure(kept, &format!("it cannot be run: {error}"));
    keeper::own_program()
}

fn program_before(kept: &Kept) -> io::Result<OwnedFd> {
    let before = word(kept, SharedWord::Before).load(SeqCst);
    match i32::try_from(before) {
        Ok(number) if number != 0 => handover::copy_of(number),
        _ => Err(io::Error::other("no program before")),
    }
}

/// How a daemon ended, in words.
fn told(how: u64) -> String {
    match how {
        signal if signal < EXIT => format!("was killed by signal {signal}"),
        code => format!("ended with code {}", code & (EXIT - 1)),
    }
}

/// Says why the next program does not serve.
fn set_failure(kept: &Kept, why: &str) {
    let text = why.replace('\n', " ");
    let bytes = &text.as_bytes()[..text.len().min(FAILURE_BYTES)];
    let words = &kept.own_words()[SharedWord::Failure as usize..];
    for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
        let mut value = [0; 8];
        value[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(value), SeqCst);
    }
    word(kept, SharedWord::FailureLength).store(u64::try_from(bytes.len()).unwrap_or_default(), SeqCst);
}

/// Why the next program does not serve, if that was said.
fn failure(kept: &Kept) -> Option<String> {
    let length = word(kept, SharedWord::FailureLength).load(SeqCst);
    let length = usize::try_from(length).unwrap_or_default().min(FAILURE_BYTES);
    let words = &kept.own_words()[SharedWord::Failure as usize..];
    let bytes =
        words.iter().flat_map(|word| word.load(SeqCst).to_le_bytes()).take(length).collect::<Vec<u8>>();
    (length > 0).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Becomes `program`, with all descriptors: returns only where it cannot.
fn become_program(kept: &Kept, program: OwnedFd) -> io::Error {
    let made = keeper::descriptors().and_then(|mut numbers| {
        numbers.retain(|number| *number != program.as_raw_fd());
        handover::set_all_kept(&numbers, true)
    });
    if let Err(error) = made {
        return error;
    }
    let mut all = plain_arguments();
    let first = if all.is_empty() { OsString::from("mount.fsstack") } else { all.remove(0) };
    let number = kept.as_fd().as_raw_fd().to_string();
    let arguments: Vec<OsString> = [first, REVIVE.into(), number.into()].into_iter().chain(all).collect();
    become_file(program.as_fd(), &arguments)
}

fn tell_stderr(line: &str) {
    use std::io::Write;
    let _nobody = writeln!(io::stderr(), "mount.fsstack: {line}");
}

/// The process that the pool is known by: the keeper, which hands signals on.
pub(crate) fn known_by(kept: Option<&Arc<Kept>>) -> u32 {
    let keeper = kept.map(|kept| word(kept, SharedWord::Keeper).load(SeqCst));
    keeper.and_then(|keeper| u32::try_from(keeper).ok()).unwrap_or_else(std::process::id)
}

/// Leaves signals that the daemon has not seen to the keeper, which has the next daemon see them.
fn note_pending(kept: &Kept) {
    word(kept, SharedWord::Signals).fetch_or(keeper::pending(), SeqCst);
}

/// Has the keeper end with this daemon: the mount is gone.
pub(crate) fn end_with_daemon(kept: Option<&Arc<Kept>>) {
    if let Some(kept) = kept {
        word(kept, SharedWord::Stage).store(ENDED, SeqCst);
    }
}

/// Notes whether a daemon that serves `is_ending`: about to end the pool. If it dies then, the next one only unmounts it. To be called
/// after each change of that, and once the daemon serves.
pub(crate) fn note_ending(kept: Option<&Arc<Kept>>, is_ending: &AtomicBool) {
    let Some(kept) = kept else { return };
    loop {
        let ends = is_ending.load(SeqCst);
        let (from, to) = if ends { (SERVES, ENDS) } else { (ENDS, SERVES) };
        let _before = word(kept, SharedWord::Stage).compare_exchange(from, to, SeqCst, SeqCst);
        // Another thread may have changed it, and noted that before.
        if is_ending.load(SeqCst) == ends {
            return;
        }
    }
}

/// The daemon serves: if it dies, another one is started from its program. One that is about to end the pool stays so.
pub(crate) fn serves(kept: &Kept) {
    word(kept, SharedWord::Before).store(0, SeqCst);
    word(kept, SharedWord::FailureLength).store(0, SeqCst);
    let serves = |stage| (stage != ENDS).then_some(SERVES);
    let _before = word(kept, SharedWord::Stage).fetch_update(SeqCst, SeqCst, serves);
}

/// Whether the keeper lives.
pub(crate) fn is_kept(kept: &Arc<Kept>) -> bool {
    u64::from(std::os::unix::process::parent_id()) == word(kept, SharedWord::Keeper).load(SeqCst)
}

impl Served {
    /// Has the keeper restart the daemon if it dies from now on, and starts the thread that reports the keeper's own end.
    pub(crate) fn start_keeping(self: &Arc<Self>) {
        let Some(kept) = self.union.kept().cloned() else { return };
        self.note_state();
        let served = Arc::downgrade(self);
        self.union.after_change(Box::new(move || {
            if let Some(served) = served.upgrade() {
                served.note_state();
            }
        }));
        if let Err(error) = leave_descriptors(OF_THE_KEEPER) {
            tracing::warn!(%error, "restart=keep: no descriptors are left to the keeper; if all are in use when the daemon dies, the pool ends");
        }
        serves(&kept);
        note_ending(Some(&kept), &self.handover.is_ending);
        let keeper = i32::try_from(known_by(Some(&kept))).unwrap_or_default();
        // Now, as a confined daemon may not.
        let watches = keeper::Watched::new(keeper).and_then(|watched| {
            let thread = fsstack_sync::thread::Builder::new().name("keeper-watch".into());
            thread.spawn(move || {
                if watched.wait().is_ok() {
                    tracing::error!(
                        "restart=keep: the keeper (process {keeper}) is gone; the pool is served on, and ends if the daemon dies: mount \
                         it anew when that suits"
                    );
                }
            })
        });
        if let Err(error) = watches {
            tracing::warn!(%error, "restart=keep: the keeper is not watched");
        }
    }

    /// Writes down how the pool is mounted now, for the next daemon.
    pub(crate) fn note_state(&self) {
        let Some(kept) = self.union.kept() else { return };
        if let Err(why) = self.try_to_note_state(kept, handover::since_boot(), None) {
            tracing::error!(
                "restart=keep: {why}; if the daemon dies, the pool goes on with earlier settings"
            );
        }
    }

    fn try_to_note_state(&self, kept: &Kept, paused_at: Duration, next: Option<&Path>) -> Result<(), String> {
        // Before the state is looked at: of two writers, the later one writes the later state.
        let mut noted = self.handover.noted.lock();
        let outline = self.union.outline().map_err(|error| error.to_string())?;
        let state = self.write_state(outline, &Passing { paused_at, next, ..Passing::default() })?;
        #[cfg(feature = "fault")]
        let state = damage::as_told(state)?;
        let number = u64::try_from(state.as_raw_fd()).unwrap_or_default();
        word(kept, SharedWord::State).store(number, SeqCst);
        // The one before is closed when the number of this one is there.
        *noted = Some(state);
        Ok(())
    }

    /// Ends this daemon, whose requests are at rest, and has the keeper become `program`. Returns only where that cannot be: why.
    pub(crate) fn leave_to_keeper(
        &self,
        kept: &Arc<Kept>,
        program: &OwnedFd,
        path: &Path,
        paused_at: Duration,
    ) -> String {
        if !is_kept(kept) {
            return "restart=keep: the keeper is gone: unmount and mount to change versions".to_owned();
        }
        if let Err(why) = self.try_to_note_state(kept, paused_at, Some(path)) {
            return why;
        }
        word(kept, SharedWord::FailureLength).store(0, SeqCst);
        word(kept, SharedWord::Next).store(u64::try_from(program.as_raw_fd()).unwrap_or_default(), SeqCst);
        word(kept, SharedWord::Stage).store(HANDS_OVER, SeqCst);
        self.handover.log.flush();
        // One that came during the pause is the next daemon's.
        note_pending(kept);
        keeper::end(0)
    }
}

/// The state that the next daemon reads, as long as it is the current one.
pub(crate) type Noted = fsstack_sync::Mutex<Option<OwnedFd>>;
