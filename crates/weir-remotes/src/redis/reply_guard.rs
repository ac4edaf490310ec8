//! Bounds what connections accept: a server whose replies have no end, or many parts, must not fill the memory.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use redis::Value;
use tokio::io::{AsyncRead, ReadBuf};

/// In bytes. The longest that weir asks for are the slots of a cluster of thousands of servers.
const MAX_REPLY: u64 = 16 * 1024 * 1024;

/// In bytes: an error, a number, or a length.
const MAX_LINE: usize = 64 * 1024;

/// Bytes that callers of one connection have not received: several times the slots of a cluster of a thousand servers.
const MAX_HELD: u64 = 64 * 1024 * 1024;

/// Beyond this, connections that hold more than [`SMALL`] fail, so that one server of many does not disturb the others.
const MAX_HELD_BY_ALL: u64 = 2 * MAX_HELD;
const SMALL: u64 = 128 * 1024;

/// Bytes of a value, and of its list of values. Both have room for more, since lists grow by doubling.
const VALUE_BYTES: u64 = 128;
const LIST_BYTES: u64 = 256;

static HELD_BY_ALL: AtomicU64 = AtomicU64::new(0);

/// Bytes of replies that their callers have not received. Counted a little too high rather than too low.
#[derive(Debug, Default)]
pub(super) struct HeldReplies(AtomicU64);

/// A reader that fails at a reply that exceeds the bounds, or is not in Redis' protocol.
pub(super) struct ReplyGuard<S> {
    reader: S,
    scanner: ReplyScanner,
    held: Arc<HeldReplies>,
}

/// Follows replies just closely enough to know how long they are.
#[derive(Debug, Default)]
struct ReplyScanner {
    line: Vec<u8>,
    /// The bytes of a text that are still to come, its line end included.
    text: u64,
    /// The values of the current reply that are still to come.
    values: u64,
    reply: u64,
    /// The memory for what was scanned and is not counted in [`HeldReplies`] yet.
    memory: u64,
}

impl<S> ReplyGuard<S> {
    pub(super) fn new(reader: S, held: Arc<HeldReplies>) -> Self {
        Self { reader, scanner: ReplyScanner::default(), held }
    }
}

impl HeldReplies {
    fn add(&self, memory: u64) -> Result<(), &'static str> {
        let own = self.0.fetch_add(memory, Ordering::Relaxed) + memory;
        let all = HELD_BY_ALL.fetch_add(memory, Ordering::Relaxed) + memory;
        if own > MAX_HELD || all > MAX_HELD_BY_ALL && own > SMALL {
            return Err("its replies need too much memory");
        }
        Ok(())
    }

    pub(super) fn received(&self, values: &[Value]) {
        let mut given_back = 0;
        let memory = values.iter().map(memory).sum::<u64>();
        // never below zero: the memory of an error is not exactly known
        let less = |own: u64| {
            given_back = own.min(memory);
            Some(own - given_back)
        };
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        HELD_BY_ALL.fetch_sub(given_back, Ordering::Relaxed);
    }
}

impl Drop for HeldReplies {
    fn drop(&mut self) {
        HELD_BY_ALL.fetch_sub(*self.0.get_mut(), Ordering::Relaxed);
    }
}

