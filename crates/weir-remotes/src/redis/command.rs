//! Encoding one operation as Redis commands, and interpreting the reply.

use std::sync::Arc;

use redis::{Cmd, ServerError, ServerErrorKind, Value};
use smallvec::{SmallVec, smallvec};

use super::{
    connection,
    script::{self, CommandContext, Script, ScriptReply},
    slot_map,
};
use crate::transport::malformed_reply;
use weir_limit::{Period, Timestamp};
use weir_net::Address;
use weir_store::{
    encoding,
    name::{self, KeySettings},
    remote::{Exchange, RemoteError, Reply, Target},
};

#[derive(Clone)]
pub(super) enum EncodedCommand {
    /// `INCRBY` and `EXPIRE`, or `GET` without hits: as envoyproxy/ratelimit does, and at half the cost of a script.
    Count {
        key: String,
        hits: i64,
        /// In seconds.
        ttl: u64,
    },
    Run {
        script: &'static Script,
        /// All in one slot.
        keys: name::Keys,
        arguments: SmallVec<[Vec<u8>; 1]>,
    },
}

/// Why a command was not carried out, and may be sent again, to another server or in another form.
#[derive(Debug)]
pub(super) enum Retry {
    LoadScript,
    /// `MOVED`: the key is now at the given server, if the reply holds its address.
    Moved(Option<Address>),
    /// `ASK`: the key may be at the given server, which expects `ASKING` first.
    Ask(Address),
    ReadOnly(String),
    /// The keys are being moved from one server to another.
    Later(String),
    /// The cluster has lost a part of its slots, or its majority.
    ClusterDown(String),
    /// The command's window is not open at this instant of the server's clock.
    OtherWindow(Timestamp),
}

pub(super) enum CommandOutcome<T> {
    /// The command was carried out, or failed for good.
    Done(Result<T, RemoteError>),
    Retry(Retry),
}

pub(super) struct PreparedCommand {
    pub(super) target: Arc<Target>,
    pub(super) exchange: Exchange,
    /// An instant in the window that the operation is about.
    pub(super) at: Timestamp,
    pub(super) encoded: EncodedCommand,
}

// === impl PreparedCommand ===

impl PreparedCommand {
    /// `now` is none in production; `random` spreads the expiry of keys.
    pub(super) fn new(
        target: Arc<Target>,
        exchange: Exchange,
        at: Timestamp,
        now: Option<Timestamp>,
        settings: &KeySettings,
        random: u64,
    ) -> Self {
        let jitter = random % settings.jitter_seconds.max(1);
        let at = exchange.counted_at(at);
        let mut keys = name::keys(settings, &target, at);
        let encoded = if let Some(hits) = increment(&target, &exchange, at) {
            EncodedCommand::Count {
                key: keys.swap_remove(0),
                // bounded, so that no caller can make a counter overflow
                hits: i64::try_from(hits.min(script::MAX_HITS)).unwrap_or_default(),
                ttl: name::seconds_to_live(&target.tiers[0], at).saturating_add(jitter),
            }
        } else {
            let others = script::other_windows(&target, &exchange.reports, at);
            keys.extend(others.iter().map(|(i, at)| name::keys(settings, &target, *at).swap_remove(*i)));
            let context = CommandContext { now, jitter: Period::from_secs(jitter) };
            let argument = script::argument(&target, &exchange, at, &others, context);
            EncodedCommand::Run { script: &script::TAKE, keys, arguments: smallvec![argument] }
        };
        Self { target, exchange, at, encoded }
    }

    pub(super) fn outcome(&self, value: &Value) -> CommandOutcome<Reply> {
        match &self.encoded {
            EncodedCommand::Count { .. } => CommandOutcome::Done(self.count_reply(value)),
            EncodedCommand::Run { .. } => match script::reply(value, &self.target, self.at) {
                Ok(ScriptReply::Applied(reply)) => CommandOutcome::Done(Ok(reply)),
                Ok(ScriptReply::OtherWindow(now)) => CommandOutcome::Retry(Retry::OtherWindow(now)),
                Err(error) => CommandOutcome::Done(Err(RemoteError::Unreachable(format!(
                    "its reply is malformed: {error}"
                )))),
            },
        }
    }

    fn count_reply(&self, value: &Value) -> Result<Reply, RemoteError> {
        const FOREIGN: &str = "FOREIGN the value of the key was not written by weir";
        let total: Option<i64> = match value {
            Value::Nil => None,
            Value::Int(_) | Value::BulkString(_) => Some(
                redis::from_redis_value(value.clone()).map_err(|_| RemoteError::Rejected(FOREIGN.into()))?,
            ),
            _ => return Err(malformed_reply()),
        };
        let tier = &self.target.tiers[0];
        let used = u64::try_from(total.unwrap_or_default()).unwrap_or_default();
        // the tries were counted after everything else
        let before = used.saturating_sub(self.exchange.tried());
        let (taken, ..) = self.exchange.decide_in_window(before, tier.requests.into(), 0);
        let counters = std::iter::once(encoding::window(tier, self.at, before)).collect();
        Ok(Reply { taken, counters, ..Reply::default() })
    }
}

