use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, extract::Request, response::Response};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
use tower::ServiceExt as _;

use super::{
    access::{Encryption, HttpPeer},
    client::HttpClient,
};
use crate::{
    Certificates,
    connections::{Connection, Connections, MAX_READ, Metered, UnreadBytes},
};
use weir_net::tls::ALPN_HTTP1;
use weir_observe::throttle::Throttle;

/// How long to wait after a failed accept. The usual cause, too many open files, outlasts an immediate retry.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The time of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves `listener` until `stop`, encrypted by the latest of `certificates` if there are some, then waits for the
/// responses to open requests. The caller has to bound that time.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections: Arc<Connections>,
    certificates: Option<Arc<Certificates>>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stopped) = watch::channel(false);
    let (mut tasks, failed) = (JoinSet::new(), Throttle::default());
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                // a connection too many is closed here
                Ok((stream, _)) => if let Some(opened) = connections.open() {
                    let served = Served {
                        opened,
                        router: router.clone(),
                        connections: Arc::clone(&connections),
                        stopping: stopped.clone(),
                    };
                    tasks.spawn(served.accept(stream, certificates.clone()));
                },
                Err(error) => {
                    if let Some(suppressed) = failed.admit(Instant::now()) {
                        tracing::warn!(%error, suppressed, "cannot accept a connection");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    stopping.send_replace(true);
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// A connection, and what serves it.
struct Served {
    opened: Connection,
    router: Router,
    connections: Arc<Connections>,
    stopping: watch::Receiver<bool>,
}

// === impl Served ===

impl Served {
    async fn accept(self, stream: TcpStream, certificates: Option<Arc<Certificates>>) {
        // a response is one small write, which must not wait for the acknowledgement of the previous one
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot disable nagle's algorithm on a connection");
        }
        let Some(certificates) = certificates else {
            let peer = HttpPeer::of(&stream, Encryption::Off);
            return self.serve(stream, peer).await;
        };
        // that of gRPC speaks HTTP/2
        let mut config = ServerConfig::clone(&certificates.config());
        config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
        let handshake = timeout(HANDSHAKE, TlsAcceptor::from(Arc::new(config)).accept(stream));
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = self.opened.account().closed() => return,
        };
        let stream = match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed on the debug port"),
            Err(_) => return tracing::debug!("TLS handshake on the debug port not in time"),
        };
        certificates.handshakes.add(1);
        let (socket, session) = stream.get_ref();
        let has_certificate = session.peer_certificates().is_some();
        let encryption = if has_certificate { Encryption::WithCertificate } else { Encryption::On };
        let peer = HttpPeer::of(socket, encryption);
        self.serve(stream, peer).await;
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, peer: HttpPeer) {
        let Self { opened, router, connections, stopping } = self;
        serve_connection((stream, peer), opened, router, connections, stopping).await;
    }
}

/// Ends when the client closes the connection, is idle or slow for too long, or has its last response after `stopping`.
async fn serve_connection(
    (stream, peer): (impl AsyncRead + AsyncWrite + Send + Unpin + 'static, HttpPeer),
    opened: Connection,
    router: Router,
    connections: Arc<Connections>,
    mut stopping: watch::Receiver<bool>,
) {
    let account = Arc::clone(opened.account());
    let bounds = *connections.bounds();
    let client = HttpClient::new(Arc::clone(&account), bounds.arrival);
    let respond = |request: hyper::Request<Incoming>| {
        client.account().set_used();
        let (router, client) = (router.clone(), client.clone());
        async move {
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(client.clone());
            request.extensions_mut().insert(peer);
            let response: Result<Response, Infallible> = router.oneshot(request).await;
            response.map(|response| response.map(|body| counted(body, client)))
        }
    };
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(bounds.arrival).max_buf_size(MAX_READ);
    let io = TokioIo::new(Metered::new(stream, Arc::clone(&account)));
    let mut connection = pin!(server.serve_connection(io, service_fn(respond)));
    let mut overrun = pin!(account.overrun(bounds.sending));
    let mut is_stopping = false;
    loop {
        let ended = poll_fn(|context| {
            let ended = connection.as_mut().poll(context);
            opened.report();
            ended
        });
        tokio::select! {
            biased;
            ended = ended => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection lost");
                }
                return;
            }
            () = &mut overrun => return,
            _ = stopping.wait_for(|stopping| *stopping), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

type CountedBody = Pin<Box<dyn http_body::Body<Data = UnreadBytes, Error = axum::Error> + Send>>;

fn counted(body: Body, client: HttpClient) -> CountedBody {
    let count = move |bytes: Bytes| UnreadBytes::new(bytes, Arc::clone(client.account()));
    Box::pin(body.map_frame(move |frame| frame.map_data(&count)))
}
