//! Clients of Redis' protocol that send commands and do not read the replies.

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::target::{MB, Target};

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
