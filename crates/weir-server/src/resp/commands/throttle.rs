//! `CL.THROTTLE`, the command of redis-cell, and `THROTTLE`, that of throttlecrab. A key has one bucket for both.

use super::{action::ReplyDialect, refuse_store};
use crate::resp::{
    arguments::integer,
    reply::{CommandReplies, quoted},
    service::Service,
};
use weir_limit::{
    NANOS_PER_SECOND, Period, Timestamp,
    request_bucket::{BucketName, BucketReply, BucketRequest, Pace, PacedReply, PacedRequest},
};
use weir_store::Store;

/// What redis-cell says to a wrong number of arguments.
pub(super) const USAGE: &str =
    "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameters {
    max_burst: i64,
    request: PacedRequest,
}

/// The arguments are key, `max_burst`, count, period and quantity.
pub(super) async fn carry_out<S: Store>(
    service: &Service<S>,
    dialect: ReplyDialect,
    arguments: &[&[u8]],
    now: Timestamp,
    replies: &mut CommandReplies,
) {
    let parameters = match dialect.parse(&arguments[1..]) {
        Ok(parameters) => parameters,
        Err(error) => return replies.error(&error),
    };
    let name = BucketName::new(service.hasher, arguments[0]);
    let request = BucketRequest::Paced(parameters.request);
    match service.limiter.store().decide_bucket(&name, &request, now).await {
        Ok(BucketReply::Paced(reply)) => {
            if reply.limited {
                service.stats.limited.add(1);
            }
            replies.array(5);
            for number in dialect.reply(&parameters, &reply) {
                replies.integer(number);
            }
        }
        // no store replies so
        Ok(BucketReply::Step(_)) => replies.null(),
        Err(error) => refuse_store(&error, replies),
    }
}

// === impl ReplyDialect ===

impl ReplyDialect {
    fn parse(self, arguments: &[&[u8]]) -> Result<Parameters, String> {
        let names = ["max_burst", "count_per_period", "period", "quantity"];
        let mut numbers = [0_i64, 0, 0, 1];
        for ((number, argument), name) in numbers.iter_mut().zip(arguments).zip(names) {
            *number = integer(argument).ok_or_else(|| match self {
                Self::RedisCell => {
                    format!("Cell error: Store error: Couldn't parse as integer: {}", quoted(argument))
                }
                Self::Throttlecrab => format!("ERR invalid {name}"),
            })?;
        }
        let [max_burst, count, seconds, quantity] = numbers;
        if self == Self::Throttlecrab && quantity < 0 {
            return Err(format!("ERR Rate limit check failed: negative quantity: {quantity}"));
        }
        let tokens = match self {
            Self::RedisCell => max_burst.saturating_add(1),
            Self::Throttlecrab => max_burst,
        };
        let pace = Pace::new(count, seconds).filter(|_| self == Self::RedisCell || max_burst > 0);
        let pace = pace.ok_or(match self {
            Self::RedisCell if count == 0 || seconds == 0 => {
                "Cell error: Store error: Zero rates are not supported"
            }
            Self::RedisCell => "Cell error: Store error: Negative rates are not supported",
            Self::Throttlecrab => "ERR Rate limit check failed: invalid rate limit parameters",
        })?;
        let capacity = u64::try_from(tokens).unwrap_or(0);
        Ok(Parameters { max_burst, request: PacedRequest { capacity, pace, quantity } })
    }

    fn reply(self, parameters: &Parameters, reply: &PacedReply) -> [i64; 5] {
        let Parameters { max_burst, request } = parameters;
        let remaining = i64::try_from(reply.remaining).unwrap_or(i64::MAX);
        match self {
            Self::RedisCell => {
                let fits = u64::try_from(request.quantity).is_ok_and(|quantity| quantity <= request.capacity);
                let retry_after = if reply.limited && fits { rounded(reply.retry_after) } else { -1 };
                let limit = max_burst.saturating_add(1);
                [i64::from(reply.limited), limit, remaining, retry_after, rounded(reply.reset_after)]
            }
            Self::Throttlecrab => {
                let retry_after = if reply.limited { cut(reply.retry_after) } else { 0 };
                [i64::from(!reply.limited), *max_burst, remaining, cut(reply.reset_after), retry_after]
            }
        }
    }
}

/// Returns whole seconds, as redis-cell reports them: one more if there is at least a millisecond beside them.
fn rounded(period: Period) -> i64 {
    const MILLISECOND: u64 = 1_000_000;
    cut(period) + i64::from(period.as_nanos() % NANOS_PER_SECOND >= MILLISECOND)
}

/// Returns whole seconds, as throttlecrab reports them.
fn cut(period: Period) -> i64 {
    // 584 years fit
    i64::try_from(period.as_nanos() / NANOS_PER_SECOND).unwrap_or(i64::MAX)
}
