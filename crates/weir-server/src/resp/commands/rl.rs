//! `RL.GET`, `RL.REDUCE`, `RL.SESSIONIZE` and their forms in milliseconds: the commands of smyte/ratelimit.

use super::{action::RlCommand, refuse_store};
use crate::resp::{
    arguments::{integer, is_word},
    reply::CommandReplies,
    service::Service,
};
use weir_limit::{
    Timestamp,
    request_bucket::{BucketName, BucketReply, BucketRequest, StepLimit, StepRequest},
};
use weir_store::Store;

/// The texts are those of smyte/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RlError {
    #[error("Value is not an integer or out of range")]
    Integer,
    #[error("Syntax error")]
    Syntax,
}

/// The arguments are key, max, period and options.
pub(super) async fn carry_out<S: Store>(
    service: &Service<S>,
    command: RlCommand,
    arguments: &[&[u8]],
    now: Timestamp,
    replies: &mut CommandReplies,
) {
    let request = match command.parse(&arguments[1..]) {
        Ok(request) => request,
        Err(error) => return replies.error(&error.to_string()),
    };
    let name = BucketName::new(service.hasher, arguments[0]);
    let decided = service.limiter.store().decide_bucket(&name, &BucketRequest::Step(request), now).await;
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    match decided {
        Ok(BucketReply::Step(reply)) => {
            if reply.tokens < request.take {
                service.stats.limited.add(1);
            }
            if command.has_session {
                replies.array(2);
                replies.integer(signed(reply.tokens));
                replies.integer(signed(reply.session_start));
            } else {
                replies.integer(signed(reply.tokens));
            }
        }
        // no store replies so
        Ok(BucketReply::Paced(_)) => replies.null(),
        Err(error) => refuse_store(&error, replies),
    }
}

// === impl RlCommand ===

impl RlCommand {
    /// From the left: an option's value is read before the option is looked up. Ranges are checked last.
    fn parse(self, arguments: &[&[u8]]) -> Result<StepRequest, RlError> {
        let number = |argument: &[u8]| integer::<i64>(argument).ok_or(RlError::Integer);
        let in_millis = |time: i64| {
            let millis = if self.in_millis { Some(time) } else { time.checked_mul(1_000) };
            millis.ok_or(RlError::Integer)
        };
        let [max, period, options @ ..] = arguments else { return Err(RlError::Syntax) };
        let max = number(max)?;
        let period = in_millis(integer::<i32>(period).ok_or(RlError::Integer)?.into())?;
        let (mut refill, mut take, mut at, mut strict) = (max, i64::from(self.takes), None, false);
        let mut rest = options.iter();
        while let Some(option) = rest.next() {
            if is_word(option, "STRICT") {
                strict = true;
                continue;
            }
            let value = number(rest.next().ok_or(RlError::Syntax)?)?;
            match option {
                option if is_word(option, "REFILL") => refill = value,
                option if is_word(option, "TAKE") && self.takes => take = value,
                option if is_word(option, "AT") => at = Some(value),
                _ => return Err(RlError::Syntax),
            }
        }
        let at_least = |least: i64, number: i64| {
            u64::try_from(number).ok().filter(|_| number >= least).ok_or(RlError::Integer)
        };
        Ok(StepRequest {
            limit: StepLimit {
                max: at_least(1, max)?,
                refill: at_least(1, refill)?,
                period_ms: at_least(1, period)?,
            },
            take: at_least(0, take)?,
            at: at.map(|at| in_millis(at).and_then(|at| at_least(0, at))).transpose()?,
            strict,
            session: self.has_session,
        })
    }
}
