//! Health and reflection: tonic's services, connected to this server's HTTP/2 streams.

use std::{convert::Infallible, future::poll_fn, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use h2::{RecvStream, server::SendResponse};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use tonic::{body::Body, service::Routes};
use tower::Service as _;

use super::response::{end, send_data};
use crate::connections::{ConnectionAccount, UnreadBytes};

/// The largest message of a request in bytes. The names of services and symbols are short.
pub(super) const MAX_REQUEST: usize = 16 << 10;

/// The client has to read each part of the response within `sending`. `account` is its connection's.
pub(super) async fn handle(
    mut routes: Routes,
    call: Request<RecvStream>,
    respond: SendResponse<UnreadBytes>,
    account: &Arc<ConnectionAccount>,
    sending: Duration,
) {
    let call = call.map(|body| Body::new(StreamBody::new(stream::unfold(body, receive))));
    let response: Result<_, Infallible> = routes.call(call).await;
    let Ok(response) = response;
    if let Err(error) = send(response, respond, account, sending).await {
        tracing::debug!(%error, "call aborted");
    }
}

async fn receive(mut body: RecvStream) -> Option<(Result<http_body::Frame<Bytes>, h2::Error>, RecvStream)> {
    let part = body.data().await?;
    let part = part.and_then(|part| {
        // the part is read, so the caller may send as much again
        body.flow_control().release_capacity(part.len())?;
        Ok(http_body::Frame::data(part))
    });
    Some((part, body))
}

async fn send(
    response: Response<Body>,
    mut respond: SendResponse<UnreadBytes>,
    account: &Arc<ConnectionAccount>,
    sending: Duration,
) -> Result<(), h2::Error> {
    let (head, mut body) = response.into_parts();
    let over = http_body::Body::is_end_stream(&body);
    let mut stream = respond.send_response(Response::from_parts(head, ()), over)?;
    if over {
        return Ok(());
    }
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            // a watch may have no message for hours
            _ = poll_fn(|context| stream.poll_reset(context)) => return Ok(()),
        };
        match frame.map(|frame| frame.map(http_body::Frame::into_data)) {
            Some(Ok(Ok(data))) => {
                if let Err(status) = send_data(&mut stream, data, account, sending).await {
                    end(stream, &status);
                    return Ok(());
                }
            }
            Some(Ok(Err(frame))) => return stream.send_trailers(frame.into_trailers().unwrap_or_default()),
            Some(Err(status)) => {
                tracing::debug!(%status, "call failed while streaming");
                stream.send_reset(h2::Reason::INTERNAL_ERROR);
                return Ok(());
            }
            None => return stream.send_data(UnreadBytes::new(Bytes::new(), Arc::clone(account)), true),
        }
    }
}
