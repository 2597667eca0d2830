//! Server and client over a real socket, with an operator that has no pool.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use fsstack_control::api::*;
use fsstack_control::copying::{CopyAnswer, CopyRequest};
use fsstack_control::{Client, ClientError, Copying, ListenAt, Operator, Refusal, Server};

struct Parrot;

struct Lines;

impl Copying for Lines {
    fn answer(&mut self, request: CopyRequest) -> CopyAnswer {
        CopyAnswer::Refused { error: format!("{request:?}") }
    }
}

impl Operator for Parrot {
    fn status(&self) -> Status {
        Status {
            restart: "off".into(),
            id: "parrot".into(),
            mount_point: "/mnt".into(),
            pid: 1,
            version: "0".into(),
            uptime_seconds: 0,
            transport: "dev".into(),
            passthrough: false,
            read_only: false,
            create: "ff".into(),
            write_path: "auto".into(),
            write_rules: Vec::new(),
            placement_rules: Vec::new(),
            tiers: Vec::new(),
            misplaced: 0,
            total: None,
            available: None,
            branches: Vec::new(),
            open_files: OpenFiles::default(),
            tables: Tables::default(),
            jobs: Vec::new(),
            pool_id: None,
            index: String::new(),
            descriptors: Descriptors::default(),
        }
    }
    fn keys(&self) -> Keys {
        Keys { keys: Vec::new() }
    }
    fn slow_calls(&self, _: &SlowRequest) -> SlowCalls {
        SlowCalls { threshold: SlowThreshold::Off, calls: Vec::new(), lost: 0, last: Some(0) }
    }
    fn log_lines(&self) -> RecentLines {
        RecentLines { lines: Vec::new() }
    }
    fn profile(&self, _: &ProfileRequest) -> CallsByCaller {
        CallsByCaller { micros: 0, callers: Vec::new() }
    }
    fn change(&self, request: &SettingsRequest) -> Result<Changed, Refusal> {
        let changes = request.changes.iter().map(|wish| Change {
            key: wish.key.clone(),
            from: String::new(),
            to: wish.value.clone().unwrap_or_default(),
        });
        Ok(Changed {
            changes: changes.collect(),
            dry_run: request.dry_run,
            persisted: None,
            notes: Vec::new(),
        })
    }
    fn write_path(&self, _: &WritePathRequest) -> Result<WritePathChanged, Refusal> {
        Err(Refusal::busy("not now"))
    }
    fn branch(&self, _: &BranchRequest) -> Result<BranchChanged, Refusal> {
        Err(Refusal::missing("no such branch"))
    }
    fn handles(&self, request: &HandlesRequest) -> HandlesTried {
        HandlesTried {
            ends: vec![HandleEnd::Stale; request.handles.len()],
            indexed: Vec::new(),
            away: Vec::new(),
        }
    }
    fn stale_rows(&self, request: &StaleRowsRequest) -> StaleRows {
        StaleRows { rows: Vec::new(), next: Some(request.from) }
    }
    fn upgrade(self: std::sync::Arc<Self>, _: &UpgradeRequest) -> Result<Upgrade, Refusal> {
        Ok(Upgrade::default())
    }

    fn jobs(&self, request: &JobRequest) -> Result<Jobs, Refusal> {
        Err(Refusal::missing(format!("{request:?}")))
    }

    fn rules(&self, request: &RuleRequest) -> Result<Rules, Refusal> {
        Err(Refusal::missing(format!("{request:?}")))
    }

    fn tiers(&self, request: &TierRequest) -> Result<TierList, Refusal> {
        Err(Refusal::missing(format!("{request:?}")))
    }

    fn catalogue(&self, request: &CatalogueRequest) -> Result<CataloguePage, Refusal> {
        Err(Refusal::missing(format!("{request:?}")))
    }

