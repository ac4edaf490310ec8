//! Fuzz target: the replies of a server.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::io::{AsyncBufRead, BufReader};

use super::{
    codec::{MetaReply, read_reply},
    command::MemcachedCommand,
};
use weir_limit::{Direction, OverLimitPolicy, Period, Tier, Timestamp};
use weir_store::{
    name::KeySettings,
    remote::{Exchange, LeaseRequest, Report, Run, Target},
};

const AT: Timestamp = Timestamp::from_secs(90);

/// Reads replies until one is malformed, and interprets the last ones as those to each operation.
pub fn reply(input: &[u8]) {
    let replies = read_all(input);
    assert_eq!(read_all(BufReader::with_capacity(7, input)), replies, "how they arrive does not matter");
    for policy in [OverLimitPolicy::Count, OverLimitPolicy::Ignore] {
        for (exchange, most) in [
            (Exchange::read(), 0),
            (Exchange::of_try(3, policy), 0),
            (Exchange::of_try(u64::MAX, policy), 0),
            (Exchange::of_lease(LeaseRequest { least: 3, want: 5, hold: Period::default() }), 3),
            (exchange(), 3),
            (Exchange::of_report(Report::of(AT, 3)), 0),
            (Exchange::of_report(Report::of(AT, -3)), 0),
            (Exchange::of_report(Report::unused(AT, 3, AT)), 0),
        ] {
            let runs = exchange.runs.clone();
            let command = prepared(policy, exchange);
            let count = command.encode().len().min(replies.len());
            let outcome = command.outcome(&replies[replies.len() - count..]);
            if let Ok(reply) = outcome.reply {
                assert!(reply.granted <= most && reply.counters.len() == 1, "{reply:?}");
                assert!(runs.iter().zip(&reply.taken).all(|(run, taken)| *taken <= run.tries), "{reply:?}");
            }
        }
    }
}

fn exchange() -> Exchange {
    let run = |hits, tries| Run { direction: Direction::Take, hits, tries, counts_rejected: false };
    let give_back = Run { direction: Direction::GiveBack, ..run(3, 1) };
    Exchange {
        reports: [Report::of(AT, 3), Report::of(AT, -2)].into_iter().collect(),
        runs: [run(2, 5), give_back, run(u64::MAX, u32::MAX)].into_iter().collect(),
        all_or_none: false,
        lease: Some(LeaseRequest { least: 3, want: 3, hold: Period::default() }),
        writer: 0,
    }
}

fn read_all(mut reader: impl AsyncBufRead + Unpin) -> Vec<MetaReply> {
    let (mut line, mut replies) = (Vec::new(), Vec::new());
    // bytes in memory are ready
    while let Some(Ok(reply)) = read_reply(&mut reader, &mut line).now_or_never() {
        replies.push(reply);
    }
    replies
}

fn prepared(over_limit_policy: OverLimitPolicy, exchange: Exchange) -> MemcachedCommand {
    let tier = Tier::fixed_window(5, Period::from_secs(60));
    let target = Target { path: "shop|tenant=acme".into(), tiers: [tier].into(), over_limit_policy };
    let settings = KeySettings { prefix: "".into(), unambiguous: false, jitter_seconds: 0 };
    MemcachedCommand::new(Arc::new(target), exchange, AT, &settings, 90, 7)
}
