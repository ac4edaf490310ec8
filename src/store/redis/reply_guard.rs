//! Bounds what one connection accepts: a server whose replies have no end must not fill the memory.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes of one reply. The longest that weir asks for are the slots of a cluster of thousands of servers.
const MAX_REPLY: u64 = 16 * 1024 * 1024;

/// The most bytes of one line: an error, a number, or a length.
const MAX_LINE: usize = 64 * 1024;

/// A stream that fails at a reply that exceeds the bounds, or is not in Redis' protocol.
pub(super) struct ReplyGuard<S> {
    stream: S,
    scanner: ReplyScanner,
}

/// Follows replies just closely enough to know how long they are.
#[derive(Debug, Default)]
struct ReplyScanner {
    /// The current line so far, without its end.
    line: Vec<u8>,
    /// The bytes of a text that are still to come, its line end included.
    text: u64,
    /// The values of the current reply that are still to come.
    values: u64,
    /// The bytes of the current reply so far.
    reply: u64,
}

impl<S> ReplyGuard<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, scanner: ReplyScanner::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReplyGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = self.scanner.scan(&buf.filled()[before..]);
        Poll::Ready(read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReplyGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

// === impl ReplyScanner ===

impl ReplyScanner {
    /// Follows `bytes`, the next ones of the stream.
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

    /// Follows the first line of a value.
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
        }
        self.values -= 1;
        self.reply += line.len() as u64 + 2;
        match kind {
            b'$' => self.begin_text(length()?),
            b'=' | b'!' => self.begin_text(Some(length()?.ok_or(MALFORMED)?)),
            b'*' | b'~' | b'>' => self.values += length()?.unwrap_or_default(),
            b'%' => self.values += 2 * length()?.ok_or(MALFORMED)?,
            // attributes go before the value that they are about
            b'|' => self.values += 2 * length()?.ok_or(MALFORMED)? + 1,
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            _ => return Err(MALFORMED),
        }
        // every value that is announced takes some bytes
        if self.reply + self.values > MAX_REPLY { Err("the reply is too long") } else { Ok(()) }
    }

    fn begin_text(&mut self, length: Option<u64>) {
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

    /// Scans `bytes` in parts of `size` bytes.
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