    /// Where a socket is, it answers when that says so.
    fn explain(&self, path: &[u8]) -> Result<Explained, Refusal> {
        let _gone = UnixStream::connect(OsStr::from_bytes(path)).map(|mut gate| gate.read(&mut [0]));
        Err(Refusal::missing(format!("{path:?}")))
    }
    fn explain_create(&self, _: &[u8], size: u64) -> Result<PlacementExplained, Refusal> {
        Err(Refusal::usage(size.to_string()))
    }
    fn copy(&self) -> Box<dyn Copying> {
        Box::new(Lines)
    }
    fn metrics(&self) -> String {
        "# EOF\n".into()
    }
}

#[test]
fn requests_are_answered_and_the_socket_goes_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("parrot.sock");
    let listen_at = ListenAt { socket: Some(socket.clone()), metrics: None, ..ListenAt::default() };
    let server = Server::start(&listen_at, Arc::new(Parrot)).unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let client = Client::new(&socket);
    assert_eq!(client.status().unwrap().id, "parrot");
    let wish = Assignment { key: "create".into(), value: Some("mfs".into()) };
    let changed =
        client.change(&SettingsRequest { changes: vec![wish], ..SettingsRequest::default() }).unwrap();
    assert_eq!(changed.changes[0].to, "mfs");
    // Any bytes of a path arrive unchanged.
    let Err(ClientError::Refused(output)) = client.explain(b"a b%\xff") else { panic!("not refused") };
    assert_eq!(output, Refusal::missing(format!("{:?}", b"a b%\xff")));
    assert_eq!(client.metrics().unwrap(), "# EOF\n");
    drop(server);
    assert!(!socket.exists());
    assert!(matches!(client.status(), Err(ClientError::Dead(_))));
}

#[test]
fn a_copy_has_a_connection_of_its_own_for_as_long_as_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("parrot.sock");
    let listen_at = ListenAt { socket: Some(socket.clone()), metrics: None, ..ListenAt::default() };
    let _server = Server::start(&listen_at, Arc::new(Parrot)).unwrap();
    let client = Client::new(&socket);
    let mut copy = client.copy().unwrap();
    // Longer than a request may be.
    let request = CopyRequest::Commit { ids: (0..1 << 18).collect() };
    for _ in 0..2 {
        let CopyAnswer::Refused { error } = copy.ask(&request).unwrap() else { panic!("not refused") };
        assert_eq!(error, format!("{request:?}"));
        assert_eq!(client.status().unwrap().id, "parrot", "others are answered meanwhile");
    }
    // The maximum number of copy connections leaves room for other requests; one more is refused with the reason.
    let clients: Vec<_> = (0..63).map(|_| client.copy().unwrap()).collect();
    let Err(ClientError::Refused(why)) = client.copy() else { panic!("not refused") };
    assert!(why.error.contains("64 threads copy"), "{why}");
    assert_eq!(client.status().unwrap().id, "parrot");
    drop(clients);
}

#[test]
fn connections_end_when_their_requests_are_answered_and_later_ones_wait() {
    const LIMIT: Duration = Duration::from_secs(60);
    let dir = tempfile::tempdir().unwrap();
    let [socket, gate] = ["parrot.sock", "gate"].map(|name| dir.path().join(name));
    let listen_at = ListenAt { socket: Some(socket.clone()), metrics: None, ..ListenAt::default() };
    let server = Server::start(&listen_at, Arc::new(Parrot)).unwrap();
    let connections = server.connections();
    let waits = UnixListener::bind(&gate).unwrap();
    let path = gate.as_os_str().as_bytes();
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| Client::new(&socket).explain(path));
        let (inside, _) = waits.accept().unwrap();
        assert!(connections.end(Duration::from_millis(20)).is_none());
        // All as before.
        assert_eq!(Client::new(&socket).status().unwrap().id, "parrot");
        let ended = scope.spawn(|| connections.end(LIMIT));
        drop(inside);
        let told = asker.join().unwrap().unwrap_err();
        assert!(matches!(told, ClientError::Refused(_)), "{told:?}");
        let ended = ended.join().unwrap().unwrap();
        let later = scope.spawn(|| Client::new(&socket).status());
        drop(ended);
        assert_eq!(later.join().unwrap().unwrap().id, "parrot");
    });
}

