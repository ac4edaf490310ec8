//! A server under test, and a minimal HTTP client.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use weir_observe::Source as _;
use weir_server::{Connections, http};

/// How long a test waits for an event before it fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A server on a free port.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    connections: Arc<Connections>,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) running: JoinHandle<std::io::Result<()>>,
}

#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// The body, which may be compressed.
    pub(crate) bytes: Vec<u8>,
}

impl TestServer {
    pub(crate) async fn start(router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let connections = Arc::<Connections>::default();
        let running = tokio::spawn(http::serve(listener, router, Arc::clone(&connections), None, async {
            let _ = stopped.await;
        }));
        Self { address, connections, stop, running }
    }

    /// Waits until connections hold `bytes` of unfinished requests.
    pub(crate) async fn until_held(&self, bytes: u64) {
        let held = || {
            let metrics = self.connections.metrics();
            metrics.iter().find(|metric| metric.name == "weir.connections.buffered_bytes").unwrap().value
        };
        let until = async {
            while held() < bytes {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(DEADLINE, until).await.expect("it reads");
    }

    /// Sends a request on its own connection.
    pub(crate) async fn send(&self, method: &str, path: &str, body: &[u8]) -> HttpResponse {
        self.request(method, path, "", body).await
    }

    /// Sends a request with further `headers`, which end in a line break each.
    pub(crate) async fn request(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> HttpResponse {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
        );
        let (address, request) = (self.address, [head.as_bytes(), body].concat());
        let exchange = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            // a server that rejects a body responds before it has read all of it
            let _ = stream.write_all(&request);
            let (mut response, mut bytes) = (Vec::new(), [0; 4096]);
            while let Ok(read @ 1..) = stream.read(&mut bytes) {
                response.extend_from_slice(&bytes[..read]);
            }
            response
        };
        let response = tokio::task::spawn_blocking(exchange).await.unwrap();
        let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a response");
        let (head, bytes) = (String::from_utf8_lossy(&response[..end]), response[end + 4..].to_owned());
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = String::from_utf8_lossy(&bytes).into_owned();
        HttpResponse { status, head: head.to_lowercase(), body, bytes }
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        self.send("GET", path, b"").await
    }

    pub(crate) async fn json(&self, body: &str) -> HttpResponse {
        self.send("POST", "/json", body.as_bytes()).await
    }
}
