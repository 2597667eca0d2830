//! Connections of bulk copies: each begins as a request, and goes on as a dialogue (`copying.rs`) on a thread of its own.
//!
//! Before the process becomes another program each ends when the requests that have come are answered: nothing more is received. A
//! request that the client sends then fails, and was not begun; the client connects again, and what it had not committed begins anew.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::connections::{Connections, OpenConnection};
use crate::copying;
use crate::operator::{Operator, Refusal};

/// Maximum number of copy threads.
const COPIES: usize = 64;

/// Places for bulk copies.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    places: Arc<Semaphore>,
    all: Connections,
}

impl Copies {
    /// Copies whose connections are among `all`.
    pub(crate) fn new(all: Connections) -> Self {
        Self { places: Arc::new(Semaphore::new(COPIES)), all }
    }

    /// Turns the connection of `request` into a copy's dialogue.
    ///
    /// # Errors
    /// It asks for something else, or no place is free.
    pub(crate) fn begin(
        self,
        request: Request<Incoming>,
        operator: Arc<dyn Operator>,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        if request.headers().get(header::UPGRADE).is_none_or(|to| to != copying::PROTOCOL) {
            return Err(Refusal::usage("a copy needs a connection of its own"));
        }
        let place = self.places.try_acquire_owned().map_err(|_| {
            Refusal::busy(format!(
                "{COPIES} threads copy into this pool already: wait, or copy with fewer (-j)"
            ))
        })?;
        let (open, ending) = (self.all.opened(), self.all.ending());
        tokio::spawn(async move {
            if let Err(error) = converse(request, operator, place, (open, ending)).await {
                tracing::warn!(%error, "bulk copy: cannot start");
            }
        });
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, header::HeaderValue::from_static(copying::PROTOCOL));
        Ok(response)
    }
}

/// Serves the copy on a thread of its own, until it ends or connections are `ending`.
async fn converse(
    request: Request<Incoming>,
    operator: Arc<dyn Operator>,
    place: OwnedSemaphorePermit,
    (open, mut ending): (OpenConnection, watch::Receiver<bool>),
) -> io::Result<()> {
    let upgraded = hyper::upgrade::on(request).await.map_err(io::Error::other)?;
    let parts = upgraded.downcast::<TokioIo<tokio::net::UnixStream>>();
    let parts = parts.map_err(|_| io::Error::other("not a socket"))?;
    let stream = Arc::new(parts.io.into_inner().into_std()?);
    stream.set_nonblocking(false)?;
    let first = io::Cursor::new(parts.read_buf);
    let (gone, mut is_gone) = oneshot::channel::<()>();
    let served = stream.clone();
    fsstack_sync::thread::Builder::new().name("copy".into()).spawn(move || {
        // The copy ends before the connection does: nothing of it is on the branches any more.
        let _held = (place, gone, open);
        let mut copying = operator.copy();
        // The client may be gone.
        let _ = copying::serve(io::Read::chain(first, &*served), &*served, &mut *copying);
    })?;
    tokio::select! {
        _ = &mut is_gone => {}
        // One that fails has ended by itself.
        _ = ending.wait_for(|is| *is) => drop(stream.shutdown(Shutdown::Read)),
    }
    Ok(())
}
