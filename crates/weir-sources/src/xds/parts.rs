//! Counts what a response would become, before anything of it is decoded: an empty descriptor has two bytes in a
//! message, and more than a kilobyte in memory.

use bytes::Buf as _;
use prost::encoding::{WireType, decode_key, decode_varint};

/// The maximum nesting of descriptors. Envoy Gateway makes a level of each match: 131 for its largest policy.
pub(super) const MAX_DEPTH: usize = 256;

/// A message may have one part for so many bytes. A descriptor of Envoy Gateway has a hundred bytes or more.
const BYTES_PER_PART: usize = 96;

/// The size of messages, in bytes, up to which the bounds are the same: gRPC's default.
const SMALL: usize = 4 << 20;

/// The levels above a rule that take as much memory as a part.
const LEVELS_PER_PART: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartBounds {
    /// Resources, descriptors, limits, replaced limits and metadata values. A deep limit counts as several.
    pub(super) parts: usize,
    /// Bytes of the paths to all rules. Each rule has its path several times in memory, a page of stats eight times.
    pub(super) paths: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExceededPart {
    #[error(
        "the response has more than {0} resources, descriptors, limits and values of metadata; a larger \
         XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES allows one for each {BYTES_PER_PART} bytes"
    )]
    Parts(usize),
    #[error(
        "the keys and values on the paths to all rules of the response have more than {0} bytes; a larger \
         XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES allows as many"
    )]
    Paths(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartKind {
    Response,
    Resource,
    Config,
    Descriptor,
    Limit,
    Replaced,
    Struct,
    Entry,
    Value,
    List,
}

struct Unread<'a> {
    kind: PartKind,
    fields: &'a [u8],
    /// The number of descriptors around it, and the bytes of their keys and values.
    levels: usize,
    texts: usize,
}

// === impl PartBounds ===

impl PartBounds {
    /// For messages of up to `bytes` bytes; small ones have the bounds of [`SMALL`].
    pub(super) fn of(bytes: usize) -> Self {
        let bytes = bytes.max(SMALL);
        Self { parts: bytes / BYTES_PER_PART, paths: bytes }
    }

    /// Checks an encoded `DiscoveryResponse`, in bounded memory. What cannot be decoded is no error here.
    pub(super) fn check(&self, response: &[u8]) -> Result<(), ExceededPart> {
        let (mut parts, mut paths) = (0_usize, 0_usize);
        let mut unread = vec![Unread { kind: PartKind::Response, fields: response, levels: 0, texts: 0 }];
        while let Some(Unread { kind, fields: mut rest, mut levels, mut texts }) = unread.pop() {
            if levels > MAX_DEPTH {
                // too deep, which decoding finds, too
                continue;
            }
            let (first, mut is_rule) = (unread.len(), false);
            levels += usize::from(kind == PartKind::Descriptor);
            while let Some((tag, field)) = next(&mut rest) {
                if let Some(kind) = kind.part(tag) {
                    is_rule |= kind == PartKind::Limit;
                    unread.push(Unread { kind, fields: field, levels, texts: 0 });
                    parts += 1;
                } else if kind == PartKind::Descriptor && matches!(tag, KEY | VALUE) {
                    texts += field.len();
                }
                if parts > self.parts {
                    return Err(ExceededPart::Parts(self.parts));
                }
            }
            if is_rule {
                paths = paths.saturating_add(texts);
                parts += levels / LEVELS_PER_PART;
            }
            if parts > self.parts {
                return Err(ExceededPart::Parts(self.parts));
            }
            for part in &mut unread[first..] {
                part.texts = texts;
            }
            if paths > self.paths {
                return Err(ExceededPart::Paths(self.paths));
            }
        }
        Ok(())
    }
}

/// Fields of a descriptor.
const KEY: u32 = 1;
const VALUE: u32 = 2;

// === impl PartKind ===

impl PartKind {
    const fn part(self, tag: u32) -> Option<Self> {
        Some(match (self, tag) {
            (Self::Response, 2) => Self::Resource,
            (Self::Resource, 2) => Self::Config,
            (Self::Config, 3) | (Self::Descriptor, 4) => Self::Descriptor,
            (Self::Descriptor, 3) => Self::Limit,
            (Self::Limit, 5) => Self::Replaced,
            (Self::Descriptor, 8) | (Self::Value, 5) => Self::Struct,
            (Self::Struct, 1) => Self::Entry,
            (Self::Entry, 2) | (Self::List, 1) => Self::Value,
            (Self::Value, 6) => Self::List,
            _ => return None,
        })
    }
}

