//! Descriptors, as a block's dictionary has them.
//!
//! The number of a record's things is that of its entries. Texts have two bytes for their length. The fields: the domain;
//! then the key and the value of each entry; the rule that applied, or nothing; one byte, 1 if a limit of its own
//! follows; that limit: one byte, 1 if rejected hits count, one for the number of tiers, and for each the algorithm, the
//! requests in four bytes, the period in eight, the burst in four, one for the refill, two for its periods, one that is 1
//! if it is strict; last the number of counters in one byte, and each [counter](crate::CounterBefore) before the decision.

use std::num::NonZeroU16;

use smallvec::SmallVec;
use weir_limit::{
    Algorithm, Bucket, Entry, Hits, OverLimitPolicy, Period, Refill, RuntimeLimit, Tier, Tiers, Timestamp,
    algorithm::CounterState,
};

use crate::{
    fields::{RecordingFields, put_text},
    state::{CounterBefore, put_state},
    value_key::ValueKey,
};

/// A domain and entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorText<'a> {
    pub domain: &'a str,
    pub entries: &'a [Entry<'a>],
    /// Its own limit.
    pub limit: Option<&'a RuntimeLimit>,
}

/// What a recording knows of a descriptor.
#[derive(Clone, Debug)]
pub struct Definition<'a> {
    pub domain: &'a str,
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// Its own limit.
    pub limit: Option<Box<RuntimeLimit>>,
    /// The rule that applied; empty if there was none, or values are hashed.
    pub rule: &'a str,
    /// What its counters had counted before the first decision about it in this block, as far as that is known.
    pub before: Vec<CounterBefore>,
    /// The same for equal domains and entries of all recordings that are read together.
    pub number: u32,
}

/// What the limiter knows when a descriptor is first seen.
#[derive(Debug, Default)]
pub struct FirstSight {
    pub rule: String,
    /// The tiers, their counters after the request, and the hits that it has counted there.
    pub counters: Vec<(Tier, CounterState, Hits)>,
    pub at: Timestamp,
}

/// None if it is too long.
pub(crate) fn put_definition(out: &mut Vec<u8>, text: &DescriptorText<'_>, first: &FirstSight) -> Option<()> {
    put_text(out, text.domain)?;
    for entry in text.entries {
        put_text(out, entry.key)?;
        put_text(out, entry.value)?;
    }
    put_text(out, &first.rule)?;
    put_limit(out, text.limit)?;
    out.push(u8::try_from(first.counters.len()).ok()?);
    for (tier, counter, counted) in &first.counters {
        put_state(out, tier, counter, *counted, first.at);
    }
    Some(())
}

/// Writes `fields`, the definition of a descriptor with so many `entries`, without its rule and with hashed values.
pub(crate) fn put_hashed(out: &mut Vec<u8>, fields: &[u8], entries: u16, key: &ValueKey) -> Option<()> {
    let mut fields = RecordingFields(fields);
    put_text(out, fields.text()?)?;
    for _ in 0..entries {
        let entry = Entry { key: fields.text()?, value: fields.text()? };
        put_text(out, entry.key)?;
        put_text(out, &key.hashed(&entry))?;
    }
    fields.text()?;
    put_text(out, "")?;
    out.extend_from_slice(fields.0);
    Some(())
}

fn put_limit(out: &mut Vec<u8>, limit: Option<&RuntimeLimit>) -> Option<()> {
    out.push(u8::from(limit.is_some()));
    let Some(limit) = limit else { return Some(()) };
    out.push(u8::from(limit.over_limit_policy() == OverLimitPolicy::Count));
    out.push(u8::try_from(limit.tiers().len()).ok()?);
    for tier in limit.tiers() {
        let (algorithm, bucket) = match tier.algorithm {
            Algorithm::FixedWindow => (0, tier.bucket()),
            Algorithm::SlidingWindow => (1, tier.bucket()),
            Algorithm::TokenBucket(bucket) => (2, bucket),
        };
        let (refill, periods) = match bucket.refill {
            Refill::Continuous => (0, 0),
            Refill::Step => (1, 0),
            Refill::AnyPace => (2, 0),
            Refill::Part(periods) => (3, periods.get()),
        };
        out.push(algorithm);
        out.extend(tier.requests.to_le_bytes());
        out.extend(tier.period.as_nanos().to_le_bytes());
        out.extend(bucket.burst.to_le_bytes());
        out.push(refill);
        out.extend(u16::to_le_bytes(periods));
        out.push(u8::from(bucket.strict));
    }
    Some(())
}

fn take_limit(fields: &mut RecordingFields<'_>) -> Option<Box<RuntimeLimit>> {
    let policy = if fields.u8()? == 1 { OverLimitPolicy::Count } else { OverLimitPolicy::Ignore };
    let mut tiers = Tiers::new();
    for _ in 0..fields.u8()? {
        let (algorithm, requests, period) = (fields.u8()?, fields.u32()?, Period::from_nanos(fields.u64()?));
        let (burst, refill, periods) = (fields.u32()?, fields.u8()?, fields.u16()?);
        let refill = match refill {
            0 => Refill::Continuous,
            1 => Refill::Step,
            2 => Refill::AnyPace,
            _ => Refill::Part(NonZeroU16::new(periods)?),
        };
        let strict = fields.u8()? == 1;
        let algorithm = match algorithm {
            0 => Algorithm::FixedWindow,
            1 => Algorithm::SlidingWindow,
            _ => Algorithm::TokenBucket(Bucket { burst, refill, strict }),
        };
        tiers.push(Tier::new(requests, period, algorithm));
    }
    RuntimeLimit::new(tiers, policy).ok().map(Box::new)
}

// === impl Definition ===

impl<'a> Definition<'a> {
    /// Reads `bytes`, the fields of a record of so many `entries`. `number_of` gets those of its names.
    pub(crate) fn read(
        bytes: &'a [u8],
        entries: u16,
        number_of: impl FnOnce(&'a [u8]) -> u32,
    ) -> Option<Self> {
        let mut fields = RecordingFields(bytes);
        let domain = fields.text()?;
        let mut read = SmallVec::new();
        for _ in 0..entries {
            read.push(Entry { key: fields.text()?, value: fields.text()? });
        }
        let names = &bytes[..bytes.len() - fields.0.len()];
        let rule = fields.text()?;
        let limit = if fields.u8()? == 0 { None } else { Some(take_limit(&mut fields)?) };
        let count = fields.u8()?;
        let before = (0..count).map(|_| CounterBefore::take(&mut fields)).collect::<Option<_>>()?;
        let number = number_of(names);
        Some(Self { domain, entries: read, limit, rule, before, number })
    }
}
