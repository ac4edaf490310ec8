//! The arguments and the reply of the script that counts the instances.

use redis::Value;

use weir_limit::Timestamp;
use weir_store::remote::{Heartbeat, Members};

pub(super) fn arguments(heartbeat: &Heartbeat<'_>) -> [String; 2] {
    [heartbeat.instance.to_owned(), heartbeat.ttl.as_nanos().div_ceil(1_000_000).to_string()]
}

pub(super) fn members(value: &Value) -> Option<Members> {
    let Value::Array(values) = value else { return None };
    let [Value::Int(instances), Value::Int(micros), Value::Int(rank)] = &values[..] else { return None };
    Some(Members {
        instances: usize::try_from(*instances).ok()?,
        now: Some(Timestamp::from_nanos(u64::try_from(*micros).ok()?.checked_mul(1_000)?)),
        // that of one that leaves is -1
        rank: u32::try_from(*rank).ok(),
    })
}
