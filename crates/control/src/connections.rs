//! Connections of a server, which come to an end before the process becomes another program.
//!
//! Each request that was read is answered first. A connection that is made meanwhile waits in the listener, which goes on with the next
//! program: so no operator sees a connection break.

use std::sync::Arc;
use std::time::Duration;

use fsstack_sync::{Condvar, Mutex};
use tokio::sync::watch;

/// The open connections.
#[derive(Clone, Debug)]
pub struct Connections {
    ending: watch::Sender<bool>,
    open: Arc<(Mutex<usize>, Condvar)>,
}

/// No connection is open, and none is accepted until this drops.
#[derive(Debug)]
#[must_use = "connections are accepted again when this drops"]
pub struct NoConnections(watch::Sender<bool>);

/// An open connection.
#[derive(Debug)]
pub(crate) struct OpenConnection(Connections);

impl Connections {
    pub(crate) fn new() -> Self {
        Self { ending: watch::channel(false).0, open: Arc::default() }
    }

    /// Ends all connections, each when its request is answered; None if that takes longer than `limit`.
    pub fn end(&self, limit: Duration) -> Option<NoConnections> {
        let none = NoConnections(self.ending.clone());
        self.ending.send_replace(true);
        let (open, changed) = &*self.open;
        let mut open = open.lock();
        let late = changed.wait_while_for(&mut open, |open| *open > 0, limit).timed_out();
        (!late || *open == 0).then_some(none)
    }

    pub(crate) fn opened(&self) -> OpenConnection {
        *self.open.0.lock() += 1;
        OpenConnection(self.clone())
    }

    /// Tells when connections are to end, and when they may be made again.
    pub(crate) fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let (open, changed) = &*self.0.open;
        *open.lock() -= 1;
        changed.notify_all();
    }
}

impl Drop for NoConnections {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}
