//! Memory that a daemon that dies leaves to the next one: `restart=keep`.
//!
//! A keeper process has the same table of descriptors, so files stay open at their numbers. What they are open for is in memory that
//! both map: a row for each handle ([`rows`]), and a slot for each thread that serves requests ([`slots`]). Each is valid after every
//! single store, since the daemon may be killed between any two.
//!
//! Inodes have no row: their numbers are made from what is on the branches, and lead there (`handover/revive.rs`).

pub mod rows;
pub mod slots;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_sync::Mutex;
use fsstack_sync::unmodelled::atomic::{AtomicU64, Ordering::SeqCst};
use fsstack_sys::shared_words::SharedWords;

use rows::FreeRows;
use slots::{EarlierAct, FreeSlots};

/// Words before the slots.
const HEADER: usize = 512;
/// Words that are the owner's, behind the magic number.
const OWN: usize = 64;

/// The words of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    Magic = 0,
    /// How many daemons there were.
    Daemons = 1,
    /// Rows that were ever used.
    RowsUsed = 2,
}

/// The memory that outlives a daemon.
#[derive(Debug)]
pub struct Kept {
    words: SharedWords,
    free_rows: Mutex<FreeRows>,
    free_slots: Mutex<FreeSlots>,
    /// Requests that daemons before this one had begun, by their numbers.
    earlier: Mutex<HashMap<u64, EarlierAct>>,
    daemons: u64,
}

impl Kept {
    /// Changes with the meaning of any word.
    pub const FORMAT: u64 = 0x6673_7374_6b65_7002;

    /// Memory for a pool that begins.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> io::Result<Self> {
        let words = SharedWords::new("fsstack-kept", rows::END)?;
        let store = |at: Header, value: u64| words.words()[at as usize].store(value, SeqCst);
        store(Header::Daemons, 1);
        store(Header::Magic, Self::FORMAT);
        Ok(Self::with(words, 1))
    }

    /// The memory that a daemon before this one has left. With it begins the time of the next one.
    ///
    /// # Errors
    /// It is none.
    pub fn left(file: OwnedFd) -> io::Result<Self> {
        let words = SharedWords::of(file, rows::END)?;
        let word = |at: Header| &words.words()[at as usize];
        if word(Header::Magic).load(SeqCst) != Self::FORMAT {
            return Err(io::Error::other("not the memory of this program"));
        }
        let daemons = word(Header::Daemons).fetch_add(1, SeqCst) + 1;
        Ok(Self::with(words, daemons))
    }

    fn with(words: SharedWords, daemons: u64) -> Self {
        let kept = Self {
            words,
            free_rows: Mutex::default(),
            free_slots: Mutex::default(),
            earlier: Mutex::default(),
            daemons,
        };
        kept.sort_rows();
        kept.sort_slots();
        kept
    }

    /// Words for the keeper.
    pub fn own_words(&self) -> &[AtomicU64] {
        &self.words.words()[HEADER - OWN..HEADER]
    }

    /// How many daemons there were, this one counted.
    pub fn daemons(&self) -> u64 {
        self.daemons
    }

    /// The first handle of this daemon: no earlier one is given again, as the kernel may still close it.
    pub(crate) fn first_handle(&self) -> u64 {
        (self.daemons << 40) + 1
    }

    fn header(&self, at: Header) -> &AtomicU64 {
        &self.words.words()[at as usize]
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }
}
