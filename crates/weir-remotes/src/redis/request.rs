//! A request on its way to the node that holds its key.

use std::time::Duration;

use redis::Value;

use super::{
    command::{CommandOutcome, EncodedCommand, error_outcome},
    connection::RedisServer,
};
use crate::transport::malformed_reply;
use weir_limit::Timestamp;
use weir_net::Address;

/// A request to the node that holds its key, which may be sent more than once.
pub(super) trait NodeRequest {
    type Reply;

    /// Whether decisions send such requests.
    const DECIDES: bool = true;

    fn encoded(&self) -> &EncodedCommand;

    /// Of a `value` that is no error.
    fn outcome(&self, value: &Value) -> CommandOutcome<Self::Reply>;

    fn move_to_window(&mut self, _now: Timestamp) {}
}

#[derive(Clone, Default)]
pub(super) struct Route {
    pub(super) load_script: bool,
    /// The server that a redirect names. Without one, the slot of its key determines the server.
    pub(super) server: Option<Address>,
    pub(super) is_asking: bool,
    pub(super) pause: Duration,
}

pub(super) struct RoutedRequest<R> {
    pub(super) index: usize,
    pub(super) request: R,
    pub(super) route: Route,
    pub(super) attempts: usize,
}

pub(super) struct NodeBatch<R> {
    pub(super) server: RedisServer,
    pub(super) requests: Vec<RoutedRequest<R>>,
    /// The cost that more requests may have, while requests are divided.
    pub(super) room: usize,
}

// === impl RoutedRequest ===

impl<R: NodeRequest> RoutedRequest<R> {
    pub(super) fn new(index: usize, request: R) -> Self {
        Self { index, request, route: Route::default(), attempts: 1 }
    }

    pub(super) fn take_outcome(&self, values: &mut impl Iterator<Item = Value>) -> CommandOutcome<R::Reply> {
        // the reply to `ASKING` goes before each
        let asking = usize::from(self.route.is_asking);
        let mut own = values.take(self.request.encoded().commands() * (1 + asking));
        let outcome = own.nth(asking).map(|value| match &value {
            Value::ServerError(error) => error_outcome(error),
            value => self.request.outcome(value),
        });
        own.for_each(drop);
        outcome.unwrap_or_else(|| CommandOutcome::Done(Err(malformed_reply())))
    }
}
