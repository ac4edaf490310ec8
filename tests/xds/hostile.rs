//! What a hostile control plane may cost: the memory of the program is bounded.

use std::sync::atomic::{AtomicBool, Ordering};

use prost_types::{Any, ListValue, Struct, Value, value::Kind};
use tokio::{net::TcpListener, sync::mpsc, task::block_in_place};
use tokio_stream::{StreamExt as _, iter, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};
use weir_proto::{
    envoy::service::discovery::v3::{
        DiscoveryRequest, DiscoveryResponse,
        aggregated_discovery_service_server::{AggregatedDiscoveryService, AggregatedDiscoveryServiceServer},
    },
    ratelimit::config::ratelimit::v3::{
        RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
    },
};

use crate::{
    control_plane::{ControlPlane, Stream, TYPE_URL, config, hourly, resource, within},
    local::get,
    program_log::Program,
};

/// The most memory that the program may have, in megabytes. Idle, it has a tenth of it.
const MAX_MEMORY: u64 = 200;

/// The most that it may have after many updates with as many rules and as long paths as are allowed, and then if
/// somebody scrapes the stats of these rules.
const MAX_MEMORY_OF_UPDATES: u64 = 300;
const MAX_MEMORY_OF_PAGES: u64 = 400;

/// The default bound on a message, in bytes, and what a message has besides its contents.
const MAX_MESSAGE: usize = (4 << 20) - 1_000;

/// Sends many responses with long nonces on the first stream, and reads no request. Tells of each stream.
struct Nonces {
    sent: AtomicBool,
    streams: mpsc::UnboundedSender<Streaming<DiscoveryRequest>>,
}

