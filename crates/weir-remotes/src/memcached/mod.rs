//! Memcached as the store that instances share: one or more servers, each of which holds the keys that hash to it.
//!
//! `command` encodes an operation as meta commands (`codec`), which a `protocol` sends to the server of the key (`key`,
//! `servers`). Memcached adds and subtracts, but takes nothing on a condition and has no scripts, so it counts rules of
//! one fixed window, under `interval` and `strict`. It has no clock that weir could read: windows are those of this
//! instance's clock.

mod codec;
mod command;
#[cfg(any(debug_assertions, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod instances;
mod key;
mod protocol;
mod servers;
mod settings;

use std::{fmt, sync::Arc, time::Instant};

use futures_util::future::join_all;

pub use self::settings::{MemcachedSettings, ServerSource};
use self::{
    codec::{MetaCommand, MetaReply},
    command::{FollowUp, MemcachedCommand, MemcachedOutcome},
    instances::InstanceSet,
    protocol::{MemcachedConnection, TLS_NAMES},
    servers::Servers,
};
pub use crate::transport::{Backoff, ConnectionStates, ServerState};
use crate::transport::{TransportMetrics, malformed_reply, metrics_of};
use weir_limit::{Capabilities, Period, SharedStore, Timestamp};
use weir_net::tls::TlsError;
pub use weir_net::{
    Address,
    dns::{DnsName, NameServers},
};
use weir_observe::{Metric, Source};
use weir_store::{
    clock::{Clock, SystemClock},
    name::{self, KeySettings},
    remote::{
        CallPriority, Command, Heartbeat, Members, Remote, RemoteError, Replies, Reply, StoreNode, Target,
    },
};

/// Memcached. Leases need a grant, which is a condition.
pub const STORE: SharedStore =
    SharedStore { name: "Memcached", system: "memcached", capabilities: Capabilities::SingleFixedWindow };

/// A store in Memcached. It connects in the background, and again after failures; until then calls fail at once.
pub struct MemcachedRemote {
    servers: Arc<Servers>,
    keys: KeySettings,
    instances: InstanceSet,
    timeout: std::time::Duration,
    metrics: Arc<TransportMetrics>,
    clock: Arc<dyn Clock>,
}

struct Batch {
    server: MemcachedConnection,
    /// The index in the call, the number of meta commands, and the command.
    commands: Vec<(usize, usize, MemcachedCommand)>,
    encoded: Vec<MetaCommand>,
}

// === impl MemcachedRemote ===

impl MemcachedRemote {
    /// Opens the servers of `settings` and starts to connect in the background. Windows are those of `clock`. Must be
    /// called within a tokio runtime. Fails if a file that TLS needs is missing or invalid, but not if a server cannot
    /// be reached yet.
    pub fn new(settings: MemcachedSettings, clock: Arc<dyn Clock>) -> Result<Self, TlsError> {
        if let Some(tls) = &settings.tls {
            tls.load(&TLS_NAMES, &[])?;
        }
        let (metrics, keys, timeout) = (Arc::default(), settings.keys.clone(), settings.timeout);
        let servers = Servers::open(settings, Arc::clone(&metrics));
        Ok(Self { servers, keys, instances: InstanceSet::default(), timeout, metrics, clock })
    }

    pub fn state(&self) -> ConnectionStates {
        self.servers.states()
    }

    async fn run(&self, commands: Vec<Command>, priority: CallPriority) -> Result<Replies, RemoteError> {
        self.metrics.calls.add(1);
        self.metrics.commands.add(commands.len() as u64);
        let sent_at = self.clock.now();
        let mut replies: Vec<Result<Reply, RemoteError>> = Vec::new();
        replies.resize_with(commands.len(), || Err(malformed_reply()));
        let (batches, unsent) = self.batches(commands, priority);
        let deadline = Instant::now() + self.timeout;
        let exchanges = batches.into_iter().map(|Batch { server, commands, encoded }| async move {
            let replies = server.exchange(encoded, priority, deadline).await;
            (server, commands, replies)
        });
        let (mut has_replied, mut failure) = (false, None);
        for (server, commands, outcome) in join_all(exchanges).await {
            match outcome {
                Ok(values) => {
                    has_replied = true;
                    let mut values = values.as_slice();
                    for (index, count, command) in commands {
                        let (own, rest) = values.split_at(count.min(values.len()));
                        values = rest;
                        replies[index] = self.complete(&server, command.outcome(own));
                    }
                }
                Err(error) => {
                    for (index, ..) in commands {
                        replies[index] = Err(error.clone());
                    }
                    failure = Some(error);
                }
            }
        }
        for (index, error) in unsent {
            replies[index] = Err(error.clone());
            failure = Some(error);
        }
        replies.iter().filter_map(|reply| reply.as_ref().err()).for_each(|error| self.metrics.error(error));
        match failure {
            Some(error) if !has_replied => Err(error),
            _ => Ok(Replies { now: self.midway(sent_at), replies }),
        }
    }

