//! The pools of fair shares: one script grants hits and exchanges tables.

use redis::Value;
use smallvec::SmallVec;

use super::{
    command::{CommandOutcome, EncodedCommand},
    request::NodeRequest,
    script,
};
use crate::transport::malformed_reply;
use weir_limit::{
    Period, Timestamp,
    share::{MemberCounts, PoolTable},
};
use weir_store::{
    name::{self, KeySettings},
    pool_command::{Leased, PoolCommand, PoolMember, PoolOp, PoolOutcome},
};

pub(super) struct ShareRequest(EncodedCommand);

struct Arguments(SmallVec<[Vec<u8>; 1]>);

// === impl Arguments ===

impl Arguments {
    fn text(&mut self, text: &str) {
        self.0.push(text.as_bytes().to_vec());
    }

    fn number(&mut self, number: impl itoa::Integer) {
        self.text(itoa::Buffer::new().format(number));
    }

    fn member(&mut self, PoolMember { name, is_named }: &PoolMember) {
        self.text(if *is_named { "1" } else { "" });
        self.text(name);
    }
}

// === impl ShareRequest ===

impl ShareRequest {
    /// `now` is none in production, where Redis' clock is used; keys outlive their use by `jitter`.
    pub(super) fn new(
        command: &PoolCommand,
        now: Option<Timestamp>,
        settings: &KeySettings,
        jitter: Period,
    ) -> Self {
        let PoolCommand { target, cycle, places, forget_after, op } = command;
        let period = target.tiers[0].period;
        let mut arguments = Arguments(SmallVec::new());
        arguments.text(if matches!(op, PoolOp::Lease { .. }) { "lease" } else { "exchange" });
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
            PoolOp::Lease { member, terms, tries, ahead, instances } => {
                arguments.member(member);
                for number in [terms.capacity, terms.own, terms.limit, terms.free, *ahead, *instances] {
                    arguments.number(number);
                }
                let tries: Vec<String> = tries.iter().map(ToString::to_string).collect();
                arguments.text(&tries.join(" "));
            }
            PoolOp::Exchange(reports) => {
                for report in reports {
                    arguments.member(&report.member);
                    arguments.number(report.news.late);
                    arguments.number(report.news.asked);
                    arguments.number(report.news.granted);
                }
            }
        }
        let keys = name::pool(&settings.prefix, target, *cycle);
        Self(EncodedCommand::Run { script: &script::POOLS, keys, arguments: arguments.0 })
    }
}

impl NodeRequest for ShareRequest {
    type Reply = PoolOutcome;

    fn encoded(&self) -> &EncodedCommand {
        &self.0
    }

    fn outcome(&self, value: &Value) -> CommandOutcome<PoolOutcome> {
        let outcome = match value {
            Value::Array(parts) => table(parts),
            _ => text(value).and_then(granted),
        };
        CommandOutcome::Done(outcome.ok_or_else(malformed_reply))
    }
}

/// Parses `cycle|…`, or only the number of the cycle that is open.
fn granted(reply: &str) -> Option<PoolOutcome> {
    let mut parts = reply.split('|');
    let cycle = parts.next()?.parse().ok()?;
    let Some(tries) = parts.next() else { return Some(PoolOutcome::OtherCycle(cycle)) };
    let tries = tries.bytes().map(|granted| granted == b'1').collect();
    let mut number = || parts.next()?.parse().ok();
    let (ahead, granted, total) = (number()?, number()?, number()?);
    Some(PoolOutcome::Leased(Leased { tries, ahead, granted, total }))
}

/// A member is followed by its cycles, and by what it asked for and was granted in the last cycle and in the open one.
fn table(parts: &[Value]) -> Option<PoolOutcome> {
    let [cycle, total, Value::Array(rows)] = parts else { return None };
    let cycle = text(cycle)?.parse().ok()?;
    let members = rows.as_chunks::<2>().0.iter().map(|[name, row]| {
        let mut numbers = text(row)?.split(' ');
        let mut cycles = || numbers.next()?.parse::<u64>().ok();
        let (last_cycle, since) = (cycles()?, cycles()?);
        let mut hits = || numbers.next()?.parse().ok();
        let (demand, _, asked, granted): (u32, u32, u32, u32) = (hits()?, hits()?, hits()?, hits()?);
        let is_new = since == cycle;
        Some(MemberCounts { name: text(name)?.into(), demand, asked, granted, last_cycle, is_new })
    });
    Some(PoolOutcome::Table(PoolTable {
        cycle,
        total: text(total)?.parse().ok()?,
        members: members.collect::<Option<_>>()?,
    }))
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
