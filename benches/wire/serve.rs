//! What weir is compared with: servers that decide nothing. Each is this very program, started once more.

use std::{
    future::poll_fn,
    io::{self, Read as _, Write as _},
    task::{Context, Poll, ready},
};

use clap::ValueEnum;
use h2::{RecvStream, server::SendResponse};
use prost::Message as _;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::oneshot,
};
use tonic::{
    codegen::{
        Bytes,
        http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::CONTENT_TYPE},
    },
    transport::{Server, server::TcpIncoming},
};
use weir::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};

use super::message;

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The crate h2, which all others stand on: the message is read, and an answer of always the same bytes is sent. A
    /// connection's requests are answered on the task that reads them, all that have come in one go.
    H2,
    /// The same, but each request is answered on a task of its own.
    H2Spawn,
    /// tonic with a service that does nothing, on tokio's default runtime with one worker.
    Tonic,
    /// The same on a current-thread runtime.
    TonicCurrentThread,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::H2 => "bare h2",
            Self::H2Spawn => "bare h2, a task a request",
            Self::Tonic => "tonic, doing nothing",
            Self::TonicCurrentThread => "tonic, current-thread",
        }
    }
}

/// Serves until standard input ends, so that nobody is left over when whoever started it dies.
pub(crate) fn run(kind: Kind, descriptors: usize) -> io::Result<()> {
    let mut runtime = match kind {
        Kind::Tonic => Builder::new_multi_thread(),
        _ => Builder::new_current_thread(),
    };
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        // an error is an end as well
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    runtime.worker_threads(1).enable_all().build()?.block_on(async move {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("listening {}", listener.local_addr()?);
        io::stdout().flush()?;
        let answer = message::canned(descriptors);
        let serving = async {
            match kind {
                Kind::H2 | Kind::H2Spawn => bare(listener, kind, answer).await,
                Kind::Tonic | Kind::TonicCurrentThread => tonic(listener, answer).await,
            }
        };
        tokio::select! {
            served = serving => served,
            _ = end => Ok(()),
        }
    })
}

// === tonic ===

struct Nothing(RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for Nothing {
    async fn should_rate_limit(
        &self,
        _: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, tonic::Status> {
        Ok(tonic::Response::new(self.0.clone()))
    }
}

async fn tonic(listener: TcpListener, answer: RateLimitResponse) -> io::Result<()> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let service = RateLimitServiceServer::new(Nothing(answer));
    let served = Server::builder().add_service(service).serve_with_incoming(incoming).await;
    served.map_err(io::Error::other)
}

// === bare h2 ===

/// Bytes of what always is answered.
#[derive(Clone)]
struct Canned {
    message: Bytes,
    headers: HeaderMap,
    trailers: HeaderMap,
}

type Incoming = (Request<RecvStream>, SendResponse<Bytes>);

async fn bare(listener: TcpListener, kind: Kind, answer: RateLimitResponse) -> io::Result<()> {
    let zero = HeaderValue::from_static("0");
    let grpc = HeaderValue::from_static("application/grpc");
    let canned = Canned {
        message: message::grpc(&answer.encode_to_vec()).into(),
        headers: HeaderMap::from_iter([(CONTENT_TYPE, grpc)]),
        trailers: HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), zero)]),
    };
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let canned = canned.clone();
        tokio::spawn(async move {
            // a client that leaves is none of its trouble
            let _ = match kind {
                Kind::H2Spawn => a_task_each(stream, canned).await,
                _ => together(stream, canned).await,
            };
        });
    }
}

/// Takes every request that has come before it answers any, so that one write carries all answers.
async fn together(stream: TcpStream, canned: Canned) -> Result<(), h2::Error> {
    let mut connection = server().handshake(stream).await?;
    let mut open: Vec<Incoming> = Vec::new();
    poll_fn(move |context| {
        loop {
            // this sends, too, what was answered in the turn before
            while let Poll::Ready(incoming) = connection.poll_accept(context) {
                match incoming {
                    Some(incoming) => open.push(incoming?),
                    None => return Poll::Ready(Ok(())),
                }
            }
            let before = open.len();
            // a stream that its client has given up is done as well
            open.retain_mut(|incoming| answer(incoming, &canned, context).is_pending());
            if open.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await
}

async fn a_task_each(stream: TcpStream, canned: Canned) -> Result<(), h2::Error> {
    let mut connection = server().handshake(stream).await?;
    while let Some(incoming) = connection.accept().await {
        let (mut incoming, canned) = (incoming?, canned.clone());
        tokio::spawn(poll_fn(move |context| answer(&mut incoming, &canned, context)));
    }
    Ok(())
}

/// With windows that are rarely to be replenished.
fn server() -> h2::server::Builder {
    let mut server = h2::server::Builder::new();
    server.initial_connection_window_size(1 << 24).max_concurrent_streams(4096);
    server
}

/// Reads the message, and answers it when it is complete.
fn answer(
    (request, respond): &mut Incoming,
    canned: &Canned,
    context: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    let body = request.body_mut();
    while let Some(data) = ready!(body.poll_data(context)) {
        body.flow_control().release_capacity(data?.len())?;
    }
    let mut response = Response::new(());
    *response.headers_mut() = canned.headers.clone();
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(canned.message.clone(), false)?;
    Poll::Ready(stream.send_trailers(canned.trailers.clone()))
}
