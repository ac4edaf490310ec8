//! The crate h2 and nothing else.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll, ready},
};

use h2::{RecvStream, server::SendResponse};
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tonic::codegen::{
    Bytes,
    http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::CONTENT_TYPE},
};
use weir::proto::envoy::service::ratelimit::v3::RateLimitResponse;

use super::comparison::{Kind, grpc};

/// Bytes of what always is answered.
#[derive(Clone)]
struct Canned {
    message: Bytes,
    headers: HeaderMap,
    trailers: HeaderMap,
}

type Incoming = (Request<RecvStream>, SendResponse<Bytes>);

pub(crate) async fn serve(listener: TcpListener, kind: Kind, answer: RateLimitResponse) -> io::Result<()> {
    let zero = HeaderValue::from_static("0");
    let content = HeaderValue::from_static("application/grpc");
    let canned = Canned {
        message: grpc(&answer.encode_to_vec()).into(),
        headers: HeaderMap::from_iter([(CONTENT_TYPE, content)]),
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
        let received = data?.len();
        // what came with the end goes with the stream
        if !body.is_end_stream() {
            body.flow_control().release_capacity(received)?;
        }
    }
    let mut response = Response::new(());
    *response.headers_mut() = canned.headers.clone();
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(canned.message.clone(), false)?;
    Poll::Ready(stream.send_trailers(canned.trailers.clone()))
}
