//! A network that a test steers: a TCP proxy in front of a server, which delays, swallows, cuts and refuses.

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

/// A proxy that listens, unless it was told to refuse. Connections last for as long as the test's runtime.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// None while connections are refused.
    listening: Option<JoinHandle<()>>,
    /// Bound to the same port and never listening: it stays this proxy's while nobody listens.
    _reserved: TcpSocket,
}

/// How bytes are carried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Each chunk of either direction waits for so long.
    pub(crate) delay: Duration,
    /// What goes to the server vanishes.
    pub(crate) swallows_requests: bool,
    /// What comes from the server vanishes.
    pub(crate) swallows_replies: bool,
}

/// What the connections share.
struct Shared {
    server: SocketAddr,
    manner: Mutex<Manner>,
    trap: Mutex<Option<Trap>>,
    /// How many traps were sprung.
    sprung: Mutex<u64>,
    /// Raised to cut all connections that there are.
    cuts: watch::Sender<u64>,
}

/// Cuts the connection in the middle of a reply.
struct Trap {
    /// It is the reply to what contains these bytes.
    asked: Vec<u8>,
    /// So many bytes of it still arrive.
    pass: usize,
}

/// What one connection's directions have to know of each other: the bytes that still arrive, where it is to be cut.
type Fuse = Mutex<Option<usize>>;

// === impl Proxy ===

impl Proxy {
    /// A proxy on a free port, in front of the server at `server`.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let reserved = bind(any);
        let address = reserved.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            server,
            manner: Mutex::default(),
            trap: Mutex::default(),
            sprung: Mutex::default(),
            cuts: watch::Sender::new(0),
        });
        let mut proxy = Self { address, shared, listening: None, _reserved: reserved };
        proxy.accept();
        proxy
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on carries bytes like this. A direction of a connection that has lost bytes loses all that follow, too: TCP
    /// delivers nothing that comes after a gap.
    pub(crate) fn set(&self, manner: Manner) {
        *self.shared.manner.lock() = manner;
    }

    /// Cuts every connection.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts the connection on which `asked` is sent next, when `pass` bytes of the reply have arrived.
    pub(crate) fn cut_reply_to(&self, asked: &str, pass: usize) {
        *self.shared.trap.lock() = Some(Trap { asked: asked.into(), pass });
    }

    /// Cuts no reply that is not being cut yet.
    pub(crate) fn forgive(&self) {
        *self.shared.trap.lock() = None;
    }

    /// How many replies were cut so, with at least one byte missing.
    pub(crate) fn cut_replies(&self) -> u64 {
        *self.shared.sprung.lock()
    }

    /// Refuses connections. Those that there are go on.
    pub(crate) async fn refuse(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
            // the listener is closed when its task is gone
            let _ = listening.await;
        }
    }

    /// Takes connections, again.
    pub(crate) fn accept(&mut self) {
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

async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        // what is cut from now on is cut for this one as well
        let cut = shared.cuts.subscribe();
        tokio::spawn(carry(client, Arc::clone(&shared), cut));
    }
}

/// Carries one connection to its end, which both sides then see.
async fn carry(client: TcpStream, shared: Arc<Shared>, mut cut: watch::Receiver<u64>) {
    let carried = async {
        let Ok(server) = TcpStream::connect(shared.server).await else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("it is a TCP socket");
        }
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let fuse = Fuse::default();
        tokio::select! {
            () = requests(&shared, &fuse, from_client, to_server) => {}
            () = replies(&shared, &fuse, from_server, to_client) => {}
        }
    };
    tokio::select! {
        () = carried => {}
        _ = cut.changed() => {}
    }
}

async fn requests(shared: &Shared, fuse: &Fuse, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let (mut buffer, mut deaf) = (vec![0; 64 * 1024], false);
    while let Some(chunk) = read(&mut from, &mut buffer).await {
        let manner = *shared.manner.lock();
        deaf |= manner.swallows_requests;
        if deaf {
            continue;
        }
        if let Some(trap) = shared.trap.lock().take_if(|trap| contains(chunk, &trap.asked)) {
            *fuse.lock() = Some(trap.pass);
        }
        sleep(manner.delay).await;
        if to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

async fn replies(shared: &Shared, fuse: &Fuse, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let (mut buffer, mut deaf) = (vec![0; 64 * 1024], false);
    while let Some(chunk) = read(&mut from, &mut buffer).await {
        let manner = *shared.manner.lock();
        deaf |= manner.swallows_replies;
        if deaf {
            continue;
        }
        sleep(manner.delay).await;
        let left = *fuse.lock();
        let passed = left.unwrap_or(usize::MAX).min(chunk.len());
        if to.write_all(&chunk[..passed]).await.is_err() {
            return;
        }
        if passed < chunk.len() {
            *shared.sprung.lock() += 1;
            return;
        }
        *fuse.lock() = left.map(|left| left - passed);
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
