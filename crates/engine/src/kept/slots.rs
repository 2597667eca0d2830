//! A slot for each thread that serves requests: how far a request has come that must not be done twice.
//!
//! begun -> acts (the next call on a branch does it) -> performed, with the answer -> free, when the kernel has the answer. A request
//! that a dead daemon has left comes again. If it was performed, its answer is in the slot. If the slot says "acts", it is found out
//! whether it was done (`adapter/again.rs` of the transport). Else it was not begun to be done.

use std::cell::RefCell;
use std::sync::Arc;

use fsstack_sync::unmodelled::atomic::{AtomicU64, Ordering::SeqCst};

use super::{HEADER, Kept};

/// Threads that serve at once, and requests left by threads that died.
const SLOTS: usize = 2048;
/// Words of a slot: state, request, note, size of the answer or errno, answer.
const SLOT: usize = 32;
const STATE: usize = 0;
const UNIQUE: usize = 1;
const NOTE: usize = 2;
const LEN: usize = 3;
const ANSWER: usize = 4;
/// The end of all slots.
pub(super) const END: usize = HEADER + SLOTS * SLOT;
/// Daemons for which a request is left: later ones do not ask for it.
const GENERATIONS: u64 = 4;

/// A request that comes again has this bit in its number.
pub const COMES_AGAIN: u64 = 1 << 63;

const FREE: u64 = 0;
const BEGUN: u64 = 1;
const ACTS: u64 = 2;
const PERFORMED: u64 = 3;
const REFUSED: u64 = 4;
/// The daemon's number is above the state.
const DAEMON: u32 = 8;

/// How far a request had come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Nothing was done.
    Begun,
    /// It may have been done; the note of who was about to.
    Acts(u64),
    /// It was done, with this answer.
    Performed(Vec<u8>),
    /// It was answered with an errno.
    Refused(i32),
}

/// A slot that a dead thread has left.
#[derive(Clone, Debug)]
pub(super) struct EarlierAct {
    slot: usize,
    state: Earlier,
}

/// Slots that can be taken.
#[derive(Debug, Default)]
pub(super) struct FreeSlots(Vec<usize>);

/// A thread's slot, which it gives back at its end.
#[derive(Debug)]
struct OwnSlot {
    kept: Arc<Kept>,
    at: usize,
    /// A request is in it.
    is_used: bool,
    /// The request at hand had come so far that it may have been done: the note.
    again: Option<u64>,
}

impl Drop for OwnSlot {
    fn drop(&mut self) {
        self.kept.slot(self.at)[STATE].store(FREE, SeqCst);
        self.kept.free_slots.lock().0.push(self.at);
    }
}

fsstack_sync::thread_local! {
    static OWN: RefCell<Option<OwnSlot>> = const { RefCell::new(None) };
}

impl Kept {
    fn slot(&self, at: usize) -> &[AtomicU64] {
        &self.words.words()[HEADER + at * SLOT..][..SLOT]
    }

    /// Finds what was left in the slots.
    pub(super) fn sort_slots(&self) {
        let (mut free, mut earlier) = (self.free_slots.lock(), self.earlier.lock());
        for at in (0..SLOTS).rev() {
            let slot = self.slot(at);
            let state = slot[STATE].load(SeqCst);
            let told =
                (self.daemons < GENERATIONS + (state >> DAEMON)).then(|| self.earlier_in(at)).flatten();
            match told {
                Some(told) => {
                    drop(earlier.insert(slot[UNIQUE].load(SeqCst), EarlierAct { slot: at, state: told }))
                }
                None => {
                    slot[STATE].store(FREE, SeqCst);
                    free.0.push(at);
                }
            }
        }
    }

    fn earlier_in(&self, at: usize) -> Option<Earlier> {
        let slot = self.slot(at);
        let len = slot[LEN].load(SeqCst);
        match slot[STATE].load(SeqCst) & ((1 << DAEMON) - 1) {
            BEGUN => Some(Earlier::Begun),
            ACTS => Some(Earlier::Acts(slot[NOTE].load(SeqCst))),
            REFUSED => Some(Earlier::Refused(i32::try_from(len).unwrap_or(5))),
            PERFORMED => {
                let words = slot[ANSWER..].iter().flat_map(|word| word.load(SeqCst).to_ne_bytes());
                Some(Earlier::Performed(words.take(usize::try_from(len).unwrap_or_default()).collect()))
            }
            _ => None,
        }
    }

