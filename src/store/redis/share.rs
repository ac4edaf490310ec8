//! The pools of fair shares: one script grants hits, exchanges tables, and sets what is kept for owners.

use std::collections::HashMap;

use redis::Value;
use smallvec::SmallVec;

use super::{
    command::{self, CommandOutcome, EncodedCommand},
    request::NodeRequest,
    script,
};
use crate::{
    limit::{
        Period, Timestamp,
        share::{Account, MemberCounts, PoolTable},
    },
    store::{
        name::{self, KeySettings},
        pool_command::{Leased, PoolCommand, PoolMember, PoolOp, PoolOutcome},
    },
};

/// A command about a pool.
pub(super) struct ShareRequest {
    encoded: EncodedCommand,
    kind: Kind,
    forget_after: u64,
}

/// Which reply is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lease,
    Exchange { with_demands: bool },
    Keep,
}

/// The arguments of the script.
struct Arguments(SmallVec<[Vec<u8>; 1]>);

// === impl Arguments ===

impl Arguments {
    fn text(&mut self, text: &str) {
        self.0.push(text.as_bytes().to_vec());
    }

    fn number(&mut self, number: impl itoa::Integer) {
        self.text(itoa::Buffer::new().format(number));
    }

    fn flag(&mut self, is_on: bool) {
        self.text(if is_on { "1" } else { "" });
    }

    fn member(&mut self, PoolMember { name, is_named }: &PoolMember) {
        self.flag(*is_named);
        self.text(name);
    }
}

// === impl ShareRequest ===

impl ShareRequest {
    /// Encodes `command`. `now` is none in production, where Redis' clock is used; keys outlive their use by `jitter`.
    pub(super) fn new(
        command: &PoolCommand,
        now: Option<Timestamp>,
        settings: &KeySettings,
        jitter: Period,
    ) -> Self {
        let PoolCommand { target, cycle, places, forget_after, op } = command;
        let period = target.tiers[0].period;
        let mut arguments = Arguments(SmallVec::new());
        let (name, kind) = match op {
            PoolOp::Lease { .. } => ("lease", Kind::Lease),
            PoolOp::Exchange { with_demands, .. } => {
                ("exchange", Kind::Exchange { with_demands: *with_demands })
            }
            PoolOp::Keep { .. } => ("keep", Kind::Keep),
        };
        arguments.text(name);
        arguments.text(&now.map(|now| script::micros(now).to_string()).unwrap_or_default());
        // in microseconds, with a fraction if need be
        let micros = |nanos: u128| {
            let (whole, rest) = (nanos / 1_000, nanos % 1_000);
            if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}") }
        };
        let length = u128::from(period.as_nanos());
        arguments.text(&micros(length * u128::from(*cycle)));
        arguments.text(&micros(length));
        arguments.number(*cycle);
        arguments.number(jitter.as_nanos() / 1_000_000);
        arguments.number(*forget_after);
        arguments.number(*places);
        match op {
            PoolOp::Lease { member, asked, terms, tries, ahead, instances } => {
                arguments.member(member);
                let numbers = [terms.capacity, terms.own, terms.default, terms.limit, *ahead, *instances];
                arguments.number(*asked);
                for number in numbers {
                    arguments.number(number);
                }
                let tries: Vec<String> = tries.iter().map(ToString::to_string).collect();
                arguments.text(&tries.join(" "));
            }
            PoolOp::Exchange { reports, late, with_demands } => {
                arguments.flag(*with_demands);
                arguments.number(reports.len());
                arguments.number(late.len());
                for report in reports {
                    arguments.member(&report.member);
                    arguments.number(report.asked);
                    arguments.number(report.granted);
                }
                for (member, asked) in late {
                    arguments.member(member);
                    arguments.number(*asked);
                    arguments.number(0);
                }
            }
            PoolOp::Keep { step, kept, from_own } => {
                arguments.number(*step);
                arguments.number(*kept);
                arguments.number(*from_own);
            }
        }
        let keys = name::pool(&settings.prefix, target, *cycle);
        let encoded = EncodedCommand::Run { script: &script::POOL, keys, arguments: arguments.0 };
        Self { encoded, kind, forget_after: (*forget_after).into() }
    }
}

