//! A client that shows replies as short texts.

use std::fmt::Write as _;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};
use weir::app::Addresses;
use weir_server::net::BoundAddress;

use crate::in_process::{DEADLINE, Weir};

/// A connection to the port of Redis' protocol.
pub(crate) struct Client(BufReader<TcpStream>);

/// Returns the port of Redis' protocol.
pub(crate) fn port(addresses: &Addresses) -> u16 {
    match &addresses.redis {
        Some(BoundAddress::Tcp(address)) => address.port(),
        other => panic!("no port: {other:?}"),
    }
}

/// Starts weir with these rules and variables, with its port of Redis' protocol on.
pub(crate) async fn start(rules: &str, variables: &[(&str, &str)]) -> Weir {
    Weir::start_with(
        rules,
        &[&[("WEIR_REDIS_PORT", "0"), ("WEIR_REDIS_HOST", "127.0.0.1")], variables].concat(),
    )
    .await
}

/// As [`start`], with counters on disk.
pub(crate) async fn start_on_disk(rules: &str, variables: &[(&str, &str)]) -> Weir {
    let on_disk =
        [("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", "{dir}/data"), ("WEIR_DECISION_BUDGET", "20s")];
    start(rules, &[&on_disk, variables].concat()).await
}

/// Returns the bytes of a command.
pub(crate) fn command<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

// === impl Client ===

impl Client {
    pub(crate) async fn to(weir: &Weir) -> Self {
        Self::connect(port(&weir.addresses)).await
    }

    pub(crate) async fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
        stream.set_nodelay(true).expect("an option");
        Self(BufReader::new(stream))
    }

    /// Sends a command whose arguments contain no spaces, and returns its reply.
    pub(crate) async fn ask(&mut self, text: &str) -> String {
        let arguments: Vec<&str> = text.split(' ').collect();
        self.ask_of(&arguments).await
    }

    /// Sends a command of any arguments, and returns its reply.
    pub(crate) async fn ask_of<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> String {
        self.send(&command(arguments)).await;
        self.reply().await
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        assert!(self.try_send(bytes).await, "it is read");
    }

    /// Sends `bytes`. Returns whether the connection is open.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.0.get_mut().write_all(bytes).await.is_ok()
    }

    /// Returns the next reply: `:1`, `+OK`, `-ERR …`, `"bulk"`, `[elements]`, `{key: value}` or `nil`.
    pub(crate) async fn reply(&mut self) -> String {
        timeout(DEADLINE, self.next_reply()).await.expect("a reply in time").expect("a reply")
    }

    /// Waits until the other end has closed the connection. Returns what it sent until then.
    pub(crate) async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let read = timeout(DEADLINE, self.0.read_to_end(&mut rest)).await.expect("the end in time");
        // a close with unread bytes is an error to the client
        let _ = read;
        String::from_utf8_lossy(&rest).into_owned()
    }

    async fn next_reply(&mut self) -> Option<String> {
        let line = self.line().await?;
        let (kind, rest) = line.split_at(1);
        let length = rest.parse::<i64>().unwrap_or(-1);
        Some(match kind {
            "+" | "-" | ":" => line,
            "_" => "nil".into(),
            "$" | "=" | "*" | "~" if length < 0 => "nil".into(),
            "$" | "=" => {
                let mut bytes = vec![0; usize::try_from(length).expect("a length") + 2];
                self.0.read_exact(&mut bytes).await.ok()?;
                format!("\"{}\"", bytes[..bytes.len() - 2].escape_ascii())
            }
            "*" | "~" => {
                let mut parts = Vec::new();
                for _ in 0..length {
                    parts.push(Box::pin(self.next_reply()).await?);
                }
                format!("[{}]", parts.join(" "))
            }
            "%" => {
                let mut text = String::from("{");
                for i in 0..length {
                    let (key, value) =
                        (Box::pin(self.next_reply()).await?, Box::pin(self.next_reply()).await?);
                    let separator = if i > 0 { ", " } else { "" };
                    write!(text, "{separator}{key}: {value}").expect("to memory");
                }
                text + "}"
            }
            _ => panic!("no reply: {line}"),
        })
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.0.read_u8().await.ok()?);
        }
        line.truncate(line.len() - 2);
        Some(String::from_utf8(line).expect("text"))
    }
}
