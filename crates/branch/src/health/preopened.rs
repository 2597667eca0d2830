//! Pre-opened descriptors of GlusterFS's virtual `.meta` files.
//!
//! The client makes the content of such a file at its first read, not at its open (`meta_default_readv` in GlusterFS), and
//! returns the same content ever after. So a descriptor that was opened and never read answers a question with one request
//! to the client in place of four (the link in the path, open, read, flush). The others happen before and after, on a thread
//! of their own.
//!
//! A descriptor belongs to the volume's graph at the time when its path was walked. After the graph was exchanged it would
//! show the old one. So no descriptor waits for long, and a bad answer of one that has waited is asked for again. Within
//! half of that time the next one is opened through the last one: its path has a link that costs a request each time.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use fsstack_sys::{self as sys, OFlags, SysError};
use parking_lot::Mutex;

use crate::thread;

/// How long ago its path may have been walked.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Maximum length of a layer's description.
const LONGEST: usize = 256 << 10;

/// A file of the client's, and a descriptor on it that was not read yet.
#[derive(Debug)]
pub(crate) struct PreopenedFile {
    path_below: Arc<PreopenedPath>,
    /// Wakes the thread that closes what was read, and opens the next. None: no thread can be had.
    used: Mutex<Option<Sender<PreopenedFd>>>,
}

/// A descriptor on it.
#[derive(Debug)]
struct PreopenedFd {
    /// When its path was walked.
    since: Instant,
    fd: OwnedFd,
}

#[derive(Debug)]
struct PreopenedPath {
    root: Arc<OwnedFd>,
    path: CString,
    waiting: Mutex<Option<PreopenedFd>>,
}

impl PreopenedFile {
    /// The file `path` below `root`.
    pub(crate) fn new(root: Arc<OwnedFd>, path: CString) -> Self {
        Self {
            path_below: Arc::new(PreopenedPath { root, path, waiting: Mutex::default() }),
            used: Mutex::default(),
        }
    }

    /// Its content now, if that `is_good`, by a pre-opened descriptor; else by one that is opened now.
    ///
    /// # Errors
    /// The client does not answer.
    pub(crate) fn read(&self, is_good: impl Fn(&str) -> bool) -> Result<String, SysError> {
        let waited = self.path_below.waiting.lock().take();
        if let Some(file) = waited
            && file.since.elapsed() < FRESH_FOR
        {
            let text = read_all(&file.fd);
            self.is_used(file);
            if let Ok(text) = text
                && is_good(&text)
            {
                return Ok(text);
            }
        }
        let file = self.path_below.open()?;
        let text = read_all(&file.fd);
        self.is_used(file);
        text
    }

    /// Has `file` closed and another one opened, by somebody else.
    fn is_used(&self, file: PreopenedFd) {
        let mut used = self.used.lock();
        let thread = used.get_or_insert_with(|| self.path_below.clone().attend());
        if thread.send(file).is_err() {
            *used = None; // no thread could be had; the file is closed here
        }
    }
}

impl PreopenedPath {
    fn open(&self) -> Result<PreopenedFd, SysError> {
        let since = Instant::now();
        sys::at::open_follow(self.root.as_fd(), &self.path, OFlags::RDONLY)
            .map(|fd| PreopenedFd { since, fd })
    }

    /// One more, as `last` was.
    fn open_after(&self, last: &PreopenedFd) -> Result<PreopenedFd, SysError> {
        if FRESH_FOR / 2 < last.since.elapsed() {
            return self.open();
        }
        sys::at::reopen(last.fd.as_fd(), OFlags::RDONLY).map(|fd| PreopenedFd { since: last.since, fd })
    }

    /// Starts the thread. It ends with the sender, or stays where the client hangs.
    fn attend(self: Arc<Self>) -> Sender<PreopenedFd> {
        let (used, to_close) = mpsc::channel::<PreopenedFd>();
        let builder = std::thread::Builder::new().name("gluster-meta".into()).stack_size(64 << 10);
        let started = thread::start(builder, move || {
            for file in to_close {
                let next = self.open_after(&file).ok();
                drop(file);
                *self.waiting.lock() = next;
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "pre-opened .meta files: cannot start a thread; failed lookups on this branch are slower");
        }
        used
    }
}

fn read_all(file: &OwnedFd) -> Result<String, SysError> {
    let mut text = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let read = sys::file::read_at(file.as_fd(), &mut piece, text.len() as u64)?;
        text.extend_from_slice(&piece[..read]);
        // Less than was asked for is the end: another question would cost as much as this one.
        if read < piece.len() || LONGEST < text.len() {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
