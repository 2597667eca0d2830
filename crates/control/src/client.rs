//! The command's side: one request, one answer, over the socket of a daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::api::{
    BranchChanged, BranchRequest, CallsByCaller, CataloguePage, CatalogueRequest, Changed, Explained,
    HandlesRequest, HandlesTried, JobRequest, Jobs, Keys, PlacementExplained, ProfileRequest, RecentLines,
    RuleRequest, Rules, SettingsRequest, SlowCalls, SlowRequest, StaleRows, StaleRowsRequest, Status,
    TierList, TierRequest, Upgrade, UpgradeRequest, WritePathChanged, WritePathRequest,
};
use crate::copying::CopyClient;
use crate::operator::Refusal;
use crate::peer::{self, Address};
use crate::route::Route;

/// Time limit of a request: longer than the daemon takes to say that it cannot answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens at the socket.
    #[error("no daemon listens at {0}: the daemon is dead or ending, or has no control socket")]
    Dead(String),
    /// Permission to connect is missing.
    #[error("{0}: permission denied: run it as root or as the user who mounted the pool")]
    Denied(String),
    /// The daemon refused.
    #[error("{0}")]
    Refused(Refusal),
    /// It did not answer, or not in HTTP and JSON.
    #[error("{0}: no answer: {1}")]
    NoAnswer(String, String),
}

/// Asks one daemon.
#[derive(Clone, Debug)]
pub struct Client(PathBuf);

