//! TLS handshakes. They have threads of their own, because a handshake takes up to a millisecond of computing, which
//! would hold up the decisions of a thread that serves connections.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    certificates::Certificates,
    refusal::Refusal,
    socket::{Peer, ServedSocket},
};
use crate::{bounds::MAX_HANDSHAKES, connections::Connection, net::Accepted};
use weir_store::runtime;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The most accepted connections that wait for one thread. More wait in the system's queue.
const MAX_QUEUED: usize = 128;

/// One thread of handshakes for as many threads that serve connections.
const SERVING_THREADS: usize = 4;

#[cfg(target_os = "linux")]
const LOWEST_PRIORITY: i32 = 19;

/// The threads end when this is dropped.
pub(super) struct Handshakes {
    threads: Vec<mpsc::Sender<WaitingHandshakes>>,
    next: usize,
}

type WaitingHandshakes = (Accepted, Connection);

type Done = mpsc::UnboundedSender<(Box<TlsStream<ServedSocket>>, Connection)>;

impl Handshakes {
    /// Starts threads for a server that has `serving` threads. Handshakes use the latest of `certificates`.
    pub(super) fn start(serving: usize, certificates: &Arc<Certificates>, done: &Done) -> io::Result<Self> {
        let start = |index| {
            let (sender, accepted) = mpsc::channel(MAX_QUEUED);
            let (certificates, done) = (Arc::clone(certificates), done.clone());
            runtime::spawn(format!("weir-tls-{index}"), async move || {
                yield_to_decisions();
                run(accepted, MAX_HANDSHAKES, certificates, done).await;
            })?;
            Ok(sender)
        };
        let threads = (0..serving.div_ceil(SERVING_THREADS).max(1)).map(start).collect::<io::Result<_>>()?;
        Ok(Self { threads, next: 0 })
    }

    /// Begins the handshake of `accepted`. Waits if as many connections as the system should queue are waiting already.
    pub(super) async fn begin(&mut self, accepted: Accepted, opened: Connection) {
        self.next = (self.next + 1) % self.threads.len();
        // the thread receives for as long as the sender exists
        let _ = self.threads[self.next].send((accepted, opened)).await;
    }
}

/// Gives the thread the lowest priority: else decisions wait for milliseconds beside handshakes on few processors.
fn yield_to_decisions() {
    // on Linux this concerns the calling thread only, and lowering needs no privilege
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, LOWEST_PRIORITY) {
        tracing::debug!(%error, "TLS handshakes keep the priority of decisions");
    }
}

/// Makes up to `max_open` handshakes at a time, until the channel is closed. Then aborts those under way.
async fn run(
    mut accepted: mpsc::Receiver<WaitingHandshakes>,
    max_open: usize,
    certificates: Arc<Certificates>,
    done: Done,
) {
    let mut tasks = JoinSet::new();
    let mut open: VecDeque<(Peer, AbortHandle)> = VecDeque::new();
    loop {
        tokio::select! {
            next = accepted.recv() => {
                let Some((next, opened)) = next else { return };
                let mut socket = ServedSocket::Detached(next);
                if let Err(error) = socket.attach() {
                    tracing::warn!(%error, "cannot serve a connection");
                    continue;
                }
                if tasks.len() >= max_open {
                    abort_oldest(&mut open, &certificates);
                }
                let peer = socket.peer();
                open.push_back((peer, tasks.spawn(handshake(socket, opened, Arc::clone(&certificates), done.clone()))));
            }
            Some(_) = tasks.join_next() => {
                while open.front().is_some_and(|(_, task)| task.is_finished()) {
                    open.pop_front();
                }
            }
        }
    }
}

fn abort_oldest(open: &mut VecDeque<(Peer, AbortHandle)>, certificates: &Certificates) {
    while let Some((peer, task)) = open.pop_front() {
        if !task.is_finished() {
            task.abort();
            return certificates.refusals.add(peer, &Refusal::timed_out());
        }
    }
}

async fn handshake(socket: ServedSocket, opened: Connection, certificates: Arc<Certificates>, done: Done) {
    let peer = socket.peer();
    let handshake = timeout(TIMEOUT, TlsAcceptor::from(certificates.config()).accept(socket));
    let handshake = tokio::select! {
        handshake = handshake => handshake,
        () = opened.account().closed() => return,
    };
    let refusal = match handshake {
        Ok(Ok(mut stream)) => match stream.get_mut().0.detach() {
            Ok(()) => {
                certificates.handshakes.add(1);
                // an error means that the server stops
                let _ = done.send((Box::new(stream), opened));
                return;
            }
            Err(error) => Refusal::of(&error),
        },
        Ok(Err(error)) => Refusal::of(&error),
        Err(_) => Refusal::timed_out(),
    };
    certificates.refusals.add(peer, &refusal);
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixStream as StdStream, path::Path};

    use tokio::{io::AsyncReadExt as _, net::UnixStream, time::Instant};

    use super::*;
    use crate::Connections;
    use weir_net::tls::ServerTls;

    async fn started(max_open: usize) -> mpsc::Sender<WaitingHandshakes> {
        let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weir-testing/keys");
        let (certificate, key) = (keys.join("rsa.crt"), keys.join("rsa.pem"));
        let tls = ServerTls { certificate, key, client_ca: None, client_names: Vec::new() };
        let certificates = Certificates::load(tls).await.expect("a valid pair");
        let (sender, accepted) = mpsc::channel(1);
        let (done, _) = mpsc::unbounded_channel();
        tokio::spawn(run(accepted, max_open, certificates, done));
        sender
    }

    async fn silent(sender: &mpsc::Sender<WaitingHandshakes>) -> UnixStream {
        let (ours, theirs) = StdStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a socket");
        theirs.set_nonblocking(true).expect("a socket");
        let opened = Arc::new(Connections::default()).open().expect("there is room");
        sender.send((Accepted::Unix(ours), opened)).await.expect("it runs");
        UnixStream::from_std(theirs).expect("a socket")
    }

    fn is_open(stream: &UnixStream) -> bool {
        stream.try_read(&mut [0; 1]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[tokio::test]
    async fn one_handshake_too_many_aborts_the_oldest() {
        let sender = started(2).await;
        let (mut first, second) = (silent(&sender).await, silent(&sender).await);
        let third = silent(&sender).await;
        assert_eq!(first.read(&mut [0; 1]).await.expect("the end"), 0);
        assert!(is_open(&second) && is_open(&third));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed_in_time() {
        let sender = started(2).await;
        let begun = Instant::now();
        let mut stream = silent(&sender).await;
        assert_eq!(stream.read(&mut [0; 1]).await.expect("the end"), 0);
        let waited = begun.elapsed();
        assert!((TIMEOUT..TIMEOUT + Duration::from_secs(1)).contains(&waited), "{waited:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_the_thread_of_handshakes_has_the_lowest_priority() {
        let priority = || rustix::process::getpriority_process(None).expect("this thread's");
        let before = priority();
        let yielding = std::thread::spawn(move || {
            yield_to_decisions();
            priority()
        });
        assert_eq!(yielding.join().expect("it ends"), LOWEST_PRIORITY);
        assert_eq!(priority(), before);
    }
}
