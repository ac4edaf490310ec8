use std::{future::poll_fn, sync::Arc, time::Duration};

use bytes::Bytes;
use h2::{SendStream, server::SendResponse};
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use tokio::time::timeout;
use tonic::Status;

use crate::{
    bounds::Bound,
    connections::{ConnectionAccount, UnreadBytes},
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

pub(super) fn send(
    mut respond: SendResponse<UnreadBytes>,
    response: Result<Bytes, Status>,
    account: &Arc<ConnectionAccount>,
) -> Result<(), h2::Error> {
    match response {
        Ok(message) => {
            let mut head = Response::new(());
            *head.headers_mut() = single(header::CONTENT_TYPE, "application/grpc");
            let mut stream = respond.send_response(head, false)?;
            stream.send_data(UnreadBytes::new(message, Arc::clone(account)), false)?;
            stream.send_trailers(single(GRPC_STATUS, "0"))
        }
        Err(status) => {
            tracing::debug!(code = ?status.code(), message = status.message(), "request failed");
            respond.send_response(status.into_http(), true).map(drop)
        }
    }
}

/// Returns a map of one header, with room for no more: other maps have room for eight.
fn single(name: HeaderName, value: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(1);
    headers.insert(name, HeaderValue::from_static(value));
    headers
}

/// Sends as the caller's flow control window allows. The error is the status with which the call has to end: it was
/// reset, nothing went through for the time `sending`, or its connection holds too much.
pub(super) async fn send_data(
    stream: &mut SendStream<UnreadBytes>,
    mut data: Bytes,
    account: &Arc<ConnectionAccount>,
    sending: Duration,
) -> Result<(), Status> {
    let aborted = |_| Status::cancelled("the call was aborted");
    // what waits for the window is not among the unread responses yet
    let _hold = account.hold(data.len())?;
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = timeout(sending, poll_fn(|context| stream.poll_capacity(context))).await;
        let room = room.map_err(|_| {
            account.exceeded().add(Bound::SendTimeout);
            Status::resource_exhausted("the client reads no responses of this call")
        })?;
        // no capacity means that the stream has ended, which sending reports
        let room = room.transpose().map_err(aborted)?.map_or(data.len(), |room| room.min(data.len()));
        let part = UnreadBytes::new(data.split_to(room), Arc::clone(account));
        stream.send_data(part, false).map_err(aborted)?;
    }
    Ok(())
}

pub(super) fn end(mut stream: SendStream<UnreadBytes>, status: &Status) {
    let mut trailers = HeaderMap::new();
    let written = status.add_header(&mut trailers).map_err(|error| error.to_string());
    let sent = written.and_then(|()| stream.send_trailers(trailers).map_err(|error| error.to_string()));
    if let Err(error) = sent {
        tracing::debug!(error, "call aborted");
    }
}

pub(super) fn reject_unread(respond: SendResponse<UnreadBytes>, account: &Arc<ConnectionAccount>) {
    account.exceeded().add(Bound::UnreadResponses);
    let status = Status::resource_exhausted("the client reads no responses on this connection");
    // an error means that the call was aborted
    let _ = send(respond, Err(status), account);
}
