//! A client of the admin API that chooses its address and its headers, and the document of all operations.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::Arc,
};

use serde_json::Value;
use tempfile::TempDir;
use weir_export::prometheus::MetricNames;
use weir_limit::RuleNode;
use weir_limiter::DecisionSettings;
use weir_observe::{Stats, hot_keys::HotKeyValues};
use weir_server::{
    Health,
    headers::ResponseHeaders,
    http::{
        self, Pages, ServiceContext,
        admin::{AdminParts, AdminSettings, AdminTokens, Permission, ProcessFacts},
    },
};

use crate::support::{
    Service, limited,
    test_server::{DEADLINE, TestServer},
};

pub(crate) const READER: &str = "reader-0123456789abcdef0123456789";
pub(crate) const OPERATOR: &str = "operator-0123456789abcdef01234567";
pub(crate) const WRONG: &str = "wrong-0123456789abcdef0123456789a";

/// What every host of a mesh has as its address.
pub(crate) const SIDECAR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);

pub(crate) struct Admin {
    pub(crate) server: TestServer,
    pub(crate) service: Service,
    pub(crate) health: Health,
    tokens: Option<(Arc<AdminTokens>, PathBuf)>,
    _dir: TempDir,
}

/// One operation of the document.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) level: String,
    /// The example of its body; empty if it has none.
    pub(crate) body: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    method: String,
    path: String,
    from: Ipv4Addr,
    host: Option<String>,
    headers: Vec<String>,
    body: String,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A service that finds hot keys.
pub(crate) fn shown(nodes: Vec<RuleNode>) -> Service {
    let settings = DecisionSettings { hot_keys: HotKeyValues::Shown, ..DecisionSettings::default() };
    Service::with(nodes, Stats::default(), settings)
}

// === impl Admin ===

impl Admin {
    pub(crate) async fn start(settings: AdminSettings) -> Self {
        Self::of(shown(vec![limited("tenant", "acme", 100)]), settings, None).await
    }

    /// With the tokens [`READER`] and [`OPERATOR`].
    pub(crate) async fn with_tokens(settings: AdminSettings) -> Self {
        let text = format!("ci:read:{READER}\nops:full:{OPERATOR}\n");
        Self::of(shown(vec![limited("tenant", "acme", 100)]), settings, Some(&text)).await
    }

    pub(crate) async fn of(service: Service, settings: AdminSettings, tokens: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let tokens = tokens.map(|text| {
            let path = dir.path().join("tokens");
            write_tokens(&path, text);
            (AdminTokens::load(&path).expect("tokens"), path)
        });
        let health = Health::new();
        let context = ServiceContext {
            limiter: Arc::clone(&service.limiter),
            stats: Arc::clone(&service.stats),
            clock: Arc::clone(&service.clock) as _,
            health: health.clone(),
            headers: ResponseHeaders::default(),
            tracer: None,
            metric_names: MetricNames::default(),
            audit: Arc::default(),
        };
        let loaded = tokens.as_ref().map(|(tokens, _)| Arc::clone(tokens));
        let permission = Permission::new(settings, loaded, Arc::clone(&service.clock) as _);
        let facts = ProcessFacts { instance: "test:6070".to_owned(), ..ProcessFacts::default() };
        let parts = AdminParts { permission, facts, more: Vec::new() };
        let router = http::debug_router(&context, &Pages::new(Arc::default()), parts);
        Self { server: TestServer::start(router).await, service, health, tokens, _dir: dir }
    }

    pub(crate) fn tokens(&self) -> &(Arc<AdminTokens>, PathBuf) {
        self.tokens.as_ref().expect("there are tokens")
    }

    pub(crate) async fn ask(&self, ask: &Ask) -> Answer {
        let (ask, address) = (ask.clone(), self.server.address);
        tokio::task::spawn_blocking(move || ask.send(address)).await.expect("an answer")
    }

    pub(crate) async fn status(&self, ask: &Ask) -> u16 {
        self.ask(ask).await.status
    }
}

pub(crate) fn write_tokens(path: &std::path::Path, text: &str) {
    let beside = path.with_extension("next");
    fs::write(&beside, text).expect("a file");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).expect("its mode");
    fs::rename(&beside, path).expect("the file is replaced");
}

// === impl Ask ===

impl Ask {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            from: Ipv4Addr::LOCALHOST,
            host: None,
            headers: Vec::new(),
            body: String::new(),
        }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// As a script would send it.
    pub(crate) fn of(operation: &Operation) -> Self {
        let ask = Self::new(&operation.method, &operation.path);
        let ask = Self { body: operation.body.clone(), ..ask };
        if operation.method == "GET" { ask } else { ask.header("content-type: application/json") }
    }

    pub(crate) fn header(mut self, header: &str) -> Self {
        self.headers.push(header.to_owned());
        self
    }

    /// Without the headers that begin so.
    pub(crate) fn without(mut self, header: &str) -> Self {
        self.headers.retain(|line| !line.starts_with(header));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header(&format!("authorization: Bearer {token}"))
    }

    pub(crate) fn host(self, host: &str) -> Self {
        Self { host: Some(host.to_owned()), ..self }
    }

    pub(crate) fn from(self, from: Ipv4Addr) -> Self {
        Self { from, ..self }
    }

    pub(crate) fn body(self, body: &str) -> Self {
        Self { body: body.to_owned(), ..self }
    }

    fn send(&self, address: SocketAddr) -> Answer {
        let Self { method, path, host, headers, body, .. } = self;
        let host = host.clone().unwrap_or_else(|| address.to_string());
        let headers: String = headers.iter().flat_map(|header| [header, "\r\n"]).collect();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = connect(self.from, address);
        // a server that refuses need not read the body
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        // a stream of events has no end: its head is enough
        while !answer.windows(4).any(|bytes| bytes == b"\r\n\r\n") || !is_stream(&answer) {
            let mut part = [0; 4_096];
            let Ok(read @ 1..) = stream.read(&mut part) else { break };
            answer.extend_from_slice(&part[..read]);
        }
        let answer = String::from_utf8(answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }
}

fn is_stream(answer: &[u8]) -> bool {
    String::from_utf8_lossy(answer).to_lowercase().contains("content-type: text/event-stream")
}

/// From any address of this host.
pub(crate) fn connect(from: Ipv4Addr, address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::new(IpAddr::V4(from), 0).into()).expect("an address of this host");
    socket.connect(&address.into()).expect("it listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream
}

// === impl Answer ===

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The sentence of a problem.
    pub(crate) fn detail(&self) -> String {
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        problem["detail"].as_str().expect("a sentence").to_owned()
    }
}

pub(crate) fn document() -> Value {
    serde_json::from_str(include_str!("../../src/http/admin/openapi.json")).expect("JSON")
}

/// All operations of the debug port.
pub(crate) fn operations() -> Vec<Operation> {
    let document = document();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in
            item.as_object().expect("operations").iter().filter(|(key, _)| *key != "servers")
        {
            let level = operation["x-weir-level"].as_str().expect("a level");
            let example = &operation["requestBody"]["content"]["application/json"]["example"];
            let body = if example.is_null() { String::new() } else { example.to_string() };
            let method = method.to_uppercase();
            operations.push(Operation { method, path: path.clone(), level: level.to_owned(), body });
        }
    }
    operations.retain(|operation| operation.level != "tenant");
    assert!(operations.len() > 15, "{operations:?}");
    operations
}
