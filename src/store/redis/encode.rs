//! What goes over the wire for one command, and what comes back.

use std::sync::Arc;

use redis::{Cmd, ServerError, ServerErrorKind, Value};
use smallvec::{SmallVec, smallvec};

use super::{
    name,
    script::{self, Answer, Script},
    settings::Address,
};
use crate::{
    limit::{Period, Timestamp},
    store::remote::{Op, RemoteError, Reply, Target},
};

/// Something to be done by the server that holds a key.
#[derive(Clone)]
pub(super) enum EncodedCommand {
    /// The reference's own commands, `INCRBY` and `EXPIRE`: for its rules, and whatever else they are enough for, since they
    /// cost half of what a script does.
    Count {
        /// The counter.
        key: String,
        /// What it is raised by.
        hits: i64,
        /// Seconds that it then lives.
        ttl: u64,
    },
    /// A script.
    Run {
        /// Which.
        script: &'static Script,
        /// All in one slot.
        keys: name::Keys,
        /// What it is told.
        arguments: SmallVec<[Vec<u8>; 1]>,
    },
}

/// Why something that was not carried out may be sent again, elsewhere or in another way.
#[derive(Debug)]
pub(super) enum Retry {
    /// The server does not know the script.
    Load,
    /// The key is at that server now.
    Moved(Option<Address>),
    /// The key may be at that server, which wants to be asked for it.
    LimitCheck(Address),
    /// The server is a replica now.
    ReadOnly(String),
    /// The keys are on their way from one server to another.
    Later(String),
    /// The window that it is about is not the one that is open at this instant.
    Window(Timestamp),
}

/// What came back.
pub(super) enum Outcome<T> {
    /// The answer.
    Done(Result<T, RemoteError>),
    /// It was not carried out.
    Retry(Retry),
}

/// How keys are made.
#[derive(Clone, Debug)]
pub(super) struct Naming {
    /// What they begin with.
    pub(super) prefix: Box<str>,
    /// How long they may live beyond their use, in seconds; this number is excluded.
    pub(super) jitter_seconds: u64,
}

/// A command of a caller, on its way.
pub(super) struct CommandPlan {
    pub(super) target: Arc<Target>,
    pub(super) op: Op,
    /// The window that it is about.
    pub(super) at: Timestamp,
    pub(super) wire: EncodedCommand,
}

// === impl CommandPlan ===

impl CommandPlan {
    /// What to send for `op` on `target` in the window of `at`. `now` is none in production; `draw` is a random number.
    pub(super) fn new(
        target: Arc<Target>,
        op: Op,
        at: Timestamp,
        now: Option<Timestamp>,
        naming: &Naming,
        draw: u64,
    ) -> Self {
        let jitter = draw % naming.jitter_seconds.max(1);
        let mut keys = name::keys(&naming.prefix, &target, at);
        let hits = match op {
            Op::Add { hits } => u64::try_from(hits).ok(),
            Op::Take { hits } => Some(hits),
            Op::Return { .. } | Op::Grant { .. } => None,
        };
        let adds = matches!(op, Op::Add { .. }) && name::is_one_window(&target);
        let wire = match hits.filter(|_| adds || name::is_references(&target)) {
            Some(hits) => EncodedCommand::Count {
                key: keys.swap_remove(0),
                // no counter runs over for what one caller makes up
                hits: i64::try_from(hits.min(script::MANY)).unwrap_or_default(),
                ttl: target.tiers[0].period.as_secs_ceil() + jitter,
            },
            None => EncodedCommand::Run {
                script: &script::TAKE,
                keys,
                arguments: smallvec![script::argument(&target, op, at, now, Period::from_secs(jitter))],
            },
        };
        Self { target, op, at, wire }
    }

    /// What `value`, the answer to its first command, comes to.
    pub(super) fn outcome(&self, value: &Value) -> Outcome<Reply> {
        if let Value::ServerError(error) = value {
            return refusal(error);
        }
        match &self.wire {
            EncodedCommand::Count { .. } => Outcome::Done(self.counted(value)),
            EncodedCommand::Run { .. } => match script::answer(value, &self.target, self.at) {
                Some(Answer::Done(reply)) => Outcome::Done(Ok(reply)),
                Some(Answer::Moved(now)) => Outcome::Retry(Retry::Window(now)),
                None => Outcome::Done(Err(nonsense())),
            },
        }
    }