impl Client {
    /// Returns a client of the daemon that listens at `socket`; sends nothing yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self(socket.into())
    }

    /// Where it asks.
    pub fn socket(&self) -> &Path {
        &self.0
    }

    /// Whether a daemon listens there, as far as the caller may know.
    pub fn is_answered(&self) -> bool {
        peer::is_listened_at(&self.0)
    }

    /// The pool as it is now.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get(&Route::Status)
    }

    /// Every key with its value.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn keys(&self) -> Result<Keys, ClientError> {
        self.get(&Route::Keys)
    }

    /// Changes keys.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn change(&self, request: &SettingsRequest) -> Result<Changed, ClientError> {
        self.post(&Route::Keys, request)
    }

    /// Switches the write path.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn write_path(&self, request: &WritePathRequest) -> Result<WritePathChanged, ClientError> {
        self.post(&Route::WritePath, request)
    }

    /// Changes the branches.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn branch(&self, request: &BranchRequest) -> Result<BranchChanged, ClientError> {
        self.post(&Route::Branches, request)
    }

    /// Where handles lead, as for a kernel that has forgotten what they are of.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn handles(&self, request: &HandlesRequest) -> Result<HandlesTried, ClientError> {
        self.post(&Route::Handles, request)
    }

    /// Rows of the index whose objects no longer exist; removes them if the request says so.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn stale_rows(&self, request: &StaleRowsRequest) -> Result<StaleRows, ClientError> {
        self.post(&Route::IndexRows, request)
    }

    /// Begins, shows or calls off jobs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn jobs(&self, request: &JobRequest) -> Result<Jobs, ClientError> {
        self.post(&Route::Jobs, request)
    }

    /// Lists, sets or removes placement rules.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn rules(&self, request: &RuleRequest) -> Result<Rules, ClientError> {
        self.post(&Route::Rules, request)
    }

    /// Names from the catalogue.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn catalogue(&self, request: &CatalogueRequest) -> Result<CataloguePage, ClientError> {
        self.post(&Route::Catalogue, request)
    }

    /// Shows, sets or removes tiers.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn tiers(&self, request: &TierRequest) -> Result<TierList, ClientError> {
        self.post(&Route::Tiers, request)
    }

    /// Takes a step of an upgrade.
    ///
    /// # Errors
    /// See [`ClientError`]. The connection may break at the step that hands the pool over.
    pub fn upgrade(&self, request: &UpgradeRequest) -> Result<Upgrade, ClientError> {
        self.post(&Route::Upgrade, request)
    }

    /// Slow calls; sets from when a call is slow.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn slow_calls(&self, request: &SlowRequest) -> Result<SlowCalls, ClientError> {
        self.post(&Route::SlowCalls, request)
    }

    /// The last lines of the log.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn log_lines(&self) -> Result<RecentLines, ClientError> {
        self.get(&Route::LogLines)
    }

    /// Totals of calls by caller.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn profile(&self, request: &ProfileRequest) -> Result<CallsByCaller, ClientError> {
        self.post(&Route::Profile, request)
    }

    /// Why what is at `path` is where it is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn explain(&self, path: &[u8]) -> Result<Explained, ClientError> {
        self.get(&Route::Explain { path: path.to_vec() })
    }

    /// Where a new file of `size` bytes would be put.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn explain_create(&self, path: &[u8], size: u64) -> Result<PlacementExplained, ClientError> {
        self.get(&Route::ExplainCreate { path: path.to_vec(), size })
    }

    /// A connection for a bulk copy.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn copy(&self) -> Result<CopyClient, ClientError> {
        let address = self.address()?;
        let stream = std::os::unix::net::UnixStream::connect(address.path())
            .map_err(|error| self.unreached(&error))?;
        CopyClient::begin(stream, &Route::Copy.address(), self.shown())
    }

    /// The figures, as text.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn metrics(&self) -> Result<String, ClientError> {
        let (status, body) = self.ask(Method::GET, &Route::Metrics, Vec::new())?;
        if status != StatusCode::OK {
            return Err(self.refusal(&body));
        }
        String::from_utf8(body).map_err(|_| self.no_answer("not text"))
    }

    fn get<T: DeserializeOwned>(&self, route: &Route) -> Result<T, ClientError> {
        self.read(self.ask(Method::GET, route, Vec::new())?)
    }

    fn post<T: DeserializeOwned>(&self, route: &Route, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.no_answer(error))?;
        self.read(self.ask(Method::POST, route, body)?)
    }

    fn read<T: DeserializeOwned>(&self, (status, body): (StatusCode, Vec<u8>)) -> Result<T, ClientError> {
        if status != StatusCode::OK {
            return Err(self.refusal(&body));
        }
        serde_json::from_slice(&body).map_err(|error| self.no_answer(format!("another version? {error}")))
    }

    fn refusal(&self, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<Refusal>(body) {
            Ok(refusal) => ClientError::Refused(refusal),
            Err(error) => self.no_answer(error),
        }
    }

    fn ask(
        &self,
        method: Method,
        route: &Route,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| self.no_answer(error))?;
        let asked = runtime.block_on(async {
            tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(method, route, body)).await
        });
        asked.unwrap_or_else(|_| Err(self.no_answer("it takes too long")))
    }

    async fn exchange(
        &self,
        method: Method,
        route: &Route,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let address = self.address()?;
        let stream = UnixStream::connect(address.path()).await.map_err(|error| self.unreached(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.no_answer(error))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(route.address())
            .header(header::HOST, "fsstack")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| self.no_answer(error))?;
        let response = sender.send_request(request).await.map_err(|error| self.no_answer(error))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| self.no_answer(error))?;
        Ok((status, body.to_bytes().to_vec()))
    }

    fn address(&self) -> Result<Address, ClientError> {
        Address::of(&self.0).map_err(|error| self.unreached(&error))
    }

    fn unreached(&self, error: &io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ClientError::Dead(self.shown()),
            io::ErrorKind::PermissionDenied => ClientError::Denied(self.shown()),
            _ => self.no_answer(error),
        }
    }

    fn no_answer(&self, why: impl ToString) -> ClientError {
        ClientError::NoAnswer(self.shown(), why.to_string())
    }

    fn shown(&self) -> String {
        self.0.display().to_string()
    }
}