/// The hits for `INCRBY`; none if it cannot carry out `exchange`: it has no conditions, and counts in one window.
fn increment(target: &Target, exchange: &Exchange, at: Timestamp) -> Option<u64> {
    let counts_all = || exchange.runs.iter().all(|run| run.counts_rejected || run.hits == 0);
    let is_plain = if exchange.decides() {
        name::is_compatible(target) && counts_all()
    } else {
        name::is_one_window(target)
    };
    if !is_plain || exchange.given_back() > 0 || exchange.lease.is_some() {
        return None;
    }
    let mut hits = exchange.tried();
    for report in &exchange.reports {
        let is_addition = report.unused.is_none()
            && report.change.is_addition()
            && target.tiers[0].is_one_window(at, report.at);
        let added = u64::try_from(report.change.hits).ok().filter(|_| is_addition)?;
        hits = hits.saturating_add(added);
    }
    Some(hits)
}

// === impl EncodedCommand ===

impl EncodedCommand {
    pub(super) fn key(&self) -> &str {
        match self {
            Self::Count { key, .. } => key,
            Self::Run { keys, .. } => &keys[0],
        }
    }

    /// How long a server needs for it, compared with the cheapest one.
    pub(super) const fn cost(&self) -> usize {
        match self {
            Self::Count { .. } => 1,
            Self::Run { .. } => 4,
        }
    }

    pub(super) const fn commands(&self) -> usize {
        match self {
            Self::Count { hits: 0, .. } | Self::Run { .. } => 1,
            Self::Count { .. } => 2,
        }
    }

    pub(super) fn write(&self, load: bool, asking: bool, commands: &mut Vec<Cmd>) {
        let mut push = |command: Cmd| {
            if asking {
                commands.push(redis::cmd("ASKING"));
            }
            commands.push(command);
        };
        match self {
            // a check must not create the key
            Self::Count { key, hits: 0, .. } => push(command(key.len(), 2, |get| get.arg("GET").arg(key))),
            Self::Count { key, hits, ttl } => {
                push(command(key.len(), 3, |count| count.arg("INCRBY").arg(key).arg(*hits)));
                push(command(key.len(), 3, |expire| expire.arg("EXPIRE").arg(key).arg(*ttl)));
            }
            Self::Run { script, keys, arguments } => {
                let (verb, script) = if load { ("EVAL", script.text) } else { ("EVALSHA", &*script.sha) };
                let parts = 3 + keys.len() + arguments.len();
                let texts = keys.iter().map(String::len).chain(arguments.iter().map(Vec::len));
                push(command(script.len() + texts.sum::<usize>(), parts, |run| {
                    run.arg(verb).arg(script).arg(keys.len()).arg(keys.as_slice());
                    arguments.iter().fold(run, |run, argument| run.arg(argument.as_slice()))
                }));
            }
        }
    }
}

/// One allocation, because thousands of commands are built per second.
fn command(bytes: usize, parts: usize, build: impl FnOnce(&mut Cmd) -> &mut Cmd) -> Cmd {
    let mut command = Cmd::with_capacity(parts, bytes + 32 + 8 * parts);
    build(&mut command);
    command
}

/// What Redis 7 and Valkey say in the error of a script whose user may not run one of its commands.
const DENIED: [&str; 2] = ["executing the script can't run", "ACL failure in script"];

/// Redis has not carried out a command that it replies an error to. But a script that was denied a command has begun.
pub(super) fn error_outcome<T>(error: &ServerError) -> CommandOutcome<T> {
    let detail = error.details().unwrap_or_default();
    let text = || connection::explain_reply(error);
    CommandOutcome::Retry(match error.kind() {
        Some(ServerErrorKind::NoScript) => Retry::LoadScript,
        Some(ServerErrorKind::Moved) => Retry::Moved(redirect(detail)),
        Some(ServerErrorKind::Ask) => match redirect(detail) {
            Some(address) => Retry::Ask(address),
            None => Retry::Moved(None),
        },
        Some(ServerErrorKind::ReadOnly) => Retry::ReadOnly(text()),
        Some(ServerErrorKind::TryAgain) => Retry::Later(text()),
        Some(ServerErrorKind::ClusterDown) => Retry::ClusterDown(text()),
        // an error inside a script has a code of its own, and holds the original error in its text
        _ if detail.contains("READONLY You can't write") => Retry::ReadOnly(text()),
        _ if detail.contains("CLUSTERDOWN ") => Retry::ClusterDown(text()),
        _ if DENIED.iter().any(|denied| detail.contains(denied)) => {
            return CommandOutcome::Done(Err(RemoteError::Half(text())));
        }
        _ => return CommandOutcome::Done(Err(RemoteError::Rejected(text()))),
    })
}

/// Parses text such as `3999 127.0.0.1:6381`. None if the host is `?`, since the redirecting server does not know it.
fn redirect(detail: &str) -> Option<Address> {
    let (host, port) = detail.split(' ').nth(1)?.rsplit_once(':')?;
    if matches!(host, "" | "?") || !slot_map::is_host(host) {
        None
    } else {
        Some(Address::tcp(host, port.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_parsed() {
        assert_eq!(redirect("3999 127.0.0.1:6381"), Some(Address::tcp("127.0.0.1", 6381)));
        assert_eq!(redirect("3999 ::1:6381"), Some(Address::tcp("::1", 6381)));
        for detail in ["", "3999", "3999 :6381", "3999 ?:6381", "3999 host:port"] {
            assert_eq!(redirect(detail), None, "{detail}");
        }
    }
}