    /// The reply to `INCRBY`.
    fn counted(&self, value: &Value) -> Result<Reply, RemoteError> {
        let Value::Int(total) = value else { return Err(nonsense()) };
        let tier = &self.target.tiers[0];
        let used = u64::try_from(*total).unwrap_or_default();
        let granted = match self.op {
            Op::Add { hits } => u64::try_from(hits).unwrap_or_default(),
            Op::Take { hits } if used <= tier.requests.into() => hits,
            _ => 0,
        };
        Ok(Reply { granted, counters: std::iter::once(script::window(tier, self.at, used)).collect() })
    }
}

// === impl EncodedCommand ===

impl EncodedCommand {
    /// A key that tells where it is to be sent.
    pub(super) fn key(&self) -> &str {
        match self {
            Self::Count { key, .. } => key,
            Self::Run { keys, .. } => &keys[0],
        }
    }

    /// Puts the commands at the end of `commands`: with the text of a script if `load`, and with an `ASKING` before each if
    /// `asking`.
    pub(super) fn write(&self, load: bool, asking: bool, commands: &mut Vec<Cmd>) {
        let mut push = |command: Cmd| {
            if asking {
                commands.push(redis::cmd("ASKING"));
            }
            commands.push(command);
        };
        match self {
            Self::Count { key, hits, ttl } => {
                push(command(key.len(), 3, |count| count.arg("INCRBY").arg(key).arg(*hits)));
                push(command(key.len(), 3, |expire| expire.arg("EXPIRE").arg(key).arg(*ttl)));
            }
            Self::Run { script, keys, arguments } => {
                let (verb, name) = if load { ("EVAL", script.text) } else { ("EVALSHA", script.sha()) };
                let parts = 3 + keys.len() + arguments.len();
                let texts = keys.iter().map(String::len).chain(arguments.iter().map(Vec::len));
                push(command(name.len() + texts.sum::<usize>(), parts, |run| {
                    run.arg(verb).arg(name).arg(keys.len()).arg(keys.as_slice());
                    arguments.iter().fold(run, |run, argument| run.arg(argument.as_slice()))
                }));
            }
        }
    }
}

/// A command of so many `parts` that `build` builds, with room for them and for so many `bytes`: thousands are made in a
/// second.
fn command(bytes: usize, parts: usize, build: impl FnOnce(&mut Cmd) -> &mut Cmd) -> Cmd {
    let mut command = Cmd::with_capacity(parts, bytes + 32 + 8 * parts);
    build(&mut command);
    command
}

/// An answer that cannot be: whether the command was carried out, nobody knows.
pub(super) fn nonsense() -> RemoteError {
    RemoteError::Unreachable("it answered what makes no sense".into())
}

/// What an error reply comes to. Redis sends one only for what it has not carried out.
pub(super) fn refusal<T>(error: &ServerError) -> Outcome<T> {
    let detail = error.details().unwrap_or_default();
    let said = || format!("{} {detail}", error.code());
    Outcome::Retry(match error.kind() {
        Some(ServerErrorKind::NoScript) => Retry::Load,
        Some(ServerErrorKind::Moved) => Retry::Moved(redirect(detail)),
        Some(ServerErrorKind::Ask) => match redirect(detail) {
            Some(address) => Retry::LimitCheck(address),
            None => Retry::Moved(None),
        },
        Some(ServerErrorKind::ReadOnly) => Retry::ReadOnly(said()),
        Some(ServerErrorKind::TryAgain) => Retry::Later(said()),
        // what a script ran into is told by its error's text
        _ if detail.contains("READONLY You can't write") => Retry::ReadOnly(said()),
        _ => return Outcome::Done(Err(RemoteError::Rejected(said()))),
    })
}

/// The server that `3999 127.0.0.1:6381` leads to.
fn redirect(detail: &str) -> Option<Address> {
    let (host, port) = detail.split(' ').nth(1)?.rsplit_once(':')?;
    if host.is_empty() { None } else { Some(Address::tcp(host, port.parse().ok()?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_read() {
        assert_eq!(redirect("3999 127.0.0.1:6381"), Some(Address::tcp("127.0.0.1", 6381)));
        assert_eq!(redirect("3999 ::1:6381"), Some(Address::tcp("::1", 6381)));
        for detail in ["", "3999", "3999 :6381", "3999 host:port"] {
            assert_eq!(redirect(detail), None, "{detail}");
        }
    }
}
