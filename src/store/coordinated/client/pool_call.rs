//! Calls about pools of fair shares, with the same clock and breaker as all others.

use std::sync::Arc;

use super::{StoreClient, breaker::FailedCount};
use crate::{
    limit::Timestamp,
    store::{
        pool_command::{PoolCommand, PoolReply},
        remote::{Remote, RemoteError},
    },
};

impl<R: Remote> StoreClient<R> {
    /// Has the store carry out `command`, and waits for the reply, however late it is.
    pub(in super::super) async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        let caller = &self.caller;
        let period = command.target.tiers[0].period.as_nanos();
        let at = Timestamp::from_nanos(command.cycle.saturating_mul(period));
        let node = self.node(&command.target, at);
        let failed = FailedCount { target: Arc::clone(&command.target), at };
        let sent = caller.clock.now();
        let reply = caller.wait_for_reply(node, Some(&failed), caller.remote.call_pool(command), || {}).await;
        if let Ok(reply) = &reply {
            caller.breaker.record_reply(node);
            caller.store_clock.record(sent, caller.clock.now(), reply.now);
        } else {
            caller.record_failure(node, Some(failed));
        }
        reply
    }
}
