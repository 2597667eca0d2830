//! Server of the control socket: one thread accepts connections, and each request runs on its own thread, since it may
//! block.
//!
//! The server is idle without requests. Each request has a deadline, so a hung branch fails only its own request. Idle
//! connections are closed. Readers of the metrics, which may be any program, use a limit of their own, apart from
//! operators' connections. No connection delays the server's end. The socket is removed when the server is dropped,
//! before the pool's name is released.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fsstack_sync::thread::JoinHandle;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::api::Status;
use crate::connections::Connections;
use crate::copies::Copies;
use crate::host;
use crate::operator::{Operator, Refusal, RefusalKind};
use crate::peer;
use crate::route::Route;
use crate::status_page;

/// Maximum number of connections per listening address; others wait to be accepted.
const CONNECTIONS: usize = 32;
/// Maximum number of requests running at once.
const AT_WORK: usize = 16;
/// Time limit of a reply, and of a silent client.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause before another try to accept a connection.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a thread that nobody needs stays.
const IDLE_THREAD_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum length of a request's body, in bytes.
const LONGEST: usize = 1 << 20;

/// Addresses of the server.
#[derive(Clone, Debug, Default)]
pub struct ListenAt {
    /// The control socket, for all requests.
    pub socket: Option<PathBuf>,
    /// Address for the metrics and the status page only.
    pub metrics: Option<SocketAddr>,
    /// Listeners that another program of this process has left.
    pub inherited: Listeners,
}

/// Descriptors by which a server listens.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// The socket for everything.
    pub socket: Option<Arc<OwnedFd>>,
    /// The metrics' address.
    pub metrics: Option<Arc<OwnedFd>>,
}

/// A running server, stopped on drop.
#[derive(Debug)]
#[must_use = "the server ends when this drops"]
pub struct Server {
    socket: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    listeners: Listeners,
    connections: Connections,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server.
    ///
    /// # Errors
    ///
    /// Listening failed, with the address in the error, or no thread could be started.
    pub fn start(listen_at: &ListenAt, operator: Arc<dyn Operator>) -> io::Result<Self> {
        let named = |name: &dyn std::fmt::Display, error: io::Error| {
            io::Error::new(error.kind(), format!("{name}: {error}"))
        };
        let inherited = &listen_at.inherited;
        let tcp = match &inherited.metrics {
            Some(listener) => Some(TcpListener::from(listener.try_clone()?)),
            None => {
                let bind = |at| TcpListener::bind(at).map_err(|error| named(&at, error));
                listen_at.metrics.map(bind).transpose()?
            }
        };
        let unix = match &inherited.socket {
            Some(listener) => Some(UnixListener::from(listener.try_clone()?)),
            None => {
                let at = |path: &Path| peer::listen_at(path).map_err(|error| named(&path.display(), error));
                listen_at.socket.as_deref().map(at).transpose()?
            }
        };
        let metrics = tcp.as_ref().map(TcpListener::local_addr).transpose()?;
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(Arc::new);
        let listeners = Listeners {
            socket: unix.as_ref().map(|listener| copy(listener.as_fd())).transpose()?,
            metrics: tcp.as_ref().map(|listener| copy(listener.as_fd())).transpose()?,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(AT_WORK)
            .thread_keep_alive(IDLE_THREAD_LIFETIME)
            .thread_name("control-ask")
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let connections = Connections::new();
        let all = connections.clone();
        let thread = fsstack_sync::thread::Builder::new().name("control".into()).spawn(move || {
            let listening = {
                let _inside = runtime.enter();
                Listening::new(unix, tcp, operator, all)
            };
            match listening {
                Ok(listening) => runtime.block_on(listening.serve(stopped)),
                Err(error) => tracing::warn!(%error, "control socket not served: the fsstack command cannot reach the pool"),
            }
            // Requests that hang inside a branch are not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            socket: listen_at.socket.clone(),
            metrics,
            listeners,
            connections,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the descriptors by which it listens, for another program.
    pub fn listeners(&self) -> Listeners {
        self.listeners.clone()
    }

    /// Returns the connections, which end before another program goes on.
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// Address of the metrics, with the port that the system chose if none was given.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            // A socket that cannot be removed is removed by the next daemon of this name.
            let _ = std::fs::remove_file(socket);
        }
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Listening {
    unix: Option<tokio::net::UnixListener>,
    tcp: Option<tokio::net::TcpListener>,
    operator: Arc<dyn Operator>,
    all: Connections,
    /// Limits of the control socket and of the metrics address.
    connections: Arc<Semaphore>,
    metrics_places: Arc<Semaphore>,
    copies: Copies,
}

/// Requests permitted on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    All,
    /// The metrics and the status page.
    Metrics,
    /// The same, at a loopback address: by its own name only.
    LocalMetrics,
    Nothing,
}

impl Listening {
    fn new(
        unix: Option<UnixListener>,
        tcp: Option<TcpListener>,
        operator: Arc<dyn Operator>,
        all: Connections,
    ) -> io::Result<Self> {
        let tcp = tcp.map(|tcp| {
            tcp.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(tcp)
        });
        Ok(Self {
            unix: unix.map(tokio::net::UnixListener::from_std).transpose()?,
            tcp: tcp.transpose()?,
            operator,
            copies: Copies::new(all.clone()),
            all,
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            metrics_places: Arc::new(Semaphore::new(CONNECTIONS)),
        })
    }

    async fn serve(self, mut stopped: oneshot::Receiver<()>) {
        let own = rustix::process::geteuid().as_raw();
        let is_loopback = |tcp: &tokio::net::TcpListener| {
            tcp.local_addr().is_ok_and(|at| at.ip().to_canonical().is_loopback())
        };
        let is_local = self.tcp.as_ref().is_some_and(is_loopback);
        let metrics = if is_local { Access::LocalMetrics } else { Access::Metrics };
        let mut ending = self.all.ending();
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => return,
                () = becomes(&mut ending, true) => {}
                (place, asker) = placed(&self.connections, accept_unix(self.unix.as_ref())) => {
                    let may = asker.peer_cred().is_ok_and(|peer| peer::may_ask(peer.uid(), own));
                    let access = if may { Access::All } else { Access::Nothing };
                    self.connect(asker, access, place);
                }
                (place, asker) = placed(&self.metrics_places, accept_tcp(self.tcp.as_ref())) => {
                    self.connect(asker, metrics, place);
                }
            }
            // Connections that are made meanwhile wait.
            tokio::select! {
                _ = &mut stopped => return,
                () = becomes(&mut ending, false) => {}
            }
        }
    }

    fn connect<S>(&self, stream: S, access: Access, place: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (operator, copies) = (self.operator.clone(), self.copies.clone());
        // Readers of the metrics, which may be any program, delay nothing.
        let open = (access == Access::All).then(|| self.all.opened());
        let mut ending = self.all.ending();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let (operator, copies) = (operator.clone(), copies.clone());
                async move { Ok::<_, Infallible>(answer(request, access, operator, copies).await) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
            http.keep_alive(access == Access::All);
            let mut served = pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
            let all = async {
                // A client that closes early is not an error of the server.
                let _ = tokio::select! {
                    served = served.as_mut() => served,
                    () = becomes(&mut ending, true) => {
                        served.as_mut().graceful_shutdown();
                        served.as_mut().await
                    }
                };
            };
            if access == Access::All {
                all.await;
            } else {
                // Any program may ask, and leave its answer unread: it has its place for two requests' time.
                let _ = tokio::time::timeout(REQUEST_TIMEOUT * 2, all).await;
            }
            drop((place, open));
        });
    }
}

