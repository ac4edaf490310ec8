//! The replies of redis-cell 0.5.0 to series of commands, recorded from the module in Redis 7.0.15, and those of weir.
//! With `WEIR_REDIS_CELL`, the path of the module, the recorded replies are compared with the module too.

use std::{env, process::Command};

use redis::{ConnectionLike as _, Value};

use super::start;
use crate::{client::Client, server_process::ServerProcess};

/// Commands, each with a new key for each series, and the replies: one number for each of the five, or what weir
/// replies instead after a bar.
const RECORDED: &[(&str, &[(&str, &str)])] = &[
    (
        "a burst, then denials",
        &[
            ("2 30 60", "0 3 2 -1 2"),
            ("2 30 60", "0 3 1 -1 4"),
            ("2 30 60", "0 3 0 -1 6"),
            ("2 30 60", "1 3 0 2 6"),
        ],
    ),
    (
        "quantities",
        &[
            ("15 30 60 4", "0 16 12 -1 8"),
            ("15 30 60 12", "0 16 0 -1 32"),
            ("15 30 60 1", "1 16 0 2 32"),
            ("15 30 60 0", "0 16 0 -1 32"),
            ("15 30 60 17", "1 16 0 -1 32"),
            ("15 30 60 16", "1 16 0 32 32"),
        ],
    ),
    (
        "a quantity above the limit",
        &[("4 1 10 6", "1 5 5 -1 0"), ("4 1 10 5", "0 5 0 -1 50"), ("4 1 10 1", "1 5 0 10 50")],
    ),
    (
        "looks",
        &[
            ("2 1 100 0", "0 3 3 -1 0"),
            ("2 1 100 1", "0 3 2 -1 100"),
            ("2 1 100 0", "0 3 2 -1 100"),
            ("2 1 100 2", "0 3 0 -1 300"),
            ("2 1 100 0", "0 3 0 -1 300"),
            ("2 1 100 1", "1 3 0 100 300"),
        ],
    ),
    ("a limit of one", &[("0 1 60", "0 1 0 -1 60"), ("0 1 60", "1 1 0 60 60"), ("0 1 60 0", "0 1 0 -1 60")]),
    (
        "parts of seconds",
        &[
            ("3 7 60", "0 4 3 -1 9"),
            ("3 7 60", "0 4 2 -1 18"),
            ("3 7 60", "0 4 1 -1 26"),
            ("3 7 60", "0 4 0 -1 35"),
            ("3 7 60", "1 4 0 9 35"),
        ],
    ),
    (
        "a short interval",
        &[("2 3 1", "0 3 2 -1 1"), ("2 3 1", "0 3 1 -1 1"), ("2 3 1", "0 3 0 -1 1"), ("2 3 1", "1 3 0 1 1")],
    ),
    (
        "given back",
        &[
            ("9 1 60 5", "0 10 5 -1 300"),
            ("9 1 60 -2", "0 10 7 -1 180"),
            ("9 1 60 7", "0 10 0 -1 600"),
            ("9 1 60 1", "1 10 0 60 600"),
        ],
    ),
    ("signs and zeros", &[("+5 04 060", "0 6 5 -1 15")]),
    (
        "a day",
        &[
            ("1 5 86400", "0 2 1 -1 17280"),
            ("1 5 86400", "0 2 0 -1 34560"),
            ("1 5 86400", "1 2 0 17280 34560"),
        ],
    ),
    ("a raised burst", &[("1 1 60", "0 2 1 -1 60"), ("1 1 60", "0 2 0 -1 120"), ("9 1 60", "0 10 7 -1 180")]),
    (
        "a raised rate",
        &[
            ("0 1 3600", "0 1 0 -1 3600"),
            ("9 100 60", "1 10 0 3595 3600 | 0 10 8 -1 2"),
            ("0 1 3600", "1 1 0 3600 3600"),
        ],
    ),
    (
        "a lowered limit",
        &[
            ("9 10 3600 10", "0 10 0 -1 3600"),
            ("1 2 3600 1", "1 2 0 1800 3600"),
            ("1 2 3600 0", "0 2 0 -1 3600"),
        ],
    ),
    (
        "given back beyond full",
        &[
            ("9 1 60 1", "0 10 9 -1 60"),
            ("9 1 60 -5", "Cell error: Store error: Error while setting key expire | 0 10 10 -1 0"),
            ("9 1 60 1", "0 10 9 -1 60"),
        ],
    ),
    (
        "a burst of nothing",
        &[("-1 1 60", "1 0 0 -1 0"), ("-1 1 60 0", "0 0 0 -1 0"), ("-5 1 60", "1 -4 0 -1 0")],
    ),
    ("large numbers", &[("1000000 1000000 1", "0 1000001 1000000 -1 0")]),
    (
        "more left than the limit",
        &[(
            "1000000000 1000000000 60",
            "0 1000000001 9223372036854775807 -1 0 | 0 1000000001 1000000000 -1 0",
        )],
    ),
    (
        "a burst that wraps",
        &[(
            "9223372036854775807 1 60",
            "1 -9223372036854775808 0 -1 0 | 0 9223372036854775807 9223372036854775806 -1 60",
        )],
    ),
    (
        "a rate above one in a nanosecond",
        &[("1 4611686018427387904 1", "Cell error: Store error: Zero rates are not supported | 0 2 1 -1 0")],
    ),
    (
        "a negative rate",
        &[("1 -1 60", "1 2 0 -1 0 | Cell error: Store error: Negative rates are not supported")],
    ),
];

