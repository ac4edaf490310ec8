//! Requests from Envoy's protobuf messages, for `/json`; and their errors, which gRPC has too.

use weir_limit::{Descriptor, Entry, Request, RuntimeLimit, Unit};
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    service::ratelimit::v3::RateLimitRequest,
    r#type::v3::RateLimitUnit,
};

/// Why a message is not a valid request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The unit of a limit override is missing or unknown.
    #[error(
        "descriptor {descriptor}: the unit of its limit override is {unit}; write SECOND (1), MINUTE (2), HOUR (3), \
         DAY (4), MONTH (5), YEAR (6) or WEEK (7)"
    )]
    OverrideUnit {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The enum's number in the message.
        unit: i32,
    },
}

pub(super) fn request(message: &RateLimitRequest) -> Result<Request<'_>, ConversionError> {
    let descriptors = message.descriptors.iter().enumerate().map(|(i, message)| descriptor(i, message));
    Ok(Request {
        domain: &message.domain,
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits: message.hits_addend,
    })
}

fn descriptor(index: usize, message: &RateLimitDescriptor) -> Result<Descriptor<'_>, ConversionError> {
    let entries = message.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value });
    Ok(Descriptor {
        entries: entries.collect(),
        limit: message.limit.map(|limit| limit_override(index, limit)).transpose()?,
        hits: message.hits_addend,
        refund: message.is_negative_hits,
    })
}

fn limit_override(
    descriptor: usize,
    message: RateLimitOverride,
) -> Result<Box<RuntimeLimit>, ConversionError> {
    Ok(Box::new(RuntimeLimit::per_unit(message.requests_per_unit, unit(descriptor, message.unit)?)))
}

/// `number` is the enum's; `descriptor` is an index, for the error.
pub(super) fn unit(descriptor: usize, number: i32) -> Result<Unit, ConversionError> {
    match RateLimitUnit::try_from(number) {
        Ok(RateLimitUnit::Second) => Ok(Unit::Second),
        Ok(RateLimitUnit::Minute) => Ok(Unit::Minute),
        Ok(RateLimitUnit::Hour) => Ok(Unit::Hour),
        Ok(RateLimitUnit::Day) => Ok(Unit::Day),
        Ok(RateLimitUnit::Week) => Ok(Unit::Week),
        Ok(RateLimitUnit::Month) => Ok(Unit::Month),
        Ok(RateLimitUnit::Year) => Ok(Unit::Year),
        Ok(RateLimitUnit::Unknown) | Err(_) => {
            Err(ConversionError::OverrideUnit { descriptor, unit: number })
        }
    }
}
