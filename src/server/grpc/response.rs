//! Sends responses.

use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use tonic::Status;

use crate::server::{
    bounds::Bound,
    connections::{Account, UnreadBytes},
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Sends a call's response.
pub(super) fn send(
    mut respond: SendResponse<UnreadBytes>,
    response: Result<Bytes, Status>,
    account: &Arc<Account>,
) -> Result<(), h2::Error> {
    match response {
        Ok(message) => {
            let mut head = Response::new(());
            let content_type = HeaderValue::from_static("application/grpc");
            head.headers_mut().insert(header::CONTENT_TYPE, content_type);
            let mut stream = respond.send_response(head, false)?;
            stream.send_data(UnreadBytes::new(message, Arc::clone(account)), false)?;
            let mut trailers = HeaderMap::with_capacity(1);
            trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
            stream.send_trailers(trailers)
        }
        Err(status) => {
            tracing::debug!(code = ?status.code(), message = status.message(), "request failed");
            respond.send_response(status.into_http(), true).map(drop)
        }
    }
}

/// Rejects a call of a connection with too many unread responses.
pub(super) fn reject_unread(respond: SendResponse<UnreadBytes>, account: &Arc<Account>) {
    account.exceeded().add(Bound::UnreadResponses);
    let status = Status::resource_exhausted("the client reads no responses on this connection");
    // an error means that the call was aborted
    let _ = send(respond, Err(status), account);
}
