//! Buckets that are refilled in steps, whose parameters come with each request: one script takes tokens or deletes
//! buckets.

use redis::Value;
use smallvec::SmallVec;

use super::{
    command::{self, CommandOutcome, EncodedCommand},
    request::NodeRequest,
    script,
};
use crate::limit::{
    Timestamp,
    request_bucket::{StepReply, StepRequest},
};

/// The largest numbers that the script computes with exactly, excluded.
const EXACT: u64 = 1 << 52;

/// A request to take tokens, or to delete all buckets of a name.
pub(super) struct StepsRequest(EncodedCommand);

/// What the script replies.
pub(super) enum StepsReply {
    Taken(StepReply),
    Deleted(bool),
}

// === impl StepsRequest ===

impl StepsRequest {
    /// Returns the request to take tokens as of `now`, which is none in production; none if a number is too large.
    pub(super) fn take(key: String, request: &StepRequest, now: Option<Timestamp>) -> Option<Self> {
        let limit = &request.limit;
        let numbers = [limit.max, limit.refill, limit.period_ms, request.take];
        if numbers.iter().chain(&request.at).any(|number| *number >= EXACT) {
            return None;
        }
        let flag = |is_on: bool| if is_on { "1" } else { "" }.to_owned();
        let mut arguments = vec![format!("{} {} {}", limit.max, limit.refill, limit.period_ms)];
        arguments.extend(numbers.map(|number| number.to_string()));
        arguments.push(request.at.map(|at| at.to_string()).unwrap_or_default());
        arguments.extend([flag(request.strict || request.session), flag(request.session)]);
        arguments.push(now.map(|now| (now.as_nanos() / 1_000_000).to_string()).unwrap_or_default());
        Some(Self::run(key, arguments))
    }

    /// Returns the request to delete all buckets of a name.
    pub(super) fn delete(key: String) -> Self {
        Self::run(key, vec![String::new()])
    }

    fn run(key: String, arguments: Vec<String>) -> Self {
        let arguments: SmallVec<[Vec<u8>; 1]> = arguments.into_iter().map(String::into_bytes).collect();
        Self(EncodedCommand::Run { script: &script::STEPS, keys: std::iter::once(key).collect(), arguments })
    }
}

impl NodeRequest for StepsRequest {
    type Reply = StepsReply;

    const DECIDES: bool = true;

    fn encoded(&self) -> &EncodedCommand {
        &self.0
    }

    fn outcome(&self, value: &Value) -> CommandOutcome<StepsReply> {
        CommandOutcome::Done(match value {
            Value::ServerError(error) => return command::error_outcome(error),
            Value::Int(deleted) => Ok(StepsReply::Deleted(*deleted != 0)),
            Value::Array(parts) => taken(parts).map(StepsReply::Taken).ok_or_else(command::malformed_reply),
            _ => Err(command::malformed_reply()),
        })
    }

    fn move_to_window(&mut self, _now: Timestamp) {}
}

fn taken(parts: &[Value]) -> Option<StepReply> {
    let number = |value: &Value| match value {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    };
    let [tokens, session_start] = parts else { return None };
    Some(StepReply { tokens: number(tokens)?, session_start: number(session_start)? })
}