/// Returns the number and contents of the next field of `rest`; empty contents for a number. Returns none at the end,
/// and at a fault, where decoding ends too. The fields of a group count as those of the message around it.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    if rest.is_empty() {
        return None;
    }
    let (tag, wire_type) = decode_key(rest).ok()?;
    let length = match wire_type {
        WireType::Varint => {
            decode_varint(rest).ok()?;
            0
        }
        WireType::ThirtyTwoBit => 4,
        WireType::SixtyFourBit => 8,
        WireType::LengthDelimited => usize::try_from(decode_varint(rest).ok()?).ok()?,
        WireType::StartGroup | WireType::EndGroup => 0,
    };
    let contents = rest.get(..length)?;
    rest.advance(length);
    let is_text = wire_type == WireType::LengthDelimited;
    Some((tag, if is_text { contents } else { &[] }))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::{Any, ListValue, Struct, Value, value::Kind as ValueKind};

    use super::*;
    use weir_proto::{
        envoy::service::discovery::v3::DiscoveryResponse,
        ratelimit::config::ratelimit::v3::{
            RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
        },
    };

    fn response(descriptors: Vec<RateLimitDescriptor>) -> Vec<u8> {
        let config = RateLimitConfig { name: "n".into(), domain: "d".into(), descriptors };
        let resource = Any { type_url: "t".into(), value: config.encode_to_vec() };
        DiscoveryResponse { resources: vec![resource], ..DiscoveryResponse::default() }.encode_to_vec()
    }

    fn limited(key: &str) -> RateLimitDescriptor {
        let rate_limit = Some(RateLimitPolicy { requests_per_unit: 1, ..RateLimitPolicy::default() });
        RateLimitDescriptor { key: key.into(), rate_limit, ..RateLimitDescriptor::default() }
    }

    /// Returns the number of parts, which is the lowest bound that they keep.
    fn parts(response: &[u8]) -> usize {
        let keeps = |parts: &usize| PartBounds { parts: *parts, paths: usize::MAX }.check(response).is_ok();
        (0..10_000).find(keeps).expect("few parts")
    }

    fn paths(response: &[u8]) -> usize {
        let keeps = |paths: &usize| PartBounds { parts: usize::MAX, paths: *paths }.check(response).is_ok();
        (0..10_000).find(keeps).expect("short paths")
    }

    #[test]
    fn every_repeated_message_counts() {
        let empty = || RateLimitDescriptor::default();
        // a resource and its config, then the descriptors
        assert_eq!(parts(&response(vec![empty(); 7])), 9);
        let nested = RateLimitDescriptor { descriptors: vec![empty(); 3], ..empty() };
        assert_eq!(parts(&response(vec![nested])), 6);
        let policy =
            RateLimitPolicy { replaces: vec![RateLimitReplace::default(); 5], ..RateLimitPolicy::default() };
        let replacing = RateLimitDescriptor { rate_limit: Some(policy), ..empty() };
        assert_eq!(parts(&response(vec![replacing])), 9);
        // an entry and its value, the list, and its values
        let list = ListValue { values: vec![Value { kind: Some(ValueKind::NumberValue(1.0)) }; 4] };
        let list = Value { kind: Some(ValueKind::ListValue(list)) };
        let metadata = Some(Struct { fields: [("k".to_owned(), list)].into() });
        assert_eq!(parts(&response(vec![RateLimitDescriptor { metadata, ..empty() }])), 11);
        let resources =
            DiscoveryResponse { resources: vec![Any::default(); 6], ..DiscoveryResponse::default() };
        assert_eq!(parts(&resources.encode_to_vec()), 6);
    }

    #[test]
    fn a_rule_counts_with_its_path() {
        let mut deep = RateLimitDescriptor { descriptors: vec![limited("leaf"); 3], ..limited("top") };
        deep.value = "value".into();
        assert_eq!(paths(&response(vec![deep.clone()])), 8 + 3 * 12);
        let flat = parts(&response(vec![deep.clone()]));
        for _ in 0..16 {
            deep = RateLimitDescriptor { descriptors: vec![deep], ..RateLimitDescriptor::default() };
        }
        // 16 more descriptors, and four limits below 17 or 18 levels
        assert_eq!(parts(&response(vec![deep])), flat + 16 + 4 * 2);
    }

    #[test]
    fn faults_and_unknown_fields_are_no_parts() {
        let mut bytes = response(vec![limited("k")]);
        let counted = parts(&bytes);
        // a number, a text, eight bytes, four bytes and a group that nobody knows, then a length past the end
        bytes.extend(b"\x78\x01\x7a\x03new\x79\0\0\0\0\0\0\0\0\x7d\0\0\0\0\x7b\x7c\x12\x7f");
        assert_eq!(parts(&bytes), counted);
        assert_eq!(PartBounds::of(640).check(&bytes), Ok(()));
        assert_eq!(PartBounds::of(640), PartBounds { parts: 43_690, paths: 4 << 20 });
        assert_eq!(PartBounds::of(64 << 20), PartBounds { parts: 699_050, paths: 64 << 20 });
    }
}
