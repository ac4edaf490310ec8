//! A request on its way to the node that holds its key.

use std::time::Duration;

use redis::Value;

use super::{
    command::{CommandOutcome, EncodedCommand, malformed_reply},
    protocol::{PipelineReply, ServerConnection},
};
use crate::{
    limit::Timestamp,
    store::{remote::RemoteError, transport::Address},
};

/// A request to the node that holds its key, which may be sent more than once.
pub(super) trait NodeRequest {
    /// The type of a reply.
    type Reply;

    /// Whether decisions send such requests.
    const DECIDES: bool;

    /// Returns the commands.
    fn encoded(&self) -> &EncodedCommand;

    /// Interprets the reply to the first of the commands.
    fn outcome(&self, value: &Value) -> CommandOutcome<Self::Reply>;

    /// Changes the request to the window that is open at `now`.
    fn move_to_window(&mut self, now: Timestamp);
}

/// How a request is sent next.
#[derive(Clone, Default)]
pub(super) struct Route {
    /// Whether the text of its script is sent, too.
    pub(super) load_script: bool,
    /// The server that a redirect names. Without one, the slot of its key determines the server.
    pub(super) server: Option<Address>,
    /// Whether it is sent after `ASKING`.
    pub(super) is_asking: bool,
    /// The wait before it is sent.
    pub(super) pause: Duration,
}

/// A request on its way.
pub(super) struct RoutedRequest<R> {
    /// Its place among the requests of the call.
    pub(super) index: usize,
    pub(super) request: R,
    pub(super) route: Route,
    /// The times that it was sent.
    pub(super) attempts: usize,
}

/// The requests that go to one server in one pipeline.
pub(super) struct NodeBatch<R> {
    pub(super) server: ServerConnection,
    pub(super) requests: Vec<RoutedRequest<R>>,
    /// The cost that more requests may have, while requests are divided.
    pub(super) room: usize,
}

/// The requests of a batch, and what was received for all of them.
pub(super) struct ExchangedBatch<R> {
    pub(super) server: ServerConnection,
    pub(super) requests: Vec<RoutedRequest<R>>,
    pub(super) received: Result<PipelineReply, RemoteError>,
}

// === impl RoutedRequest ===

impl<R: NodeRequest> RoutedRequest<R> {
    pub(super) fn new(index: usize, request: R) -> Self {
        Self { index, request, route: Route::default(), attempts: 1 }
    }

    /// Takes the replies to its commands from `values`, and interprets them.
    pub(super) fn take_outcome(&self, values: &mut impl Iterator<Item = Value>) -> CommandOutcome<R::Reply> {
        // the reply to `ASKING` goes before each
        let asking = usize::from(self.route.is_asking);
        let mut own = values.take(self.request.encoded().commands() * (1 + asking));
        let outcome = own.nth(asking).map(|value| self.request.outcome(&value));
        own.for_each(drop);
        outcome.unwrap_or_else(|| CommandOutcome::Done(Err(malformed_reply())))
    }
}