fn cell(recorded: &str) -> &str {
    recorded.split_once(" | ").map_or(recorded, |(cell, _)| cell)
}

fn weir(recorded: &str) -> &str {
    recorded.split_once(" | ").map_or(recorded, |(_, weir)| weir)
}

#[tokio::test]
async fn weir_replies_as_redis_cell_did_except_where_that_is_wrong() {
    let server = start("domain: d", &[]).await;
    let mut client = Client::to(&server).await;
    for (series, commands) in RECORDED {
        for (arguments, recorded) in *commands {
            let key = series.replace(' ', "-");
            let reply = client.ask(&format!("CL.THROTTLE {key} {arguments}")).await;
            let reply = reply.trim_matches(['[', ']', '-']).replace(':', "");
            let reply = reply.replace("Cell error Store error", "Cell error: Store error:");
            assert_eq!(reply, weir(recorded), "{series}: {arguments}");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it sets the test, not weir")]
#[test]
fn redis_cell_still_replies_so() {
    let Ok(module) = env::var("WEIR_REDIS_CELL") else {
        eprintln!("skipped: WEIR_REDIS_CELL is not the path of redis-cell");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("redis.sock");
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).args(["--loadmodule", &module]);
    let _server = ServerProcess::start(command);
    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).expect("an address");
    let deadline = std::time::Instant::now() + crate::in_process::DEADLINE;
    let mut connection = loop {
        if let Ok(connection) = client.get_connection() {
            break connection;
        }
        assert!(std::time::Instant::now() < deadline, "redis does not start");
        std::thread::yield_now();
    };
    for (series, commands) in RECORDED {
        for (arguments, recorded) in *commands {
            let mut command = redis::cmd("CL.THROTTLE");
            command.arg(series).arg(arguments.split(' ').collect::<Vec<_>>());
            let reply = match connection.req_command(&command) {
                Ok(Value::Array(numbers)) => {
                    let number = |value: &Value| match value {
                        Value::Int(number) => number.to_string(),
                        other => panic!("no number: {other:?}"),
                    };
                    numbers.iter().map(number).collect::<Vec<_>>().join(" ")
                }
                // the client takes the first word for a code
                Ok(Value::ServerError(error)) => {
                    format!("{} {}", error.code(), error.details().unwrap_or(""))
                }
                Ok(other) => panic!("no array: {other:?}"),
                Err(error) => panic!("no reply: {error}"),
            };
            assert_eq!(reply, cell(recorded), "{series}: {arguments}");
        }
    }
}