/// Waits until `told` has this value.
async fn becomes(told: &mut watch::Receiver<bool>, value: bool) {
    if told.wait_for(|is| *is == value).await.is_err() {
        // Nobody says it any more.
        std::future::pending().await
    }
}

/// Waits for a free slot, then for the next connection.
async fn placed<S>(connections: &Arc<Semaphore>, next: impl Future<Output = S>) -> (OwnedSemaphorePermit, S) {
    // The semaphore is never closed.
    let Ok(place) = connections.clone().acquire_owned().await else { return std::future::pending().await };
    (place, next.await)
}

/// Accepts the next connection; never returns without a listener. A failed accept (no descriptors left) is retried
/// later.
async fn accept_unix(listener: Option<&tokio::net::UnixListener>) -> tokio::net::UnixStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_PAUSE).await,
        }
    }
}

async fn accept_tcp(listener: Option<&tokio::net::TcpListener>) -> tokio::net::TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_PAUSE).await,
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    access: Access,
    operator: Arc<dyn Operator>,
    copies: Copies,
) -> Response<Full<Bytes>> {
    if access == Access::LocalMetrics && !host::is_local(request.headers()) {
        let reason = host::REFUSAL.as_bytes().to_vec();
        return with_type(StatusCode::MISDIRECTED_REQUEST, "text/plain; charset=utf-8", reason);
    }
    let route = Route::parse(request.uri().path(), request.uri().query());
    let route = match (access, route) {
        (Access::Nothing, _) => return refused(StatusCode::FORBIDDEN, &Refusal::usage("only root may ask")),
        (Access::All, Some(route))
        | (Access::Metrics | Access::LocalMetrics, Some(route @ (Route::Metrics | Route::StatusPage))) => {
            route
        }
        _ => return refused(StatusCode::NOT_FOUND, &Refusal::missing("no such request")),
    };
    let method = request.method().clone();
    if (&method, &route) == (&Method::POST, &Route::Copy) {
        return copies.begin(request, operator).unwrap_or_else(|refusal| refused_as(&refusal));
    }
    let body =
        match tokio::time::timeout(REQUEST_TIMEOUT, Limited::new(request.into_body(), LONGEST).collect())
            .await
        {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => {
                return refused(StatusCode::BAD_REQUEST, &Refusal::usage(format!("the request: {error}")));
            }
            Err(_) => {
                let text = "the request: not whole within 15 seconds";
                return refused(StatusCode::REQUEST_TIMEOUT, &Refusal::usage(text));
            }
        };
    let work = tokio::task::spawn_blocking(move || run(operator, &method, &route, &body));
    match tokio::time::timeout(REQUEST_TIMEOUT, work).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => refused(StatusCode::INTERNAL_SERVER_ERROR, &Refusal::failed("the daemon failed")),
        Err(_) => {
            let text = "no answer within 15 seconds: a branch may hang (the log says which)";
            refused(StatusCode::GATEWAY_TIMEOUT, &Refusal::failed(text))
        }
    }
}