#[test]
fn the_tcp_port_has_the_metrics_the_status_page_and_nothing_else() {
    let listen_at =
        ListenAt { socket: None, metrics: Some(([127, 0, 0, 1], 0).into()), ..ListenAt::default() };
    let server = Server::start(&listen_at, Arc::new(Parrot)).unwrap();
    let ask = |method: &str, host: &str, path: &str| {
        let mut stream = TcpStream::connect(server.metrics().unwrap()).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        write!(stream, "{head}Content-Length: 0\r\n\r\n").unwrap();
        let mut output = String::new();
        stream.read_to_string(&mut output).unwrap();
        output
    };
    let get = |path: &str| ask("GET", "127.0.0.1:9190", path);
    let figures = get("/metrics");
    assert!(figures.starts_with("HTTP/1.1 200") && figures.contains("openmetrics-text"), "{figures}");
    assert!(figures.ends_with("# EOF\n"), "{figures}");
    let page = get("/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("text/html"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'") && page.contains("<h1>"), "{page}");
    assert!(get("/v1/status").starts_with("HTTP/1.1 404"));
    assert!(get("/v1/settings").starts_with("HTTP/1.1 404"));
    // Both are only read.
    for (method, path) in [("POST", "/"), ("PUT", "/"), ("DELETE", "/"), ("POST", "/metrics")] {
        let refused = ask(method, "127.0.0.1:9190", path);
        assert!(refused.starts_with("HTTP/1.1 405"), "{method} {path}: {refused}");
    }
    // A web page whose name was made to resolve to this machine.
    for path in ["/", "/metrics"] {
        let refused = ask("GET", "evil.example:9190", path);
        assert!(refused.starts_with("HTTP/1.1 421") && refused.contains("text/plain"), "{refused}");
        assert!(refused.contains("ask for localhost"), "{refused}");
    }
}

#[test]
fn bytes_that_are_no_request_cost_their_sender_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("parrot.sock");
    let listen_at = ListenAt { socket: Some(socket.clone()), metrics: None, ..ListenAt::default() };
    let _server = Server::start(&listen_at, Arc::new(Parrot)).unwrap();
    for bytes in
        [&b"\x00\xff\x00"[..], b"POST /v1/settings HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{]}"]
    {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut output = Vec::new();
        stream.read_to_end(&mut output).unwrap();
        assert!(!output.starts_with(b"HTTP/1.1 200"));
    }
    assert!(Client::new(&socket).status().is_ok(), "the next asker is served");
}

/// Head of a request whose body never arrives.
const HALF: &[u8] = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n";

#[test]
fn a_slow_client_at_the_tcp_port_delays_neither_the_operator_nor_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("parrot.sock");
    let listen_at = ListenAt {
        socket: Some(socket.clone()),
        metrics: Some(([127, 0, 0, 1], 0).into()),
        ..ListenAt::default()
    };
    let server = Server::start(&listen_at, Arc::new(Parrot)).unwrap();
    let slow: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(server.metrics().unwrap()).unwrap();
            stream.write_all(HALF).unwrap();
            stream
        })
        .collect();
    for _ in 0..40 {
        assert_eq!(Client::new(&socket).status().unwrap().id, "parrot");
    }
    drop(server);
    drop(slow);
}

#[test]
fn a_request_that_does_not_become_whole_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("parrot.sock");
    let listen_at = ListenAt { socket: Some(socket.clone()), metrics: None, ..ListenAt::default() };
    let server = Server::start(&listen_at, Arc::new(Parrot)).unwrap();
    let half = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream
            .write_all(&String::from_utf8_lossy(HALF).replace("/metrics", "/v1/settings").into_bytes())
            .unwrap();
        stream
    };
    let mut slow = half();
    let mut output = String::new();
    slow.read_to_string(&mut output).unwrap();
    assert!(output.starts_with("HTTP/1.1 408") && output.contains("not whole"), "{output}");
    // All slots taken: the server ends nevertheless.
    let slow: Vec<_> = (0..40).map(|_| half()).collect();
    drop(server);
    drop(slow);
}
