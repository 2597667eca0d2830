//! Signals, which are events to the daemon.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fsstack_control::holders;
use fsstack_fuse::Closer;
use fsstack_fuse::unmount::{Unmount, Unmounter};
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sync::mpsc;
use fsstack_sys::process::{Signal, SignalFd, block_signals};

use crate::keeper;
use crate::operate::Served;
use crate::serve::timeout;

/// Signals that the daemon answers to.
const SIGNALS: [Signal; 5] = [Signal::Term, Signal::Int, Signal::Hup, Signal::Usr1, Signal::Usr2];

/// Blocks the daemon's signals in this thread and all that it starts from now on, and makes them events.
pub(crate) fn hold_signals() -> io::Result<SignalFd> {
    block_signals(&SIGNALS)?;
    SignalFd::new(&SIGNALS)
}

/// How serving came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The mount is gone.
    Unmounted,
    /// The mount is gone from the tree, but programs still use it.
    Detached,
}

/// Removes the mount at a signal.
pub(crate) struct Taker {
    pub(crate) unmounter: Unmounter,
    pub(crate) closer: Closer,
    pub(crate) served: Arc<Served>,
}

impl Taker {
    fn unmount(&self) -> io::Result<Unmount> {
        self.unmounter.unmount(Some(&self.closer), timeout(&self.served.union))
    }
}

/// Acts on signals from now on.
///
/// # Errors
/// No thread is to be had.
pub(crate) fn listen(
    signals: SignalFd,
    taker: Taker,
    end: mpsc::Sender<End>,
    exported: Option<PathBuf>,
) -> io::Result<()> {
    let thread = fsstack_sync::thread::Builder::new().name("signals".into());
    thread
        .spawn(move || {
            while signals.wait_until_one_is_there().is_ok() {
                // While the pool goes to another program, which finds the signal as it came.
                let handover = &taker.served.handover;
                let _turn = handover.operators.read();
                let Ok(signal) = signals.wait() else { break };
                match signal {
                    Signal::Usr1 => handover.log.level.raise(),
                    Signal::Usr2 => handover.log.level.lower(),
                    Signal::Hup => handover.log.reopen(),
                    Signal::Term | Signal::Int => {
                        handover.is_ending.store(true, SeqCst);
                        keeper::note_ending(taker.served.union.kept(), &handover.is_ending);
                        // Looked for while it has a path.
                        let holders = exported.as_deref().map(holders::of).unwrap_or_default();
                        let done = taker.unmount();
                        if !matches!(done, Ok(Unmount::Gone)) {
                            holders.iter().for_each(|holder| tracing::warn!("pool held by {holder}"));
                        }
                        match done {
                            // The worker threads see it.
                            Ok(Unmount::Gone | Unmount::Aborted) => {}
                            Ok(Unmount::Detached) => {
                                let _heard = end.send(End::Detached);
                            }
                            Err(error) => {
                                handover.is_ending.store(false, SeqCst);
                                keeper::note_ending(taker.served.union.kept(), &handover.is_ending);
                                tracing::error!(%error, "pool cannot be unmounted");
                            }
                        }
                    }
                }
            }
        })
        .map(drop)
}
