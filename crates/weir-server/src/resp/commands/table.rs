use std::ops::RangeInclusive;

use super::action::{
    BucketCommand, ClientCommand,
    CommandAction::{self, Buckets, Client, Command, Info, Rl, Rules, Throttle, Transaction},
    ReplyDialect::{RedisCell, Throttlecrab},
    RlCommand, RuleCommand, TransactionCommand,
};

#[derive(Debug)]
pub(in crate::resp) struct CommandSpec {
    pub(in crate::resp) name: &'static str,
    /// How many arguments it has, without its name.
    pub(super) arguments: RangeInclusive<usize>,
    pub(super) summary: &'static str,
    pub(super) action: CommandAction,
}

const ANY: usize = usize::MAX;

const fn spec(
    name: &'static str,
    arguments: RangeInclusive<usize>,
    summary: &'static str,
    action: CommandAction,
) -> CommandSpec {
    CommandSpec { name, arguments, summary, action }
}

const GET: RlCommand = RlCommand { takes: false, has_session: false, in_millis: false };
const REDUCE: RlCommand = RlCommand { takes: true, ..GET };
const SESSIONIZE: RlCommand = RlCommand { has_session: true, ..REDUCE };

/// All commands. Those that clients send most come first.
pub(in crate::resp) static COMMANDS: [CommandSpec; 29] = [
    spec("cl.throttle", 4..=5, "Takes tokens from a bucket, as redis-cell does", Throttle(RedisCell)),
    spec("throttle", 4..=5, "Takes tokens from a bucket, as throttlecrab does", Throttle(Throttlecrab)),
    spec("rl.reduce", 3..=10, "Takes tokens from a bucket", Rl(REDUCE)),
    spec("rl.preduce", 3..=10, "RL.REDUCE in milliseconds", Rl(RlCommand { in_millis: true, ..REDUCE })),
    spec("weir.take", 3..=ANY, "Takes hits from the limits of rules", Rules(RuleCommand::Take)),
    spec("weir.peek", 3..=ANY, "Reads the limits of rules", Rules(RuleCommand::Peek)),
    spec("weir.reset", 3..=ANY, "Gives all hits of counters back", Rules(RuleCommand::Reset)),
    spec("rl.get", 3..=8, "Reads the tokens of a bucket", Rl(GET)),
    spec("rl.pget", 3..=8, "RL.GET in milliseconds", Rl(RlCommand { in_millis: true, ..GET })),
    spec("rl.sessionize", 3..=10, "RL.REDUCE with the start of the session", Rl(SESSIONIZE)),
    spec(
        "rl.psessionize",
        3..=10,
        "RL.SESSIONIZE in milliseconds",
        Rl(RlCommand { in_millis: true, ..SESSIONIZE }),
    ),
    spec("del", 1..=ANY, "Deletes all buckets of keys", Buckets(BucketCommand::Delete)),
    spec("exists", 1..=ANY, "Counts the keys that have a bucket", Buckets(BucketCommand::Exists)),
    spec("ttl", 1..=1, "Returns when the buckets of a key are full", Buckets(BucketCommand::Ttl)),
    spec("ping", 0..=1, "Returns PONG, or the argument", Client(ClientCommand::Ping)),
    spec("echo", 1..=1, "Returns the argument", Client(ClientCommand::Echo)),
    spec("auth", 1..=2, "Authenticates the connection", Client(ClientCommand::Auth)),
    spec("hello", 0..=7, "Chooses the version of the protocol", Client(ClientCommand::Hello)),
    spec("client", 1..=ANY, "Names and describes the connection", Client(ClientCommand::Client)),
    spec("select", 1..=1, "Accepts any database: there is one keyspace", Client(ClientCommand::Select)),
    spec("quit", 0..=ANY, "Closes the connection", Client(ClientCommand::Quit)),
    spec("command", 0..=ANY, "Describes the commands", Command),
    spec("info", 0..=ANY, "Describes the server", Info),
    spec("multi", 0..=0, "Begins a transaction", Transaction(TransactionCommand::Multi)),
    spec("exec", 0..=0, "Carries out the commands of a transaction", Transaction(TransactionCommand::Exec)),
    spec("discard", 0..=0, "Forgets the commands of a transaction", Transaction(TransactionCommand::Discard)),
    spec(
        "watch",
        1..=ANY,
        "Not supported: there is nothing to compare",
        Transaction(TransactionCommand::Watch),
    ),
    spec("unwatch", 0..=0, "Does nothing", Client(ClientCommand::Unwatch)),
    spec("reset", 0..=0, "Resets the connection", Transaction(TransactionCommand::Reset)),
];

pub(super) fn find(name: &[u8]) -> Option<usize> {
    COMMANDS.iter().position(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}
