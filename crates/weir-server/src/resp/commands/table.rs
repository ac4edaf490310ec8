//! The list of commands.

use std::ops::RangeInclusive;

use super::action::{
    BucketCommand, ClientCommand, CommandAction, ReplyDialect, RlCommand, RuleCommand, TransactionCommand,
};

#[derive(Debug)]
pub(in crate::resp) struct CommandSpec {
    pub(in crate::resp) name: &'static str,
    /// How many arguments it has, without its name.
    pub(super) arguments: RangeInclusive<usize>,
    /// Whether its first argument is a key; all of them, if it accepts any number.
    pub(super) has_key: bool,
    pub(super) is_readonly: bool,
    pub(super) summary: &'static str,
    pub(super) action: CommandAction,
}

const ANY: usize = usize::MAX;

const fn writes(
    name: &'static str,
    arguments: RangeInclusive<usize>,
    summary: &'static str,
    action: CommandAction,
) -> CommandSpec {
    CommandSpec { name, arguments, has_key: true, is_readonly: false, summary, action }
}

const fn reads(
    name: &'static str,
    arguments: RangeInclusive<usize>,
    summary: &'static str,
    action: CommandAction,
) -> CommandSpec {
    CommandSpec { name, arguments, has_key: true, is_readonly: true, summary, action }
}

const fn plain(
    name: &'static str,
    arguments: RangeInclusive<usize>,
    summary: &'static str,
    action: CommandAction,
) -> CommandSpec {
    CommandSpec { name, arguments, has_key: false, is_readonly: true, summary, action }
}

const GET: RlCommand = RlCommand { takes: false, has_session: false, in_millis: false };
const REDUCE: RlCommand = RlCommand { takes: true, ..GET };
const SESSIONIZE: RlCommand = RlCommand { has_session: true, ..REDUCE };

/// All commands. Those that clients send most come first.
pub(in crate::resp) static COMMANDS: [CommandSpec; 29] = [
    writes(
        "cl.throttle",
        4..=5,
        "Takes tokens from a bucket, as redis-cell does",
        CommandAction::Throttle(ReplyDialect::RedisCell),
    ),
    writes(
        "throttle",
        4..=5,
        "Takes tokens from a bucket, as throttlecrab does",
        CommandAction::Throttle(ReplyDialect::Throttlecrab),
    ),
    writes("rl.reduce", 3..=10, "Takes tokens from a bucket", CommandAction::Rl(REDUCE)),
    writes(
        "rl.preduce",
        3..=10,
        "RL.REDUCE in milliseconds",
        CommandAction::Rl(RlCommand { in_millis: true, ..REDUCE }),
    ),
    plain(
        "weir.take",
        3..=ANY,
        "Takes hits from the limits of rules",
        CommandAction::Rules(RuleCommand::Take),
    ),
    plain("weir.peek", 3..=ANY, "Reads the limits of rules", CommandAction::Rules(RuleCommand::Peek)),
    plain("weir.reset", 3..=ANY, "Gives all hits of counters back", CommandAction::Rules(RuleCommand::Reset)),
    reads("rl.get", 3..=8, "Reads the tokens of a bucket", CommandAction::Rl(GET)),
    reads(
        "rl.pget",
        3..=8,
        "RL.GET in milliseconds",
        CommandAction::Rl(RlCommand { in_millis: true, ..GET }),
    ),
    writes("rl.sessionize", 3..=10, "RL.REDUCE with the start of the session", CommandAction::Rl(SESSIONIZE)),
    writes(
        "rl.psessionize",
        3..=10,
        "RL.SESSIONIZE in milliseconds",
        CommandAction::Rl(RlCommand { in_millis: true, ..SESSIONIZE }),
    ),
    writes("del", 1..=ANY, "Deletes all buckets of keys", CommandAction::Buckets(BucketCommand::Delete)),
    reads(
        "exists",
        1..=ANY,
        "Counts the keys that have a bucket",
        CommandAction::Buckets(BucketCommand::Exists),
    ),
    reads(
        "ttl",
        1..=1,
        "Returns when the buckets of a key are full",
        CommandAction::Buckets(BucketCommand::Ttl),
    ),
    plain("ping", 0..=1, "Returns PONG, or the argument", CommandAction::Client(ClientCommand::Ping)),
    plain("echo", 1..=1, "Returns the argument", CommandAction::Client(ClientCommand::Echo)),
    plain("auth", 1..=2, "Authenticates the connection", CommandAction::Client(ClientCommand::Auth)),
    plain("hello", 0..=7, "Chooses the version of the protocol", CommandAction::Client(ClientCommand::Hello)),
    plain(
        "client",
        1..=ANY,
        "Names and describes the connection",
        CommandAction::Client(ClientCommand::Client),
    ),
    plain(
        "select",
        1..=1,
        "Accepts any database: there is one keyspace",
        CommandAction::Client(ClientCommand::Select),
    ),
    plain("quit", 0..=ANY, "Closes the connection", CommandAction::Client(ClientCommand::Quit)),
    plain("command", 0..=ANY, "Describes the commands", CommandAction::Command),
    plain("info", 0..=ANY, "Describes the server", CommandAction::Info),
    plain("multi", 0..=0, "Begins a transaction", CommandAction::Transaction(TransactionCommand::Multi)),
    plain(
        "exec",
        0..=0,
        "Carries out the commands of a transaction",
        CommandAction::Transaction(TransactionCommand::Exec),
    ),
    plain(
        "discard",
        0..=0,
        "Forgets the commands of a transaction",
        CommandAction::Transaction(TransactionCommand::Discard),
    ),
    plain(
        "watch",
        1..=ANY,
        "Not supported: there is nothing to compare",
        CommandAction::Transaction(TransactionCommand::Watch),
    ),
    plain("unwatch", 0..=0, "Does nothing", CommandAction::Client(ClientCommand::Unwatch)),
    plain("reset", 0..=0, "Resets the connection", CommandAction::Transaction(TransactionCommand::Reset)),
];

pub(super) fn find(name: &[u8]) -> Option<usize> {
    COMMANDS.iter().position(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}
