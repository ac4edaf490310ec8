//! The text of commands and replies: Memcached's meta commands, each with one reply.
//!
//! | command | does |
//! | --- | --- |
//! | `ma KEY N60 J5 D5 v` | adds 5, or creates the counter with 5 for 60 seconds; returns the value |
//! | `ma KEY MD D5` | subtracts 5, but stops at zero; creates nothing |
//! | `mg KEY v c` | returns the value and its version |
//! | `ms KEY 1 C7 T60` | replaces the value of version 7 |
//! | `mn` | nothing; its reply shows that replies and commands still correspond |

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

const MAX_LINE: u64 = 2_048;

/// 20 digits, and spaces where a shorter number has replaced a longer one.
const MAX_VALUE: usize = 64;

const TOO_OLD: &str = "it does not know the meta commands: weir needs Memcached 1.6.10 or later";

/// With its line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetaCommand(pub(super) Vec<u8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyExpiry(u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MetaReply {
    Value(MetaNumber),
    Foreign,
    Done,
    Missing,
    Changed,
    NoOp,
    Rejected(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetaNumber {
    pub(super) value: u64,
    pub(super) version: Option<u64>,
    /// Memcached shortens no value, so spaces may follow the digits. envoyproxy/ratelimit does not read such a number.
    pub(super) is_padded: bool,
}

// === impl MetaCommand ===

impl MetaCommand {
    /// Creates the counter if it is missing.
    pub(super) fn add(key: &str, hits: u64, expiry: KeyExpiry) -> Self {
        let mut buffers = [itoa::Buffer::new(), itoa::Buffer::new()];
        let [first, second] = &mut buffers;
        let (expiry, hits) = (first.format(expiry.0), second.format(hits));
        Self::of(&["ma ", key, " N", expiry, " J", hits, " D", hits, " v"])
    }

    pub(super) fn subtract(key: &str, hits: u64) -> Self {
        Self::of(&["ma ", key, " MD D", itoa::Buffer::new().format(hits)])
    }

    pub(super) fn get(key: &str) -> Self {
        Self::of(&["mg ", key, " v c"])
    }

    pub(super) fn replace(key: &str, value: u64, version: u64, expiry: KeyExpiry) -> Self {
        let mut buffers = [(); 4].map(|()| itoa::Buffer::new());
        let [first, second, third, fourth] = &mut buffers;
        let value = first.format(value);
        let (length, version) = (second.format(value.len()), third.format(version));
        let expiry = fourth.format(expiry.0);
        Self::of(&["ms ", key, " ", length, " C", version, " T", expiry, "\r\n", value])
    }

    pub(super) fn no_op() -> Self {
        Self::of(&["mn"])
    }

    fn of(parts: &[&str]) -> Self {
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>() + 2);
        for part in parts {
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        Self(bytes)
    }
}

// === impl KeyExpiry ===

impl KeyExpiry {
    /// `now` is in seconds since the epoch. Memcached takes more than 30 days for a time since the epoch, but reads
    /// none after 2038: such counters do not expire, but are evicted when memory is needed.
    pub(super) fn after(seconds: u64, now: u64) -> Self {
        const LONGEST: u64 = 30 * 86_400;
        let expiry = if seconds <= LONGEST { seconds.max(1) } else { now.saturating_add(seconds) };
        Self(u32::try_from(expiry).ok().filter(|expiry| i32::try_from(*expiry).is_ok()).unwrap_or(0))
    }
}

/// Memory is bounded, however long the reply is. `line` is overwritten.
pub(super) async fn read_reply<R: AsyncBufRead + Unpin>(
    reader: &mut R,
    line: &mut Vec<u8>,
) -> io::Result<MetaReply> {
    line.clear();
    (&mut *reader).take(MAX_LINE).read_until(b'\n', line).await?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection"));
    }
    let text = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok());
    let text = text.ok_or_else(malformed)?;
    let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
    Ok(match code {
        "VA" => {
            let mut flags = rest.split(' ');
            let size: u64 = flags.next().and_then(|size| size.parse().ok()).ok_or_else(malformed)?;
            let version = flags.find_map(|flag| flag.strip_prefix('c')?.parse().ok());
            read_value(reader, size, version).await?
        }
        "HD" => MetaReply::Done,
        "EN" | "NF" => MetaReply::Missing,
        "EX" => MetaReply::Changed,
        "MN" => MetaReply::NoOp,
        "NS" => MetaReply::Rejected("it did not store the counter".into()),
        "CLIENT_ERROR" if rest.contains("non-numeric") => MetaReply::Foreign,
        "CLIENT_ERROR" | "SERVER_ERROR" => MetaReply::Rejected(rest.to_owned()),
        "ERROR" if rest.is_empty() => return Err(io::Error::new(io::ErrorKind::Unsupported, TOO_OLD)),
        // such as `ERROR Too many open connections`
        "ERROR" => return Err(io::Error::other(rest.to_owned())),
        _ => return Err(malformed()),
    })
}

