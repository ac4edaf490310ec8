//! A server in the test's process that speaks Redis' protocol: it replies as the test says, and records what it
//! received.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The reply to a command, or none for the usual one.
type ReplyTo = dyn Fn(&[String]) -> Option<String> + Send + Sync;

/// A fake server. Connections last as long as the test's runtime.
pub struct FakeRedis {
    address: SocketAddr,
    shared: Arc<FakeState>,
}

struct FakeState {
    reply: Mutex<Arc<ReplyTo>>,
    received: Mutex<Vec<Vec<String>>>,
    /// While it is true, nothing is replied.
    held: watch::Sender<bool>,
}

// === impl FakeRedis ===

impl FakeRedis {
    /// Starts a server with the usual replies.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(FakeState {
            reply: Mutex::new(Arc::new(|_: &[String]| None)),
            received: Mutex::default(),
            held: watch::Sender::new(false),
        });
        let state = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&state)));
            }
        });
        Self { address, shared }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Replies to each command, from now on, with what `reply` returns in Redis' protocol; as usual where that is none.
    pub fn reply(&self, reply: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static) {
        *self.shared.reply.lock() = Arc::new(reply);
    }

    /// Holds all replies back, or sends them.
    pub fn hold(&self, held: bool) {
        self.shared.held.send_replace(held);
    }

    /// Returns how many commands it has received whose first argument, or first two, begin with `start`.
    pub fn received(&self, start: &str) -> usize {
        self.shared.received.lock().iter().filter(|command| command.join(" ").starts_with(start)).count()
    }
}

async fn serve(stream: TcpStream, state: Arc<FakeState>) -> Option<()> {
    stream.set_nodelay(true).expect("it is a TCP socket");
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let (replies, mut pending) = tokio::sync::mpsc::unbounded_channel::<String>();
    let mut held = state.held.subscribe();
    tokio::spawn(async move {
        while let Some(reply) = pending.recv().await {
            held.wait_for(|held| !held).await.ok()?;
            writer.write_all(reply.as_bytes()).await.ok()?;
        }
        Some(())
    });
    loop {
        let command = read_command(&mut reader).await?;
        let reply = Arc::clone(&state.reply.lock());
        let reply = reply(&command).unwrap_or_else(|| usual_reply(&command));
        state.received.lock().push(command);
        replies.send(reply).ok()?;
    }
}

/// Reads an array of bulk strings. Returns none at the end of the stream.
async fn read_command(reader: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Vec<String>> {
    let count = read_length(reader, '*').await?;
    let mut command = Vec::new();
    for _ in 0..count {
        let mut bytes = vec![0; read_length(reader, '$').await? + 2];
        reader.read_exact(&mut bytes).await.ok()?;
        bytes.truncate(bytes.len() - 2);
        command.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    Some(command)
}

async fn read_length(reader: &mut (impl AsyncBufReadExt + Unpin), kind: char) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).await.ok()?;
    line.strip_prefix(kind)?.trim_end().parse().ok()
}

fn usual_reply(command: &[String]) -> String {
    match command[0].as_str() {
        "HELLO" => "%1\r\n+proto\r\n:3\r\n".into(),
        "TIME" => "*2\r\n$4\r\n3600\r\n$1\r\n0\r\n".into(),
        "INCRBY" => format!(":{}\r\n", command[2]),
        "EXPIRE" => ":1\r\n".into(),
        _ => "+OK\r\n".into(),
    }
}