impl NodeRequest for ShareRequest {
    type Reply = PoolOutcome;

    const DECIDES: bool = true;

    fn encoded(&self) -> &EncodedCommand {
        &self.encoded
    }

    fn outcome(&self, value: &Value) -> CommandOutcome<PoolOutcome> {
        let outcome = match value {
            Value::ServerError(error) => return command::error_outcome(error),
            Value::Array(parts) => self.table(parts),
            _ => text(value).and_then(|reply| self.reply(reply)),
        };
        CommandOutcome::Done(outcome.ok_or_else(command::malformed_reply))
    }

    fn move_to_window(&mut self, _now: Timestamp) {}
}

impl ShareRequest {
    /// Parses `cycle|…`, or only the number of the cycle that is open.
    fn reply(&self, reply: &str) -> Option<PoolOutcome> {
        let Some((_, rest)) = reply.split_once('|') else {
            return Some(PoolOutcome::OtherCycle(reply.parse().ok()?));
        };
        if self.kind == Kind::Keep {
            return Some(PoolOutcome::Kept);
        }
        let mut parts = rest.split('|');
        let tries = parts.next()?.bytes().map(|granted| granted == b'1').collect();
        let mut number = || parts.next()?.parse().ok();
        let (ahead, granted, total) = (number()?, number()?, number()?);
        Some(PoolOutcome::Leased(Leased { tries, ahead, granted, total }))
    }

    fn table(&self, parts: &[Value]) -> Option<PoolOutcome> {
        let Kind::Exchange { with_demands } = self.kind else { return None };
        let [numbers @ .., members, open, before] = parts else {
            let [cycle] = parts else { return None };
            return Some(PoolOutcome::OtherCycle(text(cycle)?.parse().ok()?));
        };
        let [cycle, total, kept, from_own, step, dropped] = numbers else { return None };
        let cycle: u64 = text(cycle)?.parse().ok()?;
        let number = |value| text(value)?.parse::<u64>().ok();
        let (open, before) = (counts(open)?, counts(before)?);
        let members = pairs(members)?.map(|(name, cycles)| {
            let (last_cycle, since): (u64, u64) = two(cycles)?;
            let (asked, granted) = open.get(name).copied().unwrap_or_default();
            let demand = before.get(name).map_or(0, |(asked, _)| *asked);
            let is_new = since == cycle;
            Some(MemberCounts { name: name.into(), demand, asked, granted, last_cycle, is_new })
        });
        let members: Vec<MemberCounts> = members.collect::<Option<_>>()?;
        let is_member = |member: &MemberCounts| cycle.saturating_sub(member.last_cycle) <= self.forget_after;
        Some(PoolOutcome::Table(PoolTable {
            cycle,
            account: Account {
                total: u32::try_from(number(total)?).ok()?,
                kept: number(kept)?,
                from_own: number(from_own)?,
                granted: 0,
            },
            kept_in: text(step)?.parse().ok(),
            has_demands: with_demands,
            dropped: number(dropped)?,
            members: members.into_iter().filter(is_member).collect(),
        }))
    }
}

/// Parses the counts of members by their names.
fn counts(fields: &Value) -> Option<HashMap<&str, (u32, u32), foldhash::fast::RandomState>> {
    let pairs = pairs(fields)?.filter_map(|(field, counts)| Some((field.strip_prefix('=')?, counts)));
    pairs.map(|(name, counts)| Some((name, two(counts)?))).collect()
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Returns the fields of a hash, each with its value.
fn pairs(fields: &Value) -> Option<impl Iterator<Item = (&str, &str)>> {
    let Value::Array(fields) = fields else { return None };
    Some(fields.as_chunks::<2>().0.iter().filter_map(|[field, value]| Some((text(field)?, text(value)?))))
}

/// Parses two numbers with a space between them.
fn two<T: std::str::FromStr>(text: &str) -> Option<(T, T)> {
    let (first, second) = text.split_once(' ')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}
