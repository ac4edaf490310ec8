//! The script that counts the instances.

use redis::Value;

use super::{
    command::{CommandOutcome, EncodedCommand},
    request::NodeRequest,
    script,
};
use crate::transport::malformed_reply;
use weir_limit::Timestamp;
use weir_store::{
    name,
    remote::{Heartbeat, Members},
};

pub(super) struct HeartbeatRequest(EncodedCommand);

// === impl HeartbeatRequest ===

impl HeartbeatRequest {
    /// `now` is none in production, where Redis' clock is used.
    pub(super) fn new(heartbeat: &Heartbeat<'_>, now: Option<Timestamp>, prefix: &str) -> Self {
        let now = now.map(|now| script::micros(now).to_string()).unwrap_or_default();
        let ttl = heartbeat.ttl.as_nanos().div_ceil(1_000_000).to_string();
        let arguments = [now, heartbeat.instance.to_owned(), ttl].map(String::into_bytes);
        Self(EncodedCommand::Run {
            script: &script::HEARTBEAT,
            keys: std::iter::once(name::instances(prefix)).collect(),
            arguments: arguments.into_iter().collect(),
        })
    }
}

impl NodeRequest for HeartbeatRequest {
    type Reply = Members;

    const DECIDES: bool = false;

    fn encoded(&self) -> &EncodedCommand {
        &self.0
    }

    fn outcome(&self, value: &Value) -> CommandOutcome<Members> {
        CommandOutcome::Done(members(value).ok_or_else(malformed_reply))
    }
}

fn members(value: &Value) -> Option<Members> {
    let Value::Array(values) = value else { return None };
    let [Value::Int(instances), Value::Int(micros), Value::Int(rank)] = &values[..] else { return None };
    Some(Members {
        instances: usize::try_from(*instances).ok()?,
        now: Some(Timestamp::from_nanos(u64::try_from(*micros).ok()?.checked_mul(1_000)?)),
        // that of one that leaves is -1
        rank: u32::try_from(*rank).ok(),
    })
}
