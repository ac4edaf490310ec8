//! Fuzz targets: the framing and the decoding of a message, and the bytes of a connection.

#![expect(clippy::missing_panics_doc, reason = "a target panics if weir is wrong")]

use std::{
    io::{self, Write as _},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue};
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::timeout,
};

use super::{
    connection::serve,
    message::{PREFIX, unpack},
    server::{Server, Services},
    service::Service,
};
use crate::{
    bounds::{Bounds, MAX_MESSAGE, RequestBounds},
    connections::Connections,
    fuzz::parts,
    headers::{HeaderNames, HeaderStyle, ResponseHeaders},
    net::ConnectionAge,
    request::{MessageError, decoded, unit},
};
use weir_limit::{Descriptor, Entry, Request, RuntimeLimit};
use weir_observe::Source as _;
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};
use weir_store::MemoryStore;

const UNBOUNDED: RequestBounds = RequestBounds { descriptors: usize::MAX, entries: usize::MAX };

const TIGHT: RequestBounds = RequestBounds { descriptors: 2, entries: 3 };

/// The longest message that is also decoded without bounds, in bytes.
const SHORT: usize = 16 << 10;

/// The preface of a client, and empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Longer than every time limit of a connection.
const LONG: Duration = Duration::from_hours(1);

/// Unpacks a message. The first byte selects the compression that the call announces.
pub fn frame(input: &[u8]) {
    let Some((first, sent)) = input.split_first() else { return };
    let mut headers = HeaderMap::new();
    match first % 4 {
        0 => {}
        1 => drop(headers.insert("grpc-encoding", HeaderValue::from_static("snappy"))),
        _ => drop(headers.insert("grpc-encoding", HeaderValue::from_static("gzip"))),
    }
    if let Ok(message) = unpack(sent, &headers) {
        assert!(message.len() <= MAX_MESSAGE);
        let _ = decoded(&message, &RequestBounds::default());
        if message.len() <= SHORT {
            agrees(&message);
        }
    }
    headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
    let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
    let written = compressed.write_all(sent).and_then(|()| compressed.finish()).expect("to memory");
    for (flag, bytes) in [(0, sent), (1, written.as_slice())] {
        let length = u32::try_from(bytes.len()).expect("it is short").to_be_bytes();
        let framed = [&[flag], &length[..], bytes].concat();
        assert_eq!(unpack(&framed, &headers).expect("it is framed").as_ref(), sent);
    }
}

/// Decodes a message as weir does and as prost does.
pub fn message(input: &[u8]) {
    static SERVICE: LazyLock<Service<MemoryStore>> = LazyLock::new(service);
    agrees(input);
    let now = SERVICE.now();
    // the store in memory waits for nothing
    let decided = SERVICE.decide(input, now, None).now_or_never().expect("a result");
    if let Ok(response) = decided {
        let response = RateLimitResponse::decode(&response[PREFIX..]).expect("a response");
        let request = RateLimitRequest::decode(input).expect("a request");
        assert_eq!(response.statuses.len(), request.descriptors.len());
    }
}

/// Checks that weir's decoder and the generated one agree on `bytes`, and that the bounds only reject.
fn agrees(bytes: &[u8]) {
    let theirs = RateLimitRequest::decode(bytes);
    let encoded = theirs.as_ref().map(RateLimitRequest::encode_to_vec);
    let ours = decoded(bytes, &UNBOUNDED);
    match (&theirs, &encoded) {
        (Ok(message), Ok(encoded)) => {
            assert_eq!(ours, generated_request(message));
            assert_eq!(ours, decoded(encoded, &UNBOUNDED), "what has one meaning has one in every encoding");
        }
        (error, _) => assert!(ours.is_err(), "{error:?}: {ours:?}"),
    }
    match decoded(bytes, &TIGHT) {
        Ok(within) => {
            let entries: usize = within.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
            assert!(within.descriptors.len() <= TIGHT.descriptors && entries <= TIGHT.entries);
            assert_eq!(ours, Ok(within));
        }
        Err(MessageError::TooLarge(_)) => {}
        Err(error) => assert_eq!(ours, Err(error)),
    }
}

pub(crate) fn generated_request(message: &RateLimitRequest) -> Result<Request<'_>, MessageError> {
    let descriptors = message.descriptors.iter().enumerate().map(|(i, message)| descriptor(i, message));
    Ok(Request {
        domain: &message.domain,
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits: message.hits_addend,
    })
}

fn descriptor(index: usize, message: &RateLimitDescriptor) -> Result<Descriptor<'_>, MessageError> {
    let entries = message.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value });
    Ok(Descriptor {
        entries: entries.collect(),
        limit: message.limit.map(|limit| limit_override(index, limit)).transpose()?,
        hits: message.hits_addend,
        refund: message.is_negative_hits,
    })
}

fn limit_override(descriptor: usize, message: RateLimitOverride) -> Result<Box<RuntimeLimit>, MessageError> {
    Ok(Box::new(RuntimeLimit::per_unit(message.requests_per_unit, unit(descriptor, message.unit)?)))
}

fn service() -> Service<MemoryStore> {
    let parts = parts();
    let reference = HeaderStyle::LimitRemainingReset(HeaderNames::default());
    let headers = ResponseHeaders { styles: vec![reference, HeaderStyle::Ietf, HeaderStyle::RetryAfter] };
    Service::new(parts.limiter, parts.clock, &parts.stats, headers)
}

/// Serves a connection of these bytes. The first one selects how they are sent.
pub fn connection(input: &[u8]) {
    static SERVER: LazyLock<(Arc<Services<MemoryStore>>, watch::Sender<bool>)> = LazyLock::new(|| {
        let connections = Arc::new(Connections::new(Bounds::default()));
        let (health, healthy) = watch::channel(true);
        let server = Server::new(service(), healthy, ConnectionAge::default(), 1, connections);
        let server = server.now_or_never().expect("nothing to wait for").expect("a server");
        (server.services, health)
    });
    let Some((mode, sent)) = input.split_first() else { return };
    let services = &SERVER.0;
    let client = Client {
        unsent: if mode & 1 == 0 { [PREFACE, sent].concat() } else { sent.to_vec() },
        at_once: [usize::MAX, 9, 100, 1][usize::from(mode >> 1 & 3)],
        stays: mode & 8 != 0,
        accepts: if mode & 16 == 0 { usize::MAX } else { 64 },
    };
    // a clock that advances when nothing else is left to do: every wait is over at once
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let open = services.connections.open().expect("no other is open");
    runtime.expect("a runtime").block_on(async {
        // a sender that is dropped stops nothing
        let (_stop, stopping) = watch::channel(false);
        let served = timeout(LONG, serve(client, &open, services, stopping)).await;
        served.expect("the connection ends");
    });
    drop(open);
    let metrics = services.connections.metrics();
    let held: Vec<_> = metrics.iter().filter(|metric| metric.name.starts_with("weir.connections.")).collect();
    assert!(
        held.len() == 2 && held.iter().all(|metric| metric.value == 0),
        "something is still held: {held:?}"
    );
}

struct Client {
    unsent: Vec<u8>,
    at_once: usize,
    stays: bool,
    accepts: usize,
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unsent.is_empty() && self.stays {
            return Poll::Pending;
        }
        let count = self.at_once.min(self.unsent.len()).min(buf.remaining());
        buf.put_slice(&self.unsent[..count]);
        self.unsent.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let count = self.accepts.min(bytes.len());
        self.accepts -= count;
        if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
