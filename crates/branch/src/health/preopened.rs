//! Pre-opened descriptors of GlusterFS's virtual `.meta` files.
//!
//! The client generates the content of such a file at its first read, not at its open (`meta_default_readv` in
//! GlusterFS), and returns the same content ever after. So a descriptor that was opened but never read answers with one
//! request to the client instead of four (the link in the path, open, read, flush). The other three happen before and
//! after, on a thread of their own.
//!
//! A descriptor belongs to the volume's graph at the time of the path walk; after a graph switch it shows the old one.
//! So no descriptor is kept for long, and a bad answer from a kept one is read again. Within half of that time the next
//! one is opened through the last one, because the path has a link that costs a request each time.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_sync::Mutex;
use fsstack_sync::mpsc::{self, Sender};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::{self as sys, OFlags, SysError};

use crate::thread;

/// How long a path walk over a remote branch counts as fresh.
const WALK_FRESH_FOR: Duration = Duration::from_secs(1);
/// Maximum length of a layer's description.
const LONGEST: usize = 256 << 10;

/// A virtual file of the client, and a descriptor of it that is not yet read.
#[derive(Debug)]
pub(crate) struct PreopenedFile {
    path_below: Arc<PreopenedPath>,
    /// Wakes the thread that closes used descriptors and opens the next. `None` if no thread could be started.
    used: Mutex<Option<Sender<PreopenedFd>>>,
}

/// A descriptor of it.
#[derive(Debug)]
struct PreopenedFd {
    /// Time of the path walk.
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

    /// Returns its content now if that `is_good`, by a pre-opened descriptor, else by one opened now.
    ///
    /// # Errors
    ///
    /// The client does not answer.
    pub(crate) fn read(&self, is_good: impl Fn(&str) -> bool) -> Result<String, SysError> {
        let waited = self.path_below.waiting.lock().take();
        if let Some(file) = waited
            && file.since.elapsed() < WALK_FRESH_FOR
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

    /// Has the thread close `file` and open another one.
    fn is_used(&self, file: PreopenedFd) {
        let mut used = self.used.lock();
        let thread = used.get_or_insert_with(|| self.path_below.clone().attend());
        if thread.send(file).is_err() {
            *used = None; // no thread; the file is closed here
        }
    }
}

impl PreopenedPath {
    fn open(&self) -> Result<PreopenedFd, SysError> {
        let since = Instant::now();
        sys::at::open_follow(self.root.as_fd(), &self.path, OFlags::RDONLY)
            .map(|fd| PreopenedFd { since, fd })
    }

    /// Opens the next descriptor through `last`.
    fn open_after(&self, last: &PreopenedFd) -> Result<PreopenedFd, SysError> {
        if WALK_FRESH_FOR / 2 < last.since.elapsed() {
            return self.open();
        }
        sys::at::reopen(last.fd.as_fd(), OFlags::RDONLY).map(|fd| PreopenedFd { since: last.since, fd })
    }

    /// Starts the thread. It ends with the sender, or stays stuck if the client hangs.
    fn attend(self: Arc<Self>) -> Sender<PreopenedFd> {
        let (used, to_close) = mpsc::channel::<PreopenedFd>();
        let builder = fsstack_sync::thread::Builder::new().name("gluster-meta".into()).stack_size(64 << 10);
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
        // A short read is the end: another read would cost a request.
        if read < piece.len() || LONGEST < text.len() {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
