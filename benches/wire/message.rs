//! What is asked, encoded once; only numbers are written over for each request.

use clap::ValueEnum;
use prost::Message as _;
use weir::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    },
};

use super::{frame, hpack};

/// The domain of all rules.
pub(crate) const DOMAIN: &str = "bench";

/// Digits that a key's number has, and a rule's.
const KEY: &[u8] = b"#######";
const RULE: &[u8] = b"@@@@@";

/// What a request looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// One descriptor of one entry.
    One,
    /// Two descriptors of three entries each.
    #[value(name = "2x3")]
    TwoByThree,
}

/// Which requests are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) shape: Shape,
    /// Rules that they meet, in turn with the keys; at most 100,000.
    pub(crate) rules: u32,
    /// Keys that are asked about, each as often as any other; at most 10,000,000.
    pub(crate) keys: u32,
}

/// Frames of requests, ready but for the numbers in them.
pub(crate) struct Requests {
    asked: Asked,
    first: Template,
    later: Template,
    random: u64,
}

/// The frames HEADERS and DATA of one request.
struct Template {
    bytes: Vec<u8>,
    /// Where the stream's number stands, twice.
    streams: [usize; 2],
    keys: Vec<usize>,
    rules: Vec<usize>,
}

impl Shape {
    pub(crate) fn descriptors(self) -> usize {
        match self {
            Self::One => 1,
            Self::TwoByThree => 2,
        }
    }

    fn entries(self) -> &'static [&'static [(&'static str, &'static str)]] {
        match self {
            Self::One => &[&[("api-@@@@@", "user-#######")]],
            Self::TwoByThree => &[
                &[("tenant", "tenant-#######"), ("path", "/v1/organizations"), ("method", "GET")],
                &[("tenant", "tenant-#######"), ("path", "/v1/organizations/products"), ("method", "GET")],
            ],
        }
    }
}

impl Asked {
    /// The message, with marks where numbers belong.
    fn message(self) -> RateLimitRequest {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        };
        RateLimitRequest {
            domain: DOMAIN.into(),
            descriptors: self.shape.entries().iter().map(descriptor).collect(),
            hits_addend: 0,
        }
    }
}

// === impl Requests ===

impl Requests {
    pub(crate) fn new(asked: Asked, authority: &str) -> Self {
        let (first, later) = hpack::request_blocks(authority);
        let message = asked.message().encode_to_vec();
        Self {
            asked,
            first: Template::new(&first, &message),
            later: Template::new(&later, &message),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Bytes of flow control that each takes.
    pub(crate) fn data(&self) -> usize {
        self.later.bytes.len() - self.later.streams[1] - 4
    }

    /// Writes the request on `stream` about the next key; `first` is whether the connection has had none before.
    pub(crate) fn write(&mut self, stream: u32, first: bool, out: &mut Vec<u8>) {
        let key = self.next_key();
        let template = if first { &self.first } else { &self.later };
        let begin = out.len();
        out.extend_from_slice(&template.bytes);
        let bytes = &mut out[begin..];
        for place in template.streams {
            bytes[place..place + 4].copy_from_slice(&stream.to_be_bytes());
        }
        for place in &template.keys {
            digits(key, &mut bytes[*place..place + KEY.len()]);
        }
        for place in &template.rules {
            digits(key % self.asked.rules, &mut bytes[*place..place + RULE.len()]);
        }
    }

    /// Marsaglia's xorshift, spread over the keys by the upper half of a product.
    fn next_key(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let product = (self.random >> 32) * u64::from(self.asked.keys);
        u32::try_from(product >> 32).unwrap_or(0)
    }
}

impl Template {
    fn new(block: &[u8], message: &[u8]) -> Self {
        let mut bytes = Vec::new();
        frame::header(block.len(), frame::HEADERS, frame::END_HEADERS, 0, &mut bytes);
        bytes.extend_from_slice(block);
        let data = bytes.len();
        frame::header(message.len() + 5, frame::DATA, frame::END_STREAM, 0, &mut bytes);
        bytes.extend_from_slice(&grpc(message));
        let streams = [5, data + 5];
        let (keys, rules) = (places(&bytes, KEY), places(&bytes, RULE));
        Self { bytes, streams, keys, rules }
    }
}

/// The message with what gRPC puts before it.
pub(crate) fn grpc(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).expect("a short message").to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

fn places(bytes: &[u8], mark: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(mark.len()).enumerate();
    windows.filter(|(_, window)| *window == mark).map(|(place, _)| place).collect()
}

fn digits(mut number: u32, out: &mut [u8]) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
}

// === answers ===

/// What a server without rules answers: as long as an answer of weir to a question of so many descriptors.
pub(crate) fn canned(descriptors: usize) -> RateLimitResponse {
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: 4_000_000_000,
            unit: Unit::Hour.into(),
            ..RateLimit::default()
        }),
        limit_remaining: 3_999_999_000,
        duration_until_reset: Some(prost_types::Duration { seconds: 1_800, nanos: 0 }),
    };
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![status; descriptors],
        ..RateLimitResponse::default()
    }
}

/// Whether `data` is an answer as it should be: let through, each descriptor by a limit.
pub(crate) fn is_plausible(data: &[u8], asked: Asked) -> bool {
    let Some((prefix, message)) = data.split_at_checked(5) else { return false };
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if prefix[0] != 0 || usize::try_from(length) != Ok(message.len()) {
        return false;
    }
    let Ok(answer) = RateLimitResponse::decode(message) else { return false };
    let by_a_limit = |status: &DescriptorStatus| {
        status.code() == Code::Ok && status.current_limit.is_some() && status.limit_remaining > 0
    };
    answer.overall_code() == Code::Ok
        && answer.statuses.len() == asked.shape.descriptors()
        && answer.statuses.iter().all(by_a_limit)
}
