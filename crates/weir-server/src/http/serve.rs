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
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};
use tower::ServiceExt as _;

use super::{
    access::{Encryption, HttpPeer},
    client::HttpClient,
};
use crate::connections::{Connection, Connections, MAX_READ, Metered, UnreadBytes};
use weir_observe::throttle::Throttle;

/// How long to wait after a failed accept. The usual cause, too many open files, outlasts an immediate retry.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `listener` until `stop`, then waits for the responses to open requests. The caller has to bound that time.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections: Arc<Connections>,
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
                    let connections = Arc::clone(&connections);
                    tasks.spawn(serve_connection(stream, opened, router.clone(), connections, stopped.clone()));
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

/// Ends when the client closes the connection, is idle or slow for too long, or has its last response after `stopping`.
async fn serve_connection(
    stream: TcpStream,
    opened: Connection,
    router: Router,
    connections: Arc<Connections>,
    mut stopping: watch::Receiver<bool>,
) {
    // a response is one small write, which must not wait for the acknowledgement of the previous one
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot disable nagle's algorithm on a connection");
    }
    let peer = HttpPeer::of(&stream, Encryption::Off);
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
