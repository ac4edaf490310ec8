//! Reads the bodies of requests within bounds of size and time.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header::CONNECTION},
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::{
    bounds::{Bound, MAX_MESSAGE},
    connections::{AccountHold, ConnectionAccount, TooManyBytes},
};

#[derive(Clone, Debug)]
pub(super) struct HttpClient {
    account: Arc<ConnectionAccount>,
    arrival: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body exceeds {MAX_MESSAGE} bytes")]
    TooLarge,
    #[error("the body did not arrive within {0:?}")]
    TimedOut(Duration),
    #[error(transparent)]
    TooManyBytes(#[from] TooManyBytes),
    #[error("the body is incomplete: {0}")]
    Broken(#[from] axum::Error),
}

// === impl HttpClient ===

impl HttpClient {
    pub(super) const fn new(account: Arc<ConnectionAccount>, arrival: Duration) -> Self {
        Self { account, arrival }
    }

    pub(super) const fn account(&self) -> &Arc<ConnectionAccount> {
        &self.account
    }

    /// Reads a body. Its connection's account holds it until the returned [`AccountHold`] is dropped.
    pub(super) async fn read(&self, body: Body) -> Result<(Bytes, AccountHold), BodyError> {
        self.read_up_to(body, MAX_MESSAGE).await
    }

    /// The same for a body of at most `most` bytes.
    pub(super) async fn read_up_to(
        &self,
        body: Body,
        most: usize,
    ) -> Result<(Bytes, AccountHold), BodyError> {
        timeout(self.arrival, self.read_all(body, most)).await.unwrap_or_else(|_| {
            self.account.exceeded().add(Bound::RequestTimeout);
            Err(BodyError::TimedOut(self.arrival))
        })
    }

    async fn read_all(&self, mut body: Body, most: usize) -> Result<(Bytes, AccountHold), BodyError> {
        let mut hold = self.account.hold(0)?;
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await.transpose()? {
            let Ok(part) = frame.into_data() else { continue };
            if whole.len() + part.len() > most {
                self.account.exceeded().add(Bound::MessageBytes);
                return Err(BodyError::TooLarge);
            }
            // a buffer that grows is as large again as what it holds
            hold.grow_to(2 * (whole.len() + part.len()))?;
            whole.extend_from_slice(&part);
        }
        Ok((whole.freeze(), hold))
    }
}

// === impl BodyError ===

impl BodyError {
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TimedOut(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyBytes(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        // the rest of the body is not read
        (self.status(), [(CONNECTION, "close")], format!("{self}\n")).into_response()
    }
}
