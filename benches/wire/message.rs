//! What is asked, encoded once; only numbers are written over for each request.

use clap::ValueEnum;
use prost::Message as _;
use weir::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
    },
};

use super::{comparison::grpc, frame, hpack};

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
    /// A hundred descriptors of one entry, each about the key after the one before: the quickest way to make counters.
    Hundred,
}

/// Which requests are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) shape: Shape,
    /// Rules that there are; at most 100,000.
    pub(crate) rules: u32,
    /// Rules that they meet, in turn with the keys; at most as many.
    pub(crate) met: u32,
    /// Keys that are asked about, each as often as any other; at most 9,999,900.
    pub(crate) keys: u32,
    /// The server is limitador: it tells of the whole request only, and where it answers with an error, that is counted.
    pub(crate) limitador: bool,
}

/// Frames of requests, ready but for the numbers in them.
pub(crate) struct Requests {
    asked: Asked,
    first: Template,
    later: Template,
    random: u64,
    next: u32,
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
        self.entries().len()
    }

    /// Keys that a request is about.
    fn keys(self) -> u32 {
        match self {
            Self::One | Self::TwoByThree => 1,
            Self::Hundred => 100,
        }
    }

    /// Of each descriptor, with marks where numbers belong.
    fn entries(self) -> Vec<Vec<(&'static str, &'static str)>> {
        let one = vec![("api-@@@@@", "user-#######")];
        let three = |path| vec![("tenant", "tenant-#######"), ("path", path), ("method", "GET")];
        match self {
            Self::One => vec![one],
            Self::TwoByThree => vec![three("/v1/organizations"), three("/v1/organizations/products")],
            Self::Hundred => vec![one; 100],
        }
    }
}

impl Asked {
    /// The message, with marks where numbers belong.
    fn message(self) -> RateLimitRequest {
        let entry = |(key, value): (&str, &str)| Entry { key: key.into(), value: value.into() };
        let descriptor = |entries: Vec<_>| RateLimitDescriptor {
            entries: entries.into_iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        };
        RateLimitRequest {
            domain: DOMAIN.into(),
            descriptors: self.shape.entries().into_iter().map(descriptor).collect(),
            hits_addend: 0,
        }
    }

    /// What asks about each of the same keys, in turn, with the fewest requests; and how many those are.
    pub(crate) fn filling(self) -> (Self, u64) {
        let shape = Shape::Hundred;
        (Self { shape, ..self }, self.keys.div_ceil(shape.keys()).into())
    }
}

// === impl Requests ===

impl Requests {
    pub(crate) fn new(asked: Asked) -> Self {
        let [first, later] = hpack::request_blocks();
        let message = asked.message().encode_to_vec();
        Self {
            asked,
            first: Template::new(&first, &message),
            later: Template::new(&later, &message),
            random: 0x9e37_79b9_7f4a_7c15,
            next: 0,
        }
    }

    /// Bytes of flow control that each takes.
    pub(crate) fn data(&self) -> usize {
        self.later.bytes.len() - self.later.streams[1] - 4
    }

    /// Writes the request on `stream` about the next keys; `first` is whether the connection has had none before.
    pub(crate) fn write(&mut self, stream: u32, first: bool, out: &mut Vec<u8>) {
        let key = self.next_key();
        let template = if first { &self.first } else { &self.later };
        let begin = out.len();
        out.extend_from_slice(&template.bytes);
        let bytes = &mut out[begin..];
        for place in template.streams {
            bytes[place..place + 4].copy_from_slice(&stream.to_be_bytes());
        }
        let step = u32::from(self.asked.shape.keys() > 1);
        let nth = |number: usize| key + step * u32::try_from(number).unwrap_or(0);
        for (number, place) in template.keys.iter().enumerate() {
            digits(nth(number), &mut bytes[*place..place + KEY.len()]);
        }
        for (number, place) in template.rules.iter().enumerate() {
            digits(nth(number) % self.asked.met, &mut bytes[*place..place + RULE.len()]);
        }
    }

    /// The next in turn, where requests are about several; else any. The numbers are Marsaglia's xorshift, spread over the
    /// keys by the upper half of a product.
    fn next_key(&mut self) -> u32 {
        let several = self.asked.shape.keys();
        if several > 1 {
            self.next = (self.next + several) % self.asked.keys;
            return self.next;
        }
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

/// Whether `data` is an answer as it should be: let through, and each descriptor by a limit if it tells of them.
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
    if asked.limitador {
        return answer.overall_code() == Code::Ok;
    }
    answer.overall_code() == Code::Ok
        && answer.statuses.len() == asked.shape.descriptors()
        && answer.statuses.iter().all(by_a_limit)
}
