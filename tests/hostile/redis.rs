//! Clients of Redis' protocol that do not read the replies, or do not finish their commands.

use prost::Message as _;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    frames::{Attacker, END_HEADERS, END_STREAM, HEADERS, PART, frame, framed, header_block},
    target::{MB, Target},
    wire::{descriptor, request},
};

/// The commands of the transaction, and how many names each asks about. Their replies have 180 MB.
const COMMANDS: usize = 1_700;
const NAMES: usize = 1_000;

/// Returns a command as Redis' protocol writes it.
fn command(arguments: &[&str]) -> String {
    let parts = arguments.iter().map(|argument| format!("${}\r\n{argument}\r\n", argument.len()));
    format!("*{}\r\n{}", arguments.len(), parts.collect::<String>())
}

/// The replies of a transaction may be much longer than its commands, which are bounded.
#[tokio::test]
async fn the_replies_of_a_transaction_are_not_held() {
    let variables = [("WEIR_REDIS_PORT", "0"), ("WEIR_REDIS_HOST", "127.0.0.1"), ("WEIR_SEND_TIMEOUT", "1s")];
    let mut target = Target::start(&variables).await;
    let mut attacker = TcpStream::connect(target.address("redis")).await.expect("it listens");
    let names = ["COMMAND", "DOCS"].into_iter().chain(std::iter::repeat_n("ttl", NAMES)).collect::<Vec<_>>();
    let commands = command(&names).repeat(COMMANDS);
    let transaction = [command(&["MULTI"]), commands, command(&["EXEC"])].concat();
    attacker.write_all(transaction.as_bytes()).await.expect("it is read");
    target.until_exceeded("send_timeout", 1).await;
    target.still_serves().await;
    target.assert_grown_below(100 * MB);
}

/// Whoever does not know the password closes nobody else's connection: also not the one that holds the most.
#[tokio::test]
async fn half_a_password_on_many_connections_closes_no_other() {
    let variables = [
        ("WEIR_REDIS_PORT", "0"),
        ("WEIR_REDIS_HOST", "127.0.0.1"),
        ("WEIR_REDIS_AUTH", "secret"),
        ("WEIR_MAX_CONNECTIONS", "1600"),
        ("WEIR_MAX_BUFFERED_BYTES", "16MiB"),
    ];
    let mut target = Target::start(&variables).await;
    let mut honest = Attacker::connect(target.address("grpc"), 65_535).await;
    let message = request("d", [descriptor([("k", "x".repeat(3 * PART).as_str())])]).encode_to_vec();
    let body = framed(false, &message);
    let (last, first) =
        body.chunks(PART).collect::<Vec<_>>().split_last().map(|(l, f)| (*l, f.concat())).expect("parts");
    honest.send(&frame(HEADERS, END_HEADERS, 1, &header_block())).await;
    for part in first.chunks(PART) {
        assert!(honest.send_data(1, 0, part).await);
    }
    // most of an argument, and the beginning of one: many bytes, and many connections
    let mut open = Vec::new();
    for (count, bytes) in [(100, 16_000), (900, 5)] {
        let part = [&b"*2\r\n$4\r\nAUTH\r\n$16000\r\n"[..], &vec![b'x'; bytes - 1]].concat();
        for _ in 0..count {
            let mut stream = TcpStream::connect(target.address("redis")).await.expect("it listens");
            // those that hold the most are closed while they send
            let _ = stream.write_all(&part).await;
            open.push(stream);
        }
    }
    target.until_exceeded("unauthenticated_bytes", 1).await;
    target.until_exceeded("unauthenticated_connections", 600).await;
    for bound in ["buffered_bytes", "connections"] {
        assert_eq!(target.exceeded(bound).await, 0, "{bound}");
    }
    assert!(honest.send_data(1, END_STREAM, last).await);
    loop {
        let (kind, flags, stream, _) = honest.next().await.expect("the connection stays open");
        if (kind, stream) == (HEADERS, 1) && flags & END_STREAM != 0 {
            break;
        }
    }
    target.still_serves().await;
}