async fn read_value<R: AsyncBufRead + Unpin>(
    reader: &mut R,
    size: u64,
    version: Option<u64>,
) -> io::Result<MetaReply> {
    let mut value = [0; MAX_VALUE + 2];
    let end = usize::try_from(size).ok().and_then(|size| size.checked_add(2));
    let Some(value) = end.and_then(|end| value.get_mut(..end)) else {
        let with_line_end = size.checked_add(2).ok_or_else(malformed)?;
        let mut rest = reader.take(with_line_end);
        tokio::io::copy_buf(&mut rest, &mut tokio::io::sink()).await?;
        return Ok(MetaReply::Foreign);
    };
    reader.read_exact(value).await?;
    let text = value.strip_suffix(b"\r\n").ok_or_else(malformed)?;
    let number = std::str::from_utf8(text).ok().map(|text| text.trim_end_matches(' '));
    let parsed = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(match parsed.and_then(|number| Some((number.len(), number.parse().ok()?))) {
        Some((digits, value)) => {
            MetaReply::Value(MetaNumber { value, version, is_padded: digits < text.len() })
        }
        None => MetaReply::Foreign,
    })
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its reply is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(command: &MetaCommand) -> &str {
        std::str::from_utf8(&command.0).expect("it is text")
    }

    async fn read(bytes: &[u8]) -> io::Result<Vec<MetaReply>> {
        let (mut rest, mut replies) = (bytes, Vec::new());
        while !rest.is_empty() {
            replies.push(read_reply(&mut rest, &mut Vec::new()).await?);
        }
        Ok(replies)
    }

    const fn number(value: u64) -> MetaReply {
        MetaReply::Value(MetaNumber { value, version: None, is_padded: false })
    }

    #[test]
    fn commands_have_the_documented_text() {
        let hour = KeyExpiry::after(3_600, 0);
        assert_eq!(text(&MetaCommand::add("k", 5, hour)), "ma k N3600 J5 D5 v\r\n");
        assert_eq!(text(&MetaCommand::subtract("k", 5)), "ma k MD D5\r\n");
        assert_eq!(text(&MetaCommand::get("k")), "mg k v c\r\n");
        assert_eq!(text(&MetaCommand::replace("k", 12, 7, hour)), "ms k 2 C7 T3600\r\n12\r\n");
        assert_eq!(text(&MetaCommand::no_op()), "mn\r\n");
    }

    #[test]
    fn long_lives_end_at_a_time_since_the_epoch() {
        const MONTH: u64 = 30 * 86_400;
        const NOW: u64 = 1_800_000_000;
        assert_eq!(KeyExpiry::after(0, NOW), KeyExpiry(1));
        assert_eq!(KeyExpiry::after(MONTH, NOW), KeyExpiry(2_592_000));
        assert_eq!(KeyExpiry::after(MONTH + 1, NOW), KeyExpiry(1_802_592_001));
        assert_eq!(KeyExpiry::after(1 << 31, NOW), KeyExpiry(0), "Memcached reads no later time");
        assert_eq!(KeyExpiry::after(u64::MAX, NOW), KeyExpiry(0));
    }

    #[tokio::test]
    async fn replies_are_read() {
        let replies = "VA 1\r\n5\r\nVA 2 c77 t-1\r\n9 \r\nHD\r\nEN\r\nNF\r\nEX\r\nNS\r\nMN\r\nVA 3\r\nabc\r\nVA 0\r\n\r\n\
                       CLIENT_ERROR cannot increment or decrement non-numeric value\r\n\
                       SERVER_ERROR out of memory storing object\r\nVA 20\r\n18446744073709551615\r\n";
        let padded = MetaReply::Value(MetaNumber { value: 9, version: Some(77), is_padded: true });
        let rejected = |text: &str| MetaReply::Rejected(text.into());
        assert_eq!(
            read(replies.as_bytes()).await.expect("all are valid"),
            [
                number(5),
                padded,
                MetaReply::Done,
                MetaReply::Missing,
                MetaReply::Missing,
                MetaReply::Changed,
                rejected("it did not store the counter"),
                MetaReply::NoOp,
                MetaReply::Foreign,
                MetaReply::Foreign,
                MetaReply::Foreign,
                rejected("out of memory storing object"),
                number(u64::MAX),
            ]
        );
    }

    #[tokio::test]
    async fn long_foreign_values_are_skipped() {
        let value = "7".repeat(100_000);
        let replies =
            read(format!("VA 100000\r\n{value}\r\nMN\r\n").as_bytes()).await.expect("they are valid");
        assert_eq!(replies, [MetaReply::Foreign, MetaReply::NoOp]);
    }

    #[tokio::test]
    async fn malformed_replies_are_errors() {
        for reply in [
            "HD\n",
            "VA\r\n",
            "VA x\r\n",
            "VA -1\r\n",
            "VA 1\r\n55\r\n",
            "VA 5\r\n1",
            "VA 18446744073709551615\r\n1",
            "HTTP/1.1 400 Bad\r\n",
        ] {
            assert!(read(reply.as_bytes()).await.is_err(), "{reply}");
        }
        let endless = vec![b'x'; 1 << 20];
        assert!(read(&endless).await.is_err());
        let error = read(b"ERROR\r\n").await.expect_err("it knows no meta commands");
        assert!(error.to_string().contains("1.6.10"), "{error}");
        let error = read(b"ERROR Too many open connections\r\n").await.expect_err("it will close");
        assert_eq!(error.to_string(), "Too many open connections");
    }
}