    /// Estimates when the commands were carried out.
    fn midway(&self, sent_at: Timestamp) -> Timestamp {
        let round_trip = self.clock.now().since(sent_at).as_nanos();
        sent_at.after(Period::from_nanos(round_trip / 2))
    }

    /// Calls are short enough for others to have a turn. Commands without a known server are returned with the error.
    fn batches(
        &self,
        commands: Vec<Command>,
        priority: CallPriority,
    ) -> (Vec<Batch>, Vec<(usize, RemoteError)>) {
        let now = SystemClock.now().as_nanos() / 1_000_000_000;
        let (mut batches, mut unsent): (Vec<Batch>, _) = (Vec::new(), Vec::new());
        for (index, Command { target, at, exchange }) in commands.into_iter().enumerate() {
            let prepared = MemcachedCommand::new(target, exchange, at, &self.keys, now, fastrand::u64(..));
            let server = match self.servers.of_key(&prepared.counter.key) {
                Ok(server) => server,
                Err(error) => {
                    unsent.push((index, error));
                    continue;
                }
            };
            let encoded = prepared.encode();
            // only the last batch of a server has room
            let open = batches.iter_mut().rfind(|batch| batch.server.is(&server));
            let open = open.filter(|batch| batch.encoded.len() + encoded.len() <= server.cost(priority));
            let command = (index, encoded.len(), prepared);
            if let Some(batch) = open {
                batch.commands.push(command);
                batch.encoded.extend(encoded);
                continue;
            }
            if priority == CallPriority::Decision {
                server.record_decision();
            }
            batches.push(Batch { server, commands: vec![command], encoded: encoded.into_vec() });
        }
        (batches, unsent)
    }

    /// Sends the follow-up before later commands, which must find the counter as the reply says.
    fn complete(
        &self,
        server: &MemcachedConnection,
        outcome: MemcachedOutcome,
    ) -> Result<Reply, RemoteError> {
        if let Some(FollowUp { commands, counter }) = outcome.follow_up {
            let (metrics, next) = (Arc::clone(&self.metrics), server.clone());
            server.post(commands, move |replied| {
                let replied = replied.inspect_err(|error| metrics.error(error));
                let last = replied.ok().and_then(|mut replies| replies.pop());
                if let (Some(MetaReply::Value(number)), Some(counter)) = (last, counter)
                    && let Some(command) = counter.mended(number)
                {
                    next.post(vec![command], move |replied| {
                        let _ = replied.inspect_err(|error| metrics.error(error));
                    });
                }
            });
        }
        outcome.reply
    }

    fn instances_key(&self) -> String {
        key::accepted(name::instances(&self.keys.prefix))
    }

    async fn exchange(&self, key: &str, commands: Vec<MetaCommand>) -> Result<Vec<MetaReply>, RemoteError> {
        let server = self.servers.of_key(key)?;
        server.exchange(commands, CallPriority::Decision, Instant::now() + self.timeout).await
    }
}

impl Remote for MemcachedRemote {
    fn shared_store(&self) -> SharedStore {
        STORE
    }

    fn has_clock(&self) -> bool {
        false
    }

    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.run(commands, CallPriority::Decision).await
    }

    async fn call_in_background(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.run(commands, CallPriority::Background).await
    }

    /// Names are not needed, so that there are no ranks.
    async fn heartbeat(&self, Heartbeat { ttl, .. }: Heartbeat<'_>) -> Result<Members, RemoteError> {
        let key = self.instances_key();
        if ttl == Period::default() {
            return self.exchange(&key, self.instances.leave(&key)).await.map(|_| Members::default());
        }
        let sent_at = self.clock.now();
        let (heartbeat, commands) = self.instances.begin(&key, sent_at, ttl);
        match self.exchange(&key, commands).await {
            Ok(replies) => {
                let counted = self.instances.finish(heartbeat, &replies);
                let counted = counted.ok_or_else(malformed_reply)?;
                Ok(Members { now: Some(self.midway(sent_at)), ..counted.into() })
            }
            Err(error) => {
                if error.is_definitely_not_applied() {
                    self.instances.forget(heartbeat);
                }
                Err(error)
            }
        }
    }

    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        self.servers.node(|| command::key_of(&self.keys, target, at))
    }

    fn members_node(&self) -> StoreNode {
        self.servers.node(|| self.instances_key())
    }
}

impl Source for MemcachedRemote {
    fn metrics(&self) -> Vec<Metric> {
        metrics_of!(&self.metrics, &self.state().servers, "memcached", "Memcached")
    }
}

impl fmt::Debug for MemcachedRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemcachedRemote").field("state", &self.state()).finish_non_exhaustive()
    }
}
