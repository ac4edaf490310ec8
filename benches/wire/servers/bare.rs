//! A server on the crate h2 without a gRPC library.

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
use weir_proto::envoy::service::ratelimit::v3::RateLimitResponse;

use super::comparison::{Kind, grpc};

/// The constant response.
#[derive(Clone)]
struct Canned {
    message: Bytes,
    headers: HeaderMap,
    trailers: HeaderMap,
}

type Incoming = (Request<RecvStream>, SendResponse<Bytes>);

pub(crate) async fn serve(listener: TcpListener, kind: Kind, response: RateLimitResponse) -> io::Result<()> {
    let zero = HeaderValue::from_static("0");
    let content = HeaderValue::from_static("application/grpc");
    let canned = Canned {
        message: grpc(&response.encode_to_vec()).into(),
        headers: HeaderMap::from_iter([(CONTENT_TYPE, content)]),
        trailers: HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), zero)]),
    };
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let canned = canned.clone();
        tokio::spawn(async move {
            // a client that disconnects is not an error
            let _ = match kind {
                Kind::H2Spawn => spawn_per_request(stream, canned).await,
                _ => respond_in_batches(stream, canned).await,
            };
        });
    }
}

/// Reads every request that has arrived before it responds to any, so that one write carries all responses.
async fn respond_in_batches(stream: TcpStream, canned: Canned) -> Result<(), h2::Error> {
    let mut connection = server().handshake(stream).await?;
    let mut open: Vec<Incoming> = Vec::new();
    poll_fn(move |context| {
        loop {
            // this also sends the responses of the previous round
            while let Poll::Ready(incoming) = connection.poll_accept(context) {
                match incoming {
                    Some(incoming) => open.push(incoming?),
                    None => return Poll::Ready(Ok(())),
                }
            }
            let before = open.len();
            // also removes streams that the client has reset
            open.retain_mut(|incoming| respond_to(incoming, &canned, context).is_pending());
            if open.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await
}

async fn spawn_per_request(stream: TcpStream, canned: Canned) -> Result<(), h2::Error> {
    let mut connection = server().handshake(stream).await?;
    while let Some(incoming) = connection.accept().await {
        let (mut incoming, canned) = (incoming?, canned.clone());
        tokio::spawn(poll_fn(move |context| respond_to(&mut incoming, &canned, context)));
    }
    Ok(())
}

/// Returns HTTP/2 settings with large windows, which rarely need updates.
fn server() -> h2::server::Builder {
    let mut server = h2::server::Builder::new();
    server.initial_connection_window_size(1 << 24).max_concurrent_streams(4096);
    server
}

/// Reads the message, and responds when it is complete.
fn respond_to(
    (request, respond): &mut Incoming,
    canned: &Canned,
    context: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    let body = request.body_mut();
    while let Some(data) = ready!(body.poll_data(context)) {
        let received = data?.len();
        // the window needs no release once the stream has ended
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
