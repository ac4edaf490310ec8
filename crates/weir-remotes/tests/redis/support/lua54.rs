//! A Redis whose scripts run in Lua 5.4, as those of Dragonfly do. A real server does everything else.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;

use super::Server;

/// The server. Its threads last as long as the test's process.
pub(crate) struct Lua54 {
    port: u16,
    /// The real one behind it.
    pub(crate) server: Server,
}

/// What all connections share: the scripts by their hashes. Locked while one runs.
type Scripts = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// A connection of a client, and its connection to the real server.
struct Connection {
    client: BufReader<TcpStream>,
    server: BufReader<TcpStream>,
    lua: Lua,
    scripts: Scripts,
}

/// The interpreter, which is killed on drop.
struct Lua {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

// === impl Lua54 ===

impl Lua54 {
    pub(crate) fn start() -> Self {
        let server = Server::start();
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let (scripts, behind) = (Scripts::default(), server.port());
        thread::spawn(move || {
            for client in listener.incoming() {
                let connection = Connection {
                    client: BufReader::new(client.expect("a connection")),
                    server: BufReader::new(TcpStream::connect(("127.0.0.1", behind)).expect("it listens")),
                    lua: Lua::start(),
                    scripts: Arc::clone(&scripts),
                };
                thread::spawn(move || connection.serve());
            }
        });
        Self { port, server }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

// === impl Connection ===

impl Connection {
    /// Replies to commands until the client closes the connection.
    fn serve(mut self) -> Option<()> {
        self.client.get_ref().set_nodelay(true).ok()?;
        self.server.get_ref().set_nodelay(true).ok()?;
        loop {
            let (bytes, command) = read_command(&mut self.client)?;
            let reply = match &command[0][..] {
                // RESP2 will do
                b"HELLO" => b"-ERR unknown command 'HELLO'\r\n".to_vec(),
                b"SCRIPT" => {
                    let reply = self.ask(&bytes)?;
                    let sha = reply.split(|byte| *byte == b'\n').nth(1)?.trim_ascii().to_vec();
                    self.scripts.lock().insert(sha, command[2].clone());
                    reply
                }
                b"EVALSHA" | b"EVAL" => self.run(command)?,
                _ => self.ask(&bytes)?,
            };
            self.client.get_mut().write_all(&reply).ok()?;
        }
    }

    /// Sends a command to the real server, and returns its reply.
    fn ask(&mut self, command: &[u8]) -> Option<Vec<u8>> {
        self.server.get_mut().write_all(command).ok()?;
        read_reply(&mut self.server)
    }

    fn run(&mut self, command: Vec<Vec<u8>>) -> Option<Vec<u8>> {
        let scripts = Arc::clone(&self.scripts);
        let scripts = scripts.lock();
        let mut parts = command.into_iter();
        let (verb, text) = (parts.next()?, parts.next()?);
        let text = if verb == b"EVAL" { Some(text) } else { scripts.get(&text).cloned() };
        let Some(text) = text else { return Some(b"-NOSCRIPT No matching script.\r\n".to_vec()) };
        let parts: Vec<Vec<u8>> = std::iter::once(text).chain(parts).collect();
        self.lua.stdin.write_all(&encode(&parts)).expect("it reads");
        loop {
            let mut line = String::new();
            self.lua.stdout.read_line(&mut line).expect("it writes");
            match &*line {
                "call\n" => {
                    let (command, _) = read_command(&mut self.lua.stdout).expect("a command");
                    let reply = self.ask(&command)?;
                    self.lua.stdin.write_all(&reply).expect("it reads");
                }
                "reply\n" => return read_reply(&mut self.lua.stdout),
                line => panic!("{line:?}"),
            }
        }
    }
}

// === impl Lua ===

impl Lua {
    fn start() -> Self {
        let mut process = Command::new("lua5.4")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis/support/lua54.lua"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("lua5.4 can be started: `make tools` installs it");
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        Self {
            process,
            stdin: stdin.expect("it is piped"),
            stdout: BufReader::new(stdout.expect("it is piped")),
        }
    }
}

impl Drop for Lua {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a command of `parts` in Redis' protocol.
fn encode(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Reads a command: its bytes, and its parts. Returns none at the end of the stream.
fn read_command(reader: &mut impl BufRead) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let mut bytes = Vec::new();
    let count = read_line(reader, &mut bytes)?;
    let mut parts = Vec::new();
    for _ in 0..count {
        parts.push(read_text(reader, &mut bytes)?);
    }
    Some((bytes, parts))
}

/// Reads the bytes of a reply in RESP2.
fn read_reply(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let (mut bytes, mut left) = (Vec::new(), 1);
    while left > 0 {
        left -= 1;
        match reader.fill_buf().ok()?.first()? {
            b'$' => drop(read_text(reader, &mut bytes)?),
            b'*' => left += read_line(reader, &mut bytes)?.max(0),
            _ => drop(reader.read_until(b'\n', &mut bytes).ok()?),
        }
    }
    Some(bytes)
}

/// Reads a line with a length, and returns that.
fn read_line(reader: &mut impl BufRead, bytes: &mut Vec<u8>) -> Option<i64> {
    let begin = bytes.len();
    reader.read_until(b'\n', bytes).ok()?;
    std::str::from_utf8(bytes.get(begin + 1..)?).ok()?.trim_end().parse().ok()
}

fn read_text(reader: &mut impl BufRead, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let Ok(length) = usize::try_from(read_line(reader, bytes)?) else { return Some(Vec::new()) };
    let mut text = vec![0; length + 2];
    reader.read_exact(&mut text).ok()?;
    bytes.extend_from_slice(&text);
    text.truncate(length);
    Some(text)
}