fn run(operator: Arc<dyn Operator>, method: &Method, route: &Route, body: &[u8]) -> Response<Full<Bytes>> {
    match (method, route) {
        (&Method::GET, Route::Status) => answered(Ok(operator.status())),
        (&Method::GET, Route::Keys) => answered(Ok(operator.keys())),
        (&Method::POST, Route::Keys) => answered(asked(body).and_then(|request| operator.change(&request))),
        (&Method::POST, Route::WritePath) => {
            answered(asked(body).and_then(|request| operator.write_path(&request)))
        }
        (&Method::POST, Route::Branches) => {
            answered(asked(body).and_then(|request| operator.branch(&request)))
        }
        (&Method::POST, Route::Handles) => answered(asked(body).map(|request| operator.handles(&request))),
        (&Method::POST, Route::IndexRows) => {
            answered(asked(body).map(|request| operator.stale_rows(&request)))
        }
        (&Method::POST, Route::Jobs) => answered(asked(body).and_then(|request| operator.jobs(&request))),
        (&Method::POST, Route::Rules) => answered(asked(body).and_then(|request| operator.rules(&request))),
        (&Method::POST, Route::Catalogue) => {
            answered(asked(body).and_then(|request| operator.catalogue(&request)))
        }
        (&Method::POST, Route::Tiers) => answered(asked(body).and_then(|request| operator.tiers(&request))),
        (&Method::POST, Route::Upgrade) => {
            answered(asked(body).and_then(|request| operator.upgrade(&request)))
        }
        (&Method::POST, Route::SlowCalls) => {
            answered(asked(body).map(|request| operator.slow_calls(&request)))
        }
        (&Method::GET, Route::LogLines) => answered(Ok(operator.log_lines())),
        (&Method::POST, Route::Profile) => answered(asked(body).map(|request| operator.profile(&request))),
        (&Method::GET, Route::Explain { path }) => answered(operator.explain(path)),
        (&Method::GET, Route::ExplainCreate { path, size }) => answered(operator.explain_create(path, *size)),
        (&Method::GET, Route::Metrics) => text(operator.metrics()),
        (&Method::GET, Route::StatusPage) => html(&operator.status()),
        _ => refused(StatusCode::METHOD_NOT_ALLOWED, &Refusal::usage("not by this method")),
    }
}

fn asked<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::usage(format!("the request: {error}")))
}

fn answered<T: Serialize>(answer: Result<T, Refusal>) -> Response<Full<Bytes>> {
    match answer {
        Ok(answer) => json(StatusCode::OK, &answer),
        Err(refusal) => refused_as(&refusal),
    }
}

fn refused_as(refusal: &Refusal) -> Response<Full<Bytes>> {
    let status = match refusal.kind {
        RefusalKind::Usage => StatusCode::BAD_REQUEST,
        RefusalKind::Missing => StatusCode::NOT_FOUND,
        RefusalKind::Busy => StatusCode::CONFLICT,
        RefusalKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refused(status, refusal)
}

fn refused(status: StatusCode, refusal: &Refusal) -> Response<Full<Bytes>> {
    json(status, refusal)
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Full<Bytes>> {
    match serde_json::to_vec(value) {
        Ok(bytes) => with_type(status, "application/json", bytes),
        Err(_) => with_type(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", Vec::new()),
    }
}

fn text(metrics: String) -> Response<Full<Bytes>> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    with_type(StatusCode::OK, kind, metrics.into_bytes())
}

fn html(status: &Status) -> Response<Full<Bytes>> {
    let page = status_page::page(status).into_bytes();
    let mut response = with_type(StatusCode::OK, "text/html; charset=utf-8", page);
    for (name, value) in status_page::HEADERS {
        response.headers_mut().insert(name, header::HeaderValue::from_static(value));
    }
    response
}

fn with_type(status: StatusCode, kind: &'static str, bytes: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