type Responses =
    std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Nonces {
    type StreamAggregatedResourcesStream = Responses;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        // held by the test, which does not read them
        self.streams.send(request.into_inner()).map_err(|_| Status::unavailable("the test has ended"))?;
        let count = if self.sent.swap(true, Ordering::Relaxed) { 0 } else { 200 };
        let responses = iter(0..count).map(|i| {
            Ok(DiscoveryResponse {
                version_info: i.to_string(),
                nonce: "n".repeat(3 << 20),
                type_url: TYPE_URL.into(),
                resources: vec![resource(&config("d", "k", i))],
            })
        });
        Ok(Response::new(Box::pin(responses.chain(tokio_stream::pending()))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_nonces_that_are_not_read_take_little_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (streams, mut opened) = mpsc::unbounded_channel();
    let service = AggregatedDiscoveryServiceServer::new(Nonces { sent: AtomicBool::new(false), streams });
    tokio::spawn(
        Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let mut program = Program::start(address, &[]);
    let _first = within(opened.recv()).await.expect("a stream");
    let line = block_in_place(|| program.until("control plane lost"));
    assert!(line.contains("a nonce of 3145728 bytes; the maximum is 4096"), "{line}");
    assert!(line.len() < 1_000, "{}", line.len());
    let _second = within(opened.recv()).await.expect("another stream");
    assert!(program.peak() < MAX_MEMORY, "{} MB", program.peak());
}

/// A control plane that sends far more responses than it reads requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_not_read_hold_up_the_responses() {
    let mut control_plane = ControlPlane::start().await;
    let mut program = Program::start(control_plane.address, &[("WEIR_XDS_RESPONSE_TIMEOUT", "500ms")]);
    let stream = control_plane.stream().await;
    for i in 0..2_000 {
        let long = |start: u32| format!("{start}{}", "x".repeat(4_000));
        stream.send(&long(i), &long(i), &[config("d", "k", i)]);
    }
    let line = block_in_place(|| program.until("control plane lost"));
    assert!(line.contains("it has read no request for 500ms"), "{line}");
    assert!(program.peak() < MAX_MEMORY, "{} MB", program.peak());
}

/// Sends `configs` in one response, which must be rejected with `text`.
async fn rejected(stream: &mut Stream, nonce: &str, resources: Vec<Any>, text: &str) {
    let size: usize = resources.iter().map(prost::Message::encoded_len).sum();
    assert!(size < MAX_MESSAGE, "{size}");
    stream.send_resources("2", nonce, resources);
    let message = stream.rejected("1", nonce).await;
    assert!(message.contains(text) && message.len() < 20_000, "{nonce}: {message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_many_parts_take_little_memory() {
    const MANY: usize = 2_000_000;
    let mut control_plane = ControlPlane::start().await;
    let program = Program::start(control_plane.address, &[]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    stream.accepted("1", "a", &[config("d", "k", 1)]).await;
    let too_many = "the response has more than 43690 resources, descriptors, limits and values of metadata";
    let within_bounds = |what: &str| {
        println!("after {what}: {} MB", program.peak());
        assert!(program.peak() < MAX_MEMORY, "{what}: {} MB", program.peak());
    };
    let limited = |key: &str| RateLimitDescriptor {
        key: key.into(),
        rate_limit: Some(hourly(1)),
        ..RateLimitDescriptor::default()
    };
    let of = |descriptors| RateLimitConfig { name: "n".into(), domain: "d".into(), descriptors };

    let empty = vec![RateLimitDescriptor::default(); MANY];
    rejected(&mut stream, "descriptors", vec![resource(&of(empty))], too_many).await;
    within_bounds("descriptors");
    rejected(&mut stream, "resources", vec![Any::default(); MANY], too_many).await;
    within_bounds("resources");
    let replaces = vec![RateLimitReplace::default(); MANY];
    let policy = RateLimitPolicy { replaces, ..hourly(1) };
    let replacing = RateLimitDescriptor { rate_limit: Some(policy), ..limited("k") };
    rejected(&mut stream, "replaced", vec![resource(&of(vec![replacing]))], too_many).await;
    within_bounds("replaced");
    let list = Value { kind: Some(Kind::ListValue(ListValue { values: vec![Value { kind: None }; MANY] })) };
    let metadata = Some(Struct { fields: [("k".to_owned(), list)].into() });
    let described = RateLimitDescriptor { metadata, ..limited("k") };
    rejected(&mut stream, "metadata", vec![resource(&of(vec![described]))], too_many).await;
    within_bounds("metadata");

    // as many as allowed, each with an error
    let invalid = vec![RateLimitDescriptor::default(); 43_000];
    rejected(&mut stream, "invalid", vec![resource(&of(invalid))], "descriptor has empty key").await;
    within_bounds("invalid");
    let same = vec![limited("k"); 21_500];
    rejected(&mut stream, "same", vec![resource(&of(same))], "duplicate descriptor composite key").await;
    within_bounds("same");

    // a path of a megabyte, or of 250 levels, which every rule below would have
    let leaves = || (0..20_000).map(|i| limited(&i.to_string())).collect::<Vec<_>>();
    let long = RateLimitDescriptor { descriptors: leaves(), ..limited(&"k".repeat(1 << 20)) };
    let paths = "the keys and values on the paths to all rules of the response have more than 4194304 bytes";
    rejected(&mut stream, "long", vec![resource(&of(vec![long]))], paths).await;
    within_bounds("long");
    let nested = |mut bytes: Vec<u8>, levels| {
        for _ in 0..levels {
            let mut level = b"\x0a\x01k".to_vec();
            prost::encoding::message::encode(4, &Raw(bytes), &mut level);
            bytes = level;
        }
        bytes
    };
    let mut all = Vec::new();
    for leaf in leaves() {
        prost::encoding::message::encode(4, &leaf, &mut all);
    }
    let mut deep = b"\x12\x01d".to_vec();
    prost::encoding::message::encode(3, &Raw(nested(all, 250)), &mut deep);
    let deep = Any { type_url: TYPE_URL.into(), value: deep };
    rejected(&mut stream, "deep", vec![deep], too_many).await;
    within_bounds("deep");

    // the most rules that are allowed
    let tenants = (0..21_500).map(|i| limited(&format!("tenant-{i}"))).collect();
    stream.accepted("3", "most", &[of(tenants)]).await;
    within_bounds("most");
}

/// Each update has other rules than the one before, and somebody scrapes the stats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_updates_have_taken_away_take_little_memory() {
    const RULES: usize = 5_000;
    let mut control_plane = ControlPlane::start().await;
    let mut program = Program::start(control_plane.address, &[]);
    let http = block_in_place(|| program.http());
    let mut stream = control_plane.stream().await;
    stream.request().await;
    let rules = |update: usize, count: usize| {
        let limited = |i: usize| RateLimitDescriptor {
            key: format!("tenant-{update}-{i}"),
            rate_limit: Some(hourly(1)),
            ..RateLimitDescriptor::default()
        };
        (0..count).map(limited).collect::<Vec<_>>()
    };
    let of = |descriptors| [RateLimitConfig { name: "n".into(), domain: "d".into(), descriptors }];
    for update in 0..60 {
        let version = update.to_string();
        stream.accepted(&version, &version, &of(rules(update, RULES))).await;
    }
    let page = get(http, "/metrics").await;
    let series = page.lines().filter(|line| line.starts_with("ratelimit_service_rate_limit_total_hits{"));
    assert_eq!(series.count(), RULES + 1_000);
    println!("after updates: {} MB", program.peak());
    assert!(program.peak() < MAX_MEMORY, "{} MB", program.peak());

    // as many rules as are allowed, with the longest paths
    for update in 60..66 {
        let long = RateLimitDescriptor {
            key: format!("{update}{}", "k".repeat(180)),
            descriptors: rules(update, 21_000),
            ..RateLimitDescriptor::default()
        };
        let version = update.to_string();
        stream.accepted(&version, &version, &of(vec![long])).await;
    }
    println!("after long paths: {} MB", program.peak());
    assert!(program.peak() < MAX_MEMORY_OF_UPDATES, "{} MB", program.peak());
    for _ in 0..3 {
        let page = get(http, "/metrics").await;
        println!("after a page of {} bytes: {} MB", page.len(), program.peak());
    }
    assert!(program.peak() < MAX_MEMORY_OF_PAGES, "{} MB", program.peak());
}

/// An encoded message.
#[derive(Clone, Debug, Default, PartialEq)]
struct Raw(Vec<u8>);

impl prost::Message for Raw {
    fn encode_raw(&self, buffer: &mut impl prost::bytes::BufMut) {
        buffer.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: prost::encoding::WireType,
        _: &mut impl prost::bytes::Buf,
        _: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        unreachable!("it is only encoded")
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