fn memory(value: &Value) -> u64 {
    let list = |len: usize| if len == 0 { 0 } else { LIST_BYTES };
    let pairs = |pairs: &[(Value, Value)]| {
        list(pairs.len()) + pairs.iter().map(|(key, value)| memory(key) + memory(value)).sum::<u64>()
    };
    VALUE_BYTES
        + match value {
            Value::BulkString(bytes) => bytes.len() as u64,
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.len() as u64,
            Value::Okay => "OK".len() as u64,
            Value::ServerError(error) => {
                (error.code().len() + error.details().map_or(0, |details| 1 + details.len())) as u64
            }
            Value::Array(values) | Value::Set(values) => {
                list(values.len()) + values.iter().map(memory).sum::<u64>()
            }
            Value::Push { data, .. } => list(data.len()) + data.iter().map(memory).sum::<u64>(),
            Value::Map(map) => pairs(map),
            Value::Attribute { data, attributes } => memory(data) + pairs(attributes),
            _ => 0,
        }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReplyGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(cx, buf))?;
        let Self { scanner, held, .. } = &mut *self;
        let read = scanner.scan(&buf.filled()[before..]);
        let read = read.and_then(|()| held.add(std::mem::take(&mut scanner.memory)));
        Poll::Ready(read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

// === impl ReplyScanner ===

impl ReplyScanner {
    fn scan(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            if self.text > 0 {
                let skipped = self.text.min(bytes.len() as u64);
                bytes = &bytes[usize::try_from(skipped).unwrap_or(bytes.len())..];
                self.text -= skipped;
                self.end_if_complete();
                continue;
            }
            let (part, rest, ended) = match bytes.iter().position(|byte| *byte == b'\n') {
                Some(end) => (&bytes[..end], &bytes[end + 1..], true),
                None => (bytes, &[][..], false),
            };
            if self.line.len() + part.len() > MAX_LINE {
                return Err("a line of the reply is too long");
            }
            self.line.extend_from_slice(part);
            bytes = rest;
            if ended {
                let line = std::mem::take(&mut self.line);
                self.begin_value(line.strip_suffix(b"\r").ok_or("the reply is malformed")?)?;
                // keeps its memory
                self.line = line;
                self.line.clear();
                self.end_if_complete();
            }
        }
        Ok(())
    }

    fn begin_value(&mut self, line: &[u8]) -> Result<(), &'static str> {
        const MALFORMED: &str = "the reply is malformed";
        let (kind, rest) = line.split_first().ok_or(MALFORMED)?;
        let length = || -> Result<Option<u64>, &'static str> {
            let length: i64 =
                std::str::from_utf8(rest).ok().and_then(|text| text.parse().ok()).ok_or(MALFORMED)?;
            match u64::try_from(length) {
                Ok(length) if length > MAX_REPLY => Err("the reply is too long"),
                Ok(length) => Ok(Some(length)),
                // absent
                Err(_) if length == -1 => Ok(None),
                Err(_) => Err(MALFORMED),
            }
        };
        if self.values == 0 {
            self.values = 1;
            self.memory += VALUE_BYTES;
        }
        self.values -= 1;
        self.reply += line.len() as u64 + 2;
        let values = self.values;
        match kind {
            b'$' => self.begin_text(length()?),
            b'=' | b'!' => self.begin_text(Some(length()?.ok_or(MALFORMED)?)),
            b'*' | b'~' | b'>' => self.values += length()?.unwrap_or_default(),
            b'%' => self.values += 2 * length()?.ok_or(MALFORMED)?,
            // attributes go before the value that they are about
            b'|' => self.values += 2 * length()?.ok_or(MALFORMED)? + 1,
            b'+' | b'-' | b'(' => self.memory += rest.len() as u64,
            b':' | b'_' | b'#' | b',' => {}
            _ => return Err(MALFORMED),
        }
        if self.values > values {
            // the parser makes room for all of them at once
            self.memory += LIST_BYTES + (self.values - values) * VALUE_BYTES;
        }
        // every value that is announced takes some bytes
        if self.reply + self.values > MAX_REPLY { Err("the reply is too long") } else { Ok(()) }
    }

    fn begin_text(&mut self, length: Option<u64>) {
        // it is allocated when it is complete, but its bytes are kept until then
        self.memory += length.unwrap_or_default();
        // its line end follows it
        self.text = length.map_or(0, |length| length + 2);
        self.reply += self.text;
    }

    fn end_if_complete(&mut self) {
        if self.text == 0 && self.values == 0 {
            self.reply = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(bytes: &[u8], size: usize) -> Result<ReplyScanner, &'static str> {
        let mut scanner = ReplyScanner::default();
        bytes.chunks(size).try_for_each(|part| scanner.scan(part))?;
        Ok(scanner)
    }

    #[test]
    fn replies_of_every_kind_pass_in_parts_of_any_size() {
        let replies = "*2\r\n$4\r\n3\r\n0\r\n$-1\r\n+OK\r\n-ERR no\r\n:5\r\n%1\r\n+proto\r\n:3\r\n_\r\n#t\r\n,1.5\r\n(12\r\n\
                       =7\r\ntxt:a\r\n\r\n!5\r\nERR x\r\n~1\r\n:1\r\n>2\r\n+a\r\n+b\r\n|1\r\n+a\r\n+b\r\n:1\r\n*-1\r\n*0\r\n";
        for size in 1..replies.len() {
            let scanner = scan(replies.as_bytes(), size).expect("all are valid");
            assert_eq!(
                (scanner.values, scanner.text, scanner.reply, scanner.line.len()),
                (0, 0, 0, 0),
                "{size}"
            );
        }
    }

    #[test]
    fn the_memory_of_a_reply_is_that_of_its_value() {
        for reply in [
            "*2\r\n$4\r\n3\r\n0\r\n$-1\r\n",
            "+OK\r\n",
            "+PONG\r\n",
            "-NOSCRIPT No matching script\r\n",
            "-ODD\r\n",
            ":5\r\n",
            "%2\r\n+proto\r\n:3\r\n+modules\r\n*0\r\n",
            "~1\r\n*3\r\n#t\r\n,1.5\r\n_\r\n",
            "*1\r\n*1\r\n*-1\r\n",
        ] {
            let value = redis::parse_redis_value(reply.as_bytes()).expect("it is valid");
            let scanner = scan(reply.as_bytes(), 2).expect("it is valid");
            assert_eq!(scanner.memory, memory(&value), "{reply}");
        }
    }

    #[tokio::test]
    async fn replies_that_nobody_receives_are_bounded() {
        let reply = format!("*1000\r\n{}", "*1\r\n:1\r\n".repeat(1_000));
        let value = redis::parse_redis_value(reply.as_bytes()).expect("it is valid");
        let taken = |receives: bool| {
            let held = HeldReplies::default();
            let mut scanner = ReplyScanner::default();
            (0..1_000).position(|_| {
                scanner.scan(reply.as_bytes()).expect("it is valid");
                let is_too_much = held.add(std::mem::take(&mut scanner.memory)).is_err();
                if receives {
                    held.received(std::slice::from_ref(&value));
                }
                is_too_much
            })
        };
        assert_eq!(taken(true), None, "each is small");
        assert!(taken(false).is_some_and(|replies| (100..200).contains(&replies)));
        let tiny = ["*1048576\r\n".to_owned(), "*0\r\n".repeat(1 << 20)].concat();
        let scanner = scan(tiny.as_bytes(), 1 << 16).expect("it is short enough");
        assert!(HeldReplies::default().add(scanner.memory).is_err(), "it has too many parts");
    }

    #[test]
    fn many_replies_may_exceed_the_bound_of_one() {
        let reply = [b"$1000000\r\n", vec![b'x'; 1_000_000].as_slice(), b"\r\n"].concat();
        let mut scanner = ReplyScanner::default();
        for _ in 0..40 {
            scanner.scan(&reply).expect("each is short");
        }
        let mut scanner = ReplyScanner::default();
        scanner.scan(b"*40\r\n").expect("few values");
        assert!((0..40).any(|_| scanner.scan(&reply).is_err()), "together they are one reply");
    }

    #[test]
    fn replies_without_end_are_errors() {
        for reply in [
            "$99999999999\r\n",
            "*9223372036854775807\r\n",
            "%9223372036854775807\r\n",
            "|16777216\r\n",
            "=-5\r\n",
            "!-1\r\n",
            "$-7\r\n",
            "*x\r\n",
            "\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
            "+OK\n",
        ] {
            assert!(scan(reply.as_bytes(), 3).is_err(), "{reply}");
        }
        assert!(scan(&vec![b'+'; MAX_LINE + 1], 1_000).is_err());
        let nested = "*1000000\r\n".repeat(20);
        assert!(scan(nested.as_bytes(), 100).is_err(), "values that are announced count");
    }
}
