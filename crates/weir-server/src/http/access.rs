//! Who may use `/json`, `/v1/acquire` and `/v1/release`, which ask nobody for a certificate.

use std::{net::IpAddr, sync::Arc};

use axum::{
    Extension,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{MethodRouter, any, post},
};
use tokio::net::TcpStream;

use super::{
    acquire::{self, AcquireApi},
    context::ServiceContext,
    json::{self, JsonApi},
};
use crate::bounds::RequestBounds;
use weir_store::Store;

/// `WEIR_JSON`: who may use `/json`, `/v1/acquire` and `/v1/release`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JsonAccess {
    #[default]
    Everybody,
    /// Clients on this host, or in this pod.
    Loopback,
    Nobody,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HttpPeer {
    /// None if it is unknown: then it counts as a stranger.
    pub(super) address: Option<IpAddr>,
    pub(super) encryption: Encryption,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Encryption {
    #[default]
    Off,
    On,
    /// The client has shown a certificate, which was verified.
    WithCertificate,
}

const OFF: &str = "/json is off: see WEIR_JSON\n";
const LOOPBACK_ONLY: &str = "/json is for clients on this host only: see WEIR_JSON\n";

// === impl HttpPeer ===

impl HttpPeer {
    pub(super) fn of(stream: &TcpStream, encryption: Encryption) -> Self {
        // an IPv4 client of an IPv6 socket has a mapped address
        let address = stream.peer_addr().ok().map(|peer| peer.ip().to_canonical());
        Self { address, encryption }
    }

    fn is_loopback(&self) -> bool {
        self.address.is_some_and(|address| address.is_loopback())
    }
}

// === impl Encryption ===

impl Encryption {
    pub(super) fn is_on(self) -> bool {
        self != Self::Off
    }
}

/// The pages `/json`, `/v1/acquire` and `/v1/release`.
pub(super) fn routes<S: Store>(
    access: JsonAccess,
    context: &ServiceContext<S>,
    bounds: RequestBounds,
) -> [MethodRouter; 3] {
    let json = Arc::new(JsonApi::new(context.clone(), bounds));
    let acquire = Arc::new(AcquireApi::new(Arc::clone(&json)));
    let pages = [
        post(json::decide::<S>).with_state(json),
        post(acquire::acquire::<S>).with_state(Arc::clone(&acquire)),
        post(acquire::release::<S>).with_state(acquire),
    ];
    pages.map(|page| match access {
        JsonAccess::Everybody => page,
        JsonAccess::Loopback => page.layer(from_fn(local_only)),
        JsonAccess::Nobody => any((StatusCode::NOT_FOUND, OFF)),
    })
}

async fn local_only(Extension(peer): Extension<HttpPeer>, request: Request, next: Next) -> Response {
    if !peer.is_loopback() {
        return (StatusCode::FORBIDDEN, LOOPBACK_ONLY).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tokio::net::TcpListener;
    use tower::ServiceExt as _;

    use super::*;
    use crate::{
        connections::Connections,
        fuzz::{Parts, parts},
        headers::ResponseHeaders,
        health::Health,
    };
    use weir_export::prometheus::MetricNames;

    async fn status(access: JsonAccess, peer: HttpPeer) -> (StatusCode, bool) {
        let Parts { limiter, stats, clock } = parts();
        let (health, metric_names, headers) =
            (Health::new(), MetricNames::default(), ResponseHeaders::default());
        let audit = Arc::default();
        let context =
            ServiceContext { limiter, stats, clock, health, headers, metric_names, tracer: None, audit };
        let opened = Arc::new(Connections::default()).open().expect("it is the first");
        let client = super::super::client::HttpClient::new(
            Arc::clone(opened.account()),
            std::time::Duration::from_secs(10),
        );
        let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "f"}]}]}"#;
        let request = Request::post("/json").extension(client).extension(peer).body(Body::from(body));
        let [json, ..] = routes(access, &context, RequestBounds::default());
        let router = axum::Router::new().route("/json", json);
        let response = router.oneshot(request.expect("a request")).await.expect("a response");
        let decided = context.limiter.store().usage().live > 0;
        (response.status(), decided)
    }

    #[tokio::test]
    async fn each_client_has_the_access_that_it_was_given() {
        let peer = |address: [u8; 4]| HttpPeer { address: Some(address.into()), ..HttpPeer::default() };
        let (here, elsewhere) = (peer([127, 0, 0, 1]), peer([192, 0, 2, 1]));
        for (access, peer, expected) in [
            (JsonAccess::Everybody, elsewhere, StatusCode::OK),
            (JsonAccess::Loopback, here, StatusCode::OK),
            (JsonAccess::Loopback, elsewhere, StatusCode::FORBIDDEN),
            (JsonAccess::Nobody, here, StatusCode::NOT_FOUND),
        ] {
            let counted = expected == StatusCode::OK;
            assert_eq!(status(access, peer).await, (expected, counted), "{access:?} {peer:?}");
        }
    }

    #[tokio::test]
    async fn a_peer_is_local_by_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let stream =
            TcpStream::connect(listener.local_addr().expect("its address")).await.expect("a connection");
        assert!(HttpPeer::of(&stream, Encryption::Off).is_loopback());
    }
}
