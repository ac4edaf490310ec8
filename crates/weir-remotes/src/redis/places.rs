//! The places of requests in flight: one script takes and ends them.

use redis::Value;
use smallvec::SmallVec;

use super::{
    command::{CommandOutcome, EncodedCommand},
    request::NodeRequest,
    script,
};
use crate::transport::malformed_reply;
use weir_limit::{Hits, Period, PlaceName, Timestamp};
use weir_store::{
    name,
    place_command::{NamedHits, PlaceCommand, PlaceOp, PlaceReply},
};

const TAKE: &str = "take";
const END: &str = "end";

pub(super) struct PlacesRequest {
    encoded: EncodedCommand,
    verb: &'static str,
}

struct PlaceArguments(SmallVec<[Vec<u8>; 1]>);

// === impl PlaceArguments ===

impl PlaceArguments {
    fn number(&mut self, number: u64) {
        self.0.push(itoa::Buffer::new().format(number).into());
    }

    /// Rounded up: nothing ends too early.
    fn millis(&mut self, period: Period) {
        self.number(period.as_nanos().div_ceil(1_000_000));
    }

    /// Without flags.
    fn names(&mut self, names: impl IntoIterator<Item = PlaceName>) {
        self.0.extend(names.into_iter().map(|name| name.without_flags().bytes().to_vec()));
    }

    fn named_hits(&mut self, names: &[NamedHits]) {
        self.names(names.iter().map(|(name, _)| *name));
        if names.iter().any(|(_, hits)| hits.0 > 0) {
            for (_, hits) in names {
                self.number(hits.0);
            }
        }
    }
}

// === impl PlacesRequest ===

impl PlacesRequest {
    /// `now` is none in production, where Redis' clock is used; keys outlive their use by `jitter`.
    pub(super) fn new(command: &PlaceCommand, now: Option<Timestamp>, prefix: &str, jitter: Period) -> Self {
        let PlaceCommand { path, give_up_after, op } = command;
        let verb = match op {
            PlaceOp::Take { .. } => TAKE,
            PlaceOp::End(_) => END,
            PlaceOp::Add { .. } => "add",
        };
        let now = now.map(|now| script::micros(now).to_string()).unwrap_or_default();
        let mut arguments = PlaceArguments([verb.into(), now.into()].into_iter().collect());
        arguments.millis(*give_up_after);
        arguments.millis(*give_up_after + jitter);
        arguments.millis(PlaceCommand::MARKED + jitter);
        arguments.millis(PlaceCommand::MARKED);
        arguments.number(PlaceCommand::MAX_MARKS as u64);
        arguments.number(PlaceCommand::MAX_ENDED as u64);
        match op {
            PlaceOp::Take { names, most, valid_until } => {
                arguments.number(names.len() as u64);
                arguments.number((*most).into());
                arguments.number(script::micros(*valid_until));
                arguments.named_hits(names);
            }
            PlaceOp::End(ends) => {
                let (marked, others): (Vec<PlaceName>, Vec<_>) =
                    ends.iter().flatten().partition(|name| name.is_without_store());
                let named = marked.len() + others.len();
                arguments.number(named as u64);
                arguments.number(marked.len() as u64);
                arguments.number((ends.len() - named) as u64);
                arguments.names(marked.into_iter().chain(others));
            }
            PlaceOp::Add { names, most } => {
                arguments.number(names.len() as u64);
                arguments.number((*most).into());
                arguments.number(0);
                arguments.named_hits(names);
            }
        }
        let keys = name::places(prefix, path);
        Self {
            encoded: EncodedCommand::Run { script: &script::PLACES, keys, arguments: arguments.0 },
            verb,
        }
    }
}

impl NodeRequest for PlacesRequest {
    type Reply = PlaceReply;

    fn encoded(&self) -> &EncodedCommand {
        &self.encoded
    }

    fn outcome(&self, value: &Value) -> CommandOutcome<PlaceReply> {
        CommandOutcome::Done(reply(value, self.verb).ok_or_else(malformed_reply))
    }
}

fn reply(value: &Value, verb: &str) -> Option<PlaceReply> {
    let Value::Array(values) = value else { return None };
    let [Value::Int(micros), numbers @ ..] = &values[..] else { return None };
    let number = |i: usize| match numbers.get(i)? {
        Value::Int(number) => u32::try_from(*number).ok(),
        _ => None,
    };
    let (done, places, given_up) = (number(0)?, number(1)?, number(2)?);
    let of = |its: &str| if verb == its { done } else { 0 };
    let hits = |i: usize| numbers.get(i).map_or(Some(Vec::new()), named_hits);
    let now = Timestamp::from_nanos(u64::try_from(*micros).ok()?.checked_mul(1_000)?);
    let (ended_hits, given_up_hits) = (hits(3)?, hits(4)?);
    Some(PlaceReply { now, taken: of(TAKE), places, given_up, ended: of(END), ended_hits, given_up_hits })
}

/// Names and their hits in turn.
fn named_hits(value: &Value) -> Option<Vec<NamedHits>> {
    let Value::Array(values) = value else { return None };
    let pairs = values.chunks(2).map(|pair| match pair {
        [Value::BulkString(name), Value::BulkString(hits)] => {
            let hits = std::str::from_utf8(hits).ok()?.parse().ok()?;
            Some((PlaceName::from_bytes(name)?, Hits(hits)))
        }
        _ => None,
    });
    pairs.collect()
}
