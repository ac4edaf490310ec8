//! A fuzz target: the bodies of `/json`.

#![expect(clippy::missing_panics_doc, reason = "a target panics if weir is wrong")]

use std::sync::{Arc, LazyLock, atomic::AtomicBool};

use futures_util::FutureExt as _;
use prost::Message as _;

use super::{context::ServiceContext, json::JsonApi};
use crate::{
    bounds::RequestBounds,
    connections::Connections,
    fuzz::{Parts, parts},
    headers::ResponseHeaders,
    health::Health,
};
use weir_export::prometheus::MetricNames;
use weir_proto::envoy::service::ratelimit::v3::RateLimitResponse;
use weir_store::MemoryStore;

/// Also encodes the message as JSON again, which must decode to the same.
pub fn json(input: &[u8]) {
    static API: LazyLock<JsonApi<MemoryStore>> = LazyLock::new(api);
    let connections = Arc::new(Connections::default());
    let open = connections.open().expect("it is the first");
    let mut hold = open.account().hold(0).expect("nothing");
    // the store in memory waits for nothing
    let decided =
        API.handle(input, &mut hold, None, &AtomicBool::default()).now_or_never().expect("a result");
    let sent = API.decode(input);
    if let Ok(answer) = decided {
        let request = API.request(sent.as_ref().expect("it was decided")).expect("it was decided");
        let response = RateLimitResponse::decode(&*answer.message).expect("a response");
        assert_eq!(response.statuses.len(), request.descriptors.len());
        let encoded = API.encode(&answer);
        assert!(encoded.headers().contains_key("content-type"), "{encoded:?}");
    }
    if let Ok(request) = sent {
        let again = API.decode(API.json_of(&request).as_bytes());
        assert_eq!(again.expect("weir's own JSON"), request);
    }
}

fn api() -> JsonApi<MemoryStore> {
    let Parts { limiter, stats, clock } = parts();
    let (health, metric_names) = (Health::new(), MetricNames::default());
    let headers = ResponseHeaders::default();
    let context = ServiceContext {
        limiter,
        stats,
        clock,
        health,
        headers,
        metric_names,
        tracer: None,
        audit: Arc::default(),
    };
    JsonApi::new(context, RequestBounds::default())
}
