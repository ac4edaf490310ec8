//! A name server of the test, over UDP and TCP, which answers what the test says.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
};

use crate::support::Server;

/// A name server on a free port, the same for UDP and TCP. It ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    answers: Mutex<Answers>,
    over_udp: AtomicUsize,
    over_tcp: AtomicUsize,
}

/// What it answers to every query, from the next one on.
#[derive(Clone, Default)]
pub(crate) enum Answers {
    /// Nothing.
    #[default]
    Silence,
    /// Records with these ports and targets.
    Records(Vec<(u16, String)>),
    /// The same, but over UDP only that the answer is too long.
    LongRecords(Vec<(u16, String)>),
    /// That the answer is too long, over UDP and TCP.
    Truncated,
    /// The code of a failure.
    Failure(u8),
    /// The id of the query, and then these bytes.
    Bytes(Vec<u8>),
}

// === impl NameServer ===

impl NameServer {
    pub(crate) async fn start(answers: Answers) -> Self {
        let (listener, socket) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            // another process may have the port for UDP
            if let Ok(socket) = UdpSocket::bind(listener.local_addr().expect("its address")).await {
                break (listener, socket);
            }
        };
        let address = listener.local_addr().expect("its address");
        let server = Self { address, state: Arc::default() };
        server.answer(answers);
        tokio::spawn(serve_datagrams(socket, Arc::clone(&server.state)));
        tokio::spawn(serve_streams(listener, Arc::clone(&server.state)));
        server
    }

    pub(crate) fn answer(&self, answers: Answers) {
        *self.state.answers.lock() = answers;
    }

    /// Returns the numbers of queries over UDP and over TCP.
    pub(crate) fn queries(&self) -> (usize, usize) {
        (self.state.over_udp.load(Relaxed), self.state.over_tcp.load(Relaxed))
    }
}

// === impl State ===

impl State {
    /// Returns the answer to `query`, if there is one.
    fn answer(&self, query: &[u8], is_udp: bool) -> Option<Vec<u8>> {
        const ANSWERED: [u8; 2] = [0x81, 0x80];
        const TRUNCATED: [u8; 2] = [0x83, 0x80];
        match &*self.answers.lock() {
            Answers::Silence => None,
            Answers::LongRecords(_) if is_udp => Some(answer(query, TRUNCATED, &[])),
            Answers::Records(records) | Answers::LongRecords(records) => {
                Some(answer(query, ANSWERED, records))
            }
            Answers::Truncated => Some(answer(query, TRUNCATED, &[])),
            Answers::Failure(code) => Some(answer(query, [0x81, 0x80 | code], &[])),
            Answers::Bytes(bytes) => Some([&query[..2], bytes].concat()),
        }
    }
}

async fn serve_datagrams(socket: UdpSocket, state: Arc<State>) {
    let mut query = [0; 512];
    loop {
        let (length, client) = socket.recv_from(&mut query).await.expect("a query");
        state.over_udp.fetch_add(1, Relaxed);
        if let Some(answer) = state.answer(&query[..length], true) {
            socket.send_to(&answer, client).await.expect("it is sent");
        }
    }
}

async fn serve_streams(listener: TcpListener, state: Arc<State>) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        // a client that has given up has closed its end
        tokio::spawn(serve_stream(stream, Arc::clone(&state)));
    }
}

async fn serve_stream(mut stream: TcpStream, state: Arc<State>) -> std::io::Result<()> {
    loop {
        let mut query = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut query).await?;
        state.over_tcp.fetch_add(1, Relaxed);
        if let Some(answer) = state.answer(&query, false) {
            stream.write_u16(answer.len().try_into().expect("it fits")).await?;
            stream.write_all(&answer).await?;
        }
    }
}

/// Returns the records of `servers`.
pub(crate) fn records(servers: &[&Server]) -> Vec<(u16, String)> {
    servers.iter().map(|server| (server.port(), "127.0.0.1".to_owned())).collect()
}

/// Returns the bytes of an answer with `records`.
fn answer(query: &[u8], flags: [u8; 2], records: &[(u16, String)]) -> Vec<u8> {
    let count = u16::try_from(records.len()).expect("few records").to_be_bytes();
    // the name of the question, its type and its class
    let end = 12 + query[12..].iter().position(|byte| *byte == 0).expect("a name") + 5;
    let mut answer = [&query[..2], &flags, &[0, 1], &count, &[0; 4], &query[12..end]].concat();
    for (port, target) in records {
        let mut name = Vec::new();
        for label in target.split('.') {
            name.push(u8::try_from(label.len()).expect("a short label"));
            name.extend_from_slice(label.as_bytes());
        }
        name.push(0);
        // the name of the question; SRV; IN; a minute; length; priority and weight; port
        answer.extend_from_slice(&[0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60]);
        answer.extend_from_slice(&u16::try_from(6 + name.len()).expect("a short name").to_be_bytes());
        answer.extend_from_slice(&[0, 10, 0, 5]);
        answer.extend_from_slice(&port.to_be_bytes());
        answer.extend_from_slice(&name);
    }
    answer
}
