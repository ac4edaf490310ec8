//! Requests, encoded once as templates; each request overwrites only the numbers in its template.

use std::time::Instant;

use clap::ValueEnum;
use prost::Message as _;
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
    },
};

use super::{comparison::grpc, frame, hpack};

/// The domain of all rules.
pub(crate) const DOMAIN: &str = "bench";

/// Placeholders for the numbers of keys and rules.
const KEY: &[u8] = b"#######";
const RULE: &[u8] = b"@@@@@";

/// The number of keys that fit their placeholder.
const MAX_KEYS: u64 = 9_999_900;

/// The shape of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// One descriptor of one entry.
    One,
    /// Two descriptors of three entries each.
    #[value(name = "2x3")]
    TwoByThree,
    /// A hundred descriptors of one entry with consecutive keys: creates counters fastest.
    Hundred,
}

/// The requests of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) shape: Shape,
    /// The number of rules; at most 100,000.
    pub(crate) rules: u32,
    /// The number of rules that requests match, selected by the key; at most `rules`.
    pub(crate) matched: u32,
    /// The number of keys, used evenly; at most 9,999,900.
    pub(crate) keys: u32,
    /// The time in seconds after which all of them are others, if any.
    pub(crate) turnover: Option<u32>,
    /// Whether the server is limitador: it reports no statuses, and its error responses are counted instead of ending
    /// the run.
    pub(crate) limitador: bool,
}

/// The frames of requests, complete except for the numbers in them.
pub(crate) struct Requests {
    workload: Workload,
    first: Template,
    later: Template,
    random: u64,
    next: u32,
    started: Instant,
}

/// The frames HEADERS and DATA of one request.
struct Template {
    bytes: Vec<u8>,
    /// The positions of the stream identifier.
    streams: [usize; 2],
    keys: Vec<usize>,
    rules: Vec<usize>,
}

impl Shape {
    pub(crate) fn descriptors(self) -> usize {
        self.entries().len()
    }

    /// Returns the number of keys of a request.
    fn keys(self) -> u32 {
        match self {
            Self::One | Self::TwoByThree => 1,
            Self::Hundred => 100,
        }
    }

    /// Returns the entries of each descriptor, with placeholders for the numbers.
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

impl Workload {
    /// Returns the message, with placeholders for the numbers.
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

    /// Returns the workload that uses each of the same keys once with the fewest requests, and their number.
    pub(crate) fn filling(self) -> (Self, u64) {
        let shape = Shape::Hundred;
        (Self { shape, ..self }, self.keys.div_ceil(shape.keys()).into())
    }
}

// === impl Requests ===

impl Requests {
    pub(crate) fn new(workload: Workload) -> Self {
        let [first, later] = hpack::request_blocks();
        let message = workload.message().encode_to_vec();
        Self {
            workload,
            first: Template::new(&first, &message),
            later: Template::new(&later, &message),
            random: 0x9e37_79b9_7f4a_7c15,
            next: 0,
            started: Instant::now(),
        }
    }

    /// Returns the bytes of flow control window that a request uses.
    pub(crate) fn data(&self) -> usize {
        self.later.bytes.len() - self.later.streams[1] - 4
    }

    /// Writes the request for the next keys on `stream`; `first` says whether it is the connection's first.
    pub(crate) fn write(&mut self, stream: u32, first: bool, out: &mut Vec<u8>) {
        let key = self.next_key();
        let template = if first { &self.first } else { &self.later };
        let begin = out.len();
        out.extend_from_slice(&template.bytes);
        let bytes = &mut out[begin..];
        for place in template.streams {
            bytes[place..place + 4].copy_from_slice(&stream.to_be_bytes());
        }
        let step = u32::from(self.workload.shape.keys() > 1);
        let nth = |number: usize| key + step * u32::try_from(number).unwrap_or(0);
        for (number, place) in template.keys.iter().enumerate() {
            digits(nth(number), &mut bytes[*place..place + KEY.len()]);
        }
        for (number, place) in template.rules.iter().enumerate() {
            digits(nth(number) % self.workload.matched, &mut bytes[*place..place + RULE.len()]);
        }
    }

    /// Returns the next key: in order if requests have several keys, otherwise a random number of Marsaglia's xorshift,
    /// scaled to the number of keys by the upper half of a product.
    fn next_key(&mut self) -> u32 {
        let several = self.workload.shape.keys();
        if several > 1 {
            self.next = (self.next + several) % self.workload.keys;
            return self.next;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let product = (self.random >> 32) * u64::from(self.workload.keys);
        let key = product >> 32;
        let moved = self.workload.turnover.map_or(0, |seconds| {
            let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(0);
            millis * u64::from(self.workload.keys) / 1_000 / u64::from(seconds)
        });
        u32::try_from((moved + key) % MAX_KEYS).unwrap_or(0)
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

// === responses ===

/// Returns whether `data` is a plausible response: the request is admitted and, except for limitador, a limit admits
/// each descriptor.
pub(crate) fn is_plausible(data: &[u8], workload: Workload) -> bool {
    let Some((prefix, message)) = data.split_at_checked(5) else { return false };
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if prefix[0] != 0 || usize::try_from(length) != Ok(message.len()) {
        return false;
    }
    let Ok(response) = RateLimitResponse::decode(message) else { return false };
    let admitted_by_limit = |status: &DescriptorStatus| {
        status.code() == Code::Ok && status.current_limit.is_some() && status.limit_remaining > 0
    };
    if workload.limitador {
        return response.overall_code() == Code::Ok;
    }
    response.overall_code() == Code::Ok
        && response.statuses.len() == workload.shape.descriptors()
        && response.statuses.iter().all(admitted_by_limit)
}
