//! A TCP proxy that injects faults: delays, losses, disconnects and rejected connections.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
    time::sleep,
};

/// A proxy in front of a server. Connections last as long as the test's runtime.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
    /// None while connections are rejected.
    listening: Option<JoinHandle<()>>,
    /// Bound to the same port and never listening: reserves the port while connections are rejected.
    _reserved: TcpSocket,
}

/// The faults to inject.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The delay of each chunk, in both directions.
    pub delay: Duration,
    /// Drops everything to the server.
    pub drops_requests: bool,
    /// Drops everything from the server.
    pub drops_replies: bool,
}

/// The state that all connections share.
struct ProxyState {
    server: SocketAddr,
    faults: Mutex<Faults>,
    reply_cut: Mutex<Option<ReplyCut>>,
    /// The number of replies that were cut off.
    cut_replies: Mutex<u64>,
    /// Incremented to close all open connections.
    cuts: watch::Sender<u64>,
}

/// Closes a connection in the middle of a reply.
struct ReplyCut {
    /// The reply is to the command that contains these bytes.
    command: Vec<u8>,
    /// The number of bytes of the reply that still pass.
    pass: usize,
}

/// The bytes of a reply that still pass before the connection is closed, if its reply is cut. Shared by both
/// directions.
type BytesToCut = Mutex<Option<usize>>;

// === impl Proxy ===

impl Proxy {
    /// Starts a proxy on a free port, in front of the server at `server`.
    pub fn start(server: SocketAddr) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let reserved = bind(any);
        let address = reserved.local_addr().expect("its address");
        let shared = Arc::new(ProxyState {
            server,
            faults: Mutex::default(),
            reply_cut: Mutex::default(),
            cut_replies: Mutex::default(),
            cuts: watch::Sender::new(0),
        });
        let mut proxy = Self { address, shared, listening: None, _reserved: reserved };
        proxy.accept_connections();
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the faults from now on. When a direction of a connection has dropped bytes, it drops all later ones too,
    /// because TCP delivers nothing after a gap.
    pub fn set(&self, faults: Faults) {
        *self.shared.faults.lock() = faults;
    }

    /// Closes every connection.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Closes the connection on which `command` is sent next, after `pass` bytes of the reply.
    pub fn cut_reply_to(&self, command: &str, pass: usize) {
        *self.shared.reply_cut.lock() = Some(ReplyCut { command: command.into(), pass });
    }

    /// Cancels the last [`Self::cut_reply_to`] if its command was not sent yet.
    pub fn cancel_reply_cut(&self) {
        *self.shared.reply_cut.lock() = None;
    }

    /// Returns how many replies were cut off, with at least one byte missing.
    pub fn cut_replies(&self) -> u64 {
        *self.shared.cut_replies.lock()
    }

    /// Rejects new connections, and keeps the open ones.
    pub async fn reject_connections(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
            // the listener is closed when its task has ended
            let _ = listening.await;
        }
    }

    /// Accepts connections again.
    pub fn accept_connections(&mut self) {
        if self.listening.is_none() {
            let listener = bind(self.address).listen(128).expect("the port is this proxy's");
            self.listening = Some(tokio::spawn(listen(listener, Arc::clone(&self.shared))));
        }
    }
}

fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("it is not bound yet");
    socket.bind(address).expect("a port");
    socket
}

async fn listen(listener: TcpListener, shared: Arc<ProxyState>) {
    while let Ok((client, _)) = listener.accept().await {
        // a later cut closes this connection, too
        let cut = shared.cuts.subscribe();
        tokio::spawn(forward(client, Arc::clone(&shared), cut));
    }
}

/// Forwards one connection until either side or a fault ends it.
async fn forward(client: TcpStream, shared: Arc<ProxyState>, mut cut: watch::Receiver<u64>) {
    let forwarded = async {
        let Ok(server) = TcpStream::connect(shared.server).await else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("it is a TCP socket");
        }
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let to_cut = BytesToCut::default();
        tokio::select! {
            () = forward_requests(&shared, &to_cut, from_client, to_server) => {}
            () = forward_replies(&shared, &to_cut, from_server, to_client) => {}
        }
    };
    tokio::select! {
        () = forwarded => {}
        _ = cut.changed() => {}
    }
}

async fn forward_requests(
    shared: &ProxyState,
    to_cut: &BytesToCut,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) {
    let (mut buffer, mut dropping) = (vec![0; 64 * 1024], false);
    while let Some(chunk) = read(&mut from, &mut buffer).await {
        let faults = *shared.faults.lock();
        dropping |= faults.drops_requests;
        if dropping {
            continue;
        }
        if let Some(cut) = shared.reply_cut.lock().take_if(|cut| contains(chunk, &cut.command)) {
            *to_cut.lock() = Some(cut.pass);
        }
        sleep(faults.delay).await;
        if to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

async fn forward_replies(
    shared: &ProxyState,
    to_cut: &BytesToCut,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) {
    let (mut buffer, mut dropping) = (vec![0; 64 * 1024], false);
    while let Some(chunk) = read(&mut from, &mut buffer).await {
        let faults = *shared.faults.lock();
        dropping |= faults.drops_replies;
        if dropping {
            continue;
        }
        sleep(faults.delay).await;
        let left = *to_cut.lock();
        let passed = left.unwrap_or(usize::MAX).min(chunk.len());
        if to.write_all(&chunk[..passed]).await.is_err() {
            return;
        }
        if passed < chunk.len() {
            *shared.cut_replies.lock() += 1;
            return;
        }
        *to_cut.lock() = left.map(|left| left - passed);
    }
}

async fn read<'a>(from: &mut OwnedReadHalf, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    match from.read(buffer).await {
        Ok(count) if count > 0 => Some(&buffer[..count]),
        _ => None,
    }
}

fn contains(chunk: &[u8], part: &[u8]) -> bool {
    chunk.windows(part.len()).any(|window| window == part)
}