    /// How far the request `unique`, which comes again, had come.
    pub fn earlier(&self, unique: u64) -> Option<Earlier> {
        self.earlier.lock().get(&(unique & !COMES_AGAIN)).map(|act| act.state.clone())
    }

    /// The kernel has the answer to `unique`, or the request is in another slot.
    pub fn forget_earlier(&self, unique: u64) {
        let Some(act) = self.earlier.lock().remove(&(unique & !COMES_AGAIN)) else { return };
        self.slot(act.slot)[STATE].store(FREE, SeqCst);
        self.free_slots.lock().0.push(act.slot);
    }

    fn state(&self, state: u64) -> u64 {
        self.daemons << DAEMON | state
    }

    /// The calling thread begins the request `unique`, which must not be done twice. `again`: it comes again, and may have been done.
    pub fn begin(self: &Arc<Self>, unique: u64, again: Option<u64>) {
        OWN.with_borrow_mut(|own| {
            if own.as_ref().is_none_or(|own| !Arc::ptr_eq(&own.kept, self)) {
                let Some(at) = self.free_slots.lock().0.pop() else {
                    tracing::warn!(
                        "restart=keep: more requests at once than can be kept; a crash may do one twice"
                    );
                    return;
                };
                *own = Some(OwnSlot { kept: self.clone(), at, is_used: false, again: None });
            }
            let Some(own) = own else { return };
            (own.is_used, own.again) = (true, again);
            let slot = self.slot(own.at);
            slot[UNIQUE].store(unique & !COMES_AGAIN, SeqCst);
            slot[NOTE].store(again.unwrap_or(0), SeqCst);
            slot[STATE].store(self.state(if again.is_some() { ACTS } else { BEGUN }), SeqCst);
        });
    }
}

/// Runs `store` on the slot of the request that this thread serves.
fn on_own(store: impl FnOnce(&OwnSlot, &[AtomicU64])) {
    OWN.with_borrow(|own| {
        if let Some(own) = own.as_ref().filter(|own| own.is_used) {
            store(own, own.kept.slot(own.at));
        }
    });
}

/// Whether the request that this thread serves is one that must not be done twice, with a slot.
pub fn is_noted() -> bool {
    OWN.with_borrow(|own| own.as_ref().is_some_and(|own| own.is_used))
}

/// The note, if the request that this thread serves comes again and may have been done.
pub fn again() -> Option<u64> {
    OWN.with_borrow(|own| own.as_ref().filter(|own| own.is_used)?.again)
}

/// The next call of this thread on a branch does what the request asks for. After a death, `note` helps to find out whether it did.
pub fn acts(note: u64) {
    // A second try looks for traces of the first.
    note_act(note, |own| own.again.is_none());
}

/// Like [`acts`], for a request that opens something: it is about to get this handle. After a death it is given up, as nobody was given
/// it. A second try has given up that of the first.
pub fn opens(handle: u64) {
    note_act(handle, |_| true);
}

fn note_act(note: u64, is_noted: impl FnOnce(&OwnSlot) -> bool) {
    on_own(|own, slot| {
        if is_noted(own) {
            slot[NOTE].store(note, SeqCst);
            slot[STATE].store(own.kept.state(ACTS), SeqCst);
        }
        #[cfg(feature = "fault")]
        crash::here("acts");
    });
}

/// The request was done, and is about to be answered.
pub fn performed(answer: &[u8]) {
    on_own(|own, slot| {
        #[cfg(feature = "fault")]
        crash::here("done");
        let Some(room) = slot.get(ANSWER..).filter(|room| answer.len() <= size_of_val(*room)) else { return };
        for (word, bytes) in room.iter().zip(answer.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), SeqCst);
        }
        slot[LEN].store(answer.len() as u64, SeqCst);
        slot[STATE].store(own.kept.state(PERFORMED), SeqCst);
        #[cfg(feature = "fault")]
        crash::here("performed");
    });
}

/// The request is about to be answered with `errno`.
pub fn refused(errno: i32) {
    on_own(|own, slot| {
        slot[LEN].store(u64::try_from(errno).unwrap_or(5), SeqCst);
        slot[STATE].store(own.kept.state(REFUSED), SeqCst);
    });
}

/// The kernel has the answer.
pub fn over() {
    OWN.with_borrow_mut(|own| {
        let Some(own) = own.as_mut().filter(|own| own.is_used) else { return };
        #[cfg(feature = "fault")]
        crash::here("answered");
        own.kept.slot(own.at)[STATE].store(FREE, SeqCst);
        (own.is_used, own.again) = (false, None);
    });
}

/// The process dies at a place that a test names: once for each time that the test makes a file.
#[cfg(feature = "fault")]
mod crash {
    /// `PLACE:FILE`.
    const VARIABLE: &str = "FSSTACK_TEST_KEEP";

    pub(super) fn here(place: &str) {
        let Ok(told) = std::env::var(VARIABLE) else { return };
        let Some((at, file)) = told.split_once(':') else { return };
        if at == place && std::fs::remove_file(file).is_ok() {
            fsstack_sys::fault::die();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn next(kept: &Kept) -> Arc<Kept> {
        Arc::new(Kept::left(kept.as_fd().try_clone_to_owned().unwrap()).unwrap())
    }

    fn thread(work: impl FnOnce() + Send + 'static) {
        // Its slot stays as if it was killed.
        fsstack_sync::thread::spawn(move || {
            work();
            OWN.with_borrow_mut(|own| own.take().map(std::mem::forget));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_next_daemon_knows_how_far_each_request_had_come() {
        let first = Arc::new(Kept::new().unwrap());
        let acts: [(u64, fn()); 5] = [
            (10, || ()),
            (12, || acts(99)),
            (14, || performed(b"an answer of 27 bytes long.")),
            (16, || refused(17)),
            (18, over),
        ];
        for (unique, act) in acts {
            let kept = first.clone();
            thread(move || {
                kept.begin(unique, None);
                act();
            });
        }
        let second = next(&first);
        let told = |unique: u64| second.earlier(unique | COMES_AGAIN);
        assert_eq!(told(10), Some(Earlier::Begun));
        assert_eq!(told(12), Some(Earlier::Acts(99)));
        assert_eq!(told(14), Some(Earlier::Performed(b"an answer of 27 bytes long.".to_vec())));
        assert_eq!(told(16), Some(Earlier::Refused(17)));
        assert_eq!((told(18), told(20)), (None, None));
        second.forget_earlier(14 | COMES_AGAIN);
        // One that comes again keeps its note, whatever is noted then.
        let kept = second.clone();
        thread(move || {
            kept.begin(12 | COMES_AGAIN, Some(99));
            kept.forget_earlier(12);
            assert_eq!(again(), Some(99));
            super::acts(5);
        });
        let kept = second.clone();
        thread(move || {
            kept.begin(22 | COMES_AGAIN, Some(99));
            opens(100);
        });
        let third = next(&second);
        assert_eq!(third.earlier(12), Some(Earlier::Acts(99)));
        // One that opens again has another handle to give up.
        assert_eq!(third.earlier(22), Some(Earlier::Acts(100)));
        assert_eq!((third.earlier(14), third.earlier(10)), (None, Some(Earlier::Begun)));
        let fifth = next(&next(&third));
        assert_eq!((fifth.earlier(10), fifth.earlier(12)), (None, Some(Earlier::Acts(99))));
    }

    #[test]
    fn threads_that_end_give_their_slots_back() {
        let kept = Arc::new(Kept::new().unwrap());
        let free = || kept.free_slots.lock().0.len();
        let before = free();
        let own = kept.clone();
        fsstack_sync::thread::spawn(move || {
            own.begin(2, None);
            assert!(is_noted());
            over();
            assert!(!is_noted());
        })
        .join()
        .unwrap();
        assert_eq!(free(), before);
    }

    #[test]
    fn outside_of_a_request_nothing_is_noted() {
        acts(1);
        performed(b"x");
        over();
        assert_eq!((is_noted(), again()), (false, None));
    }
}
