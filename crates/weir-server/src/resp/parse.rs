//! Finds the next command in the bytes of a connection.

use std::ops::Range;

use smallvec::SmallVec;

use crate::bounds::MAX_MESSAGE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandBounds {
    /// Its name and arguments together.
    pub(super) arguments: usize,
    pub(super) bulk: usize,
}

impl CommandBounds {
    pub(super) const FULL: Self = Self { arguments: 1_024, bulk: 1 << 20 };
    pub(super) const BEFORE_AUTH: Self = Self { arguments: 10, bulk: 16 << 10 };
}

const MAX_LINE: usize = 4 << 10;

/// The longest line that announces a length: a sign, ten digits and some zeros.
const MAX_HEADER: usize = 32;

pub(super) type Ranges = SmallVec<[Range<usize>; 12]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A command of this length; its name and arguments are in the ranges.
    Command(usize),
    /// An array of this length without elements, which is no command.
    Empty(usize),
    /// A line of this length instead of an array.
    Inline(usize),
    Incomplete,
    /// No command. What follows cannot be told from it.
    Broken(Broken),
}

/// Why bytes are no command. Clients see the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("ERR Protocol error: invalid multibulk length")]
    ArrayLength,
    #[error("ERR Protocol error: a command has at most {0} arguments")]
    TooManyArguments(usize),
    #[error("ERR Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NotBulk(u8),
    #[error("ERR Protocol error: invalid bulk length")]
    BulkLength,
    #[error("ERR Protocol error: an argument has at most {0} bytes")]
    TooLongArgument(usize),
    #[error("ERR Protocol error: a command has at most {MAX_MESSAGE} bytes")]
    TooLong,
    #[error("ERR Protocol error: a bulk string does not end where it should")]
    Unterminated,
    #[error("ERR Protocol error: too big inline request")]
    LongLine,
}

impl Broken {
    pub(super) const fn is_bound(self) -> bool {
        matches!(self, Self::TooManyArguments(_) | Self::TooLongArgument(_) | Self::TooLong | Self::LongLine)
    }
}

enum CommandHeader {
    /// The length, and where the next line begins. None if it is no number.
    Length(Option<i64>, usize),
    Incomplete,
}

/// Parses what `bytes` begin with, and sets `ranges` to the parts of a command.
pub(super) fn parse(bytes: &[u8], bounds: CommandBounds, ranges: &mut Ranges) -> Parsed {
    ranges.clear();
    match bytes.first() {
        None => return Parsed::Incomplete,
        Some(b'*') => {}
        Some(_) => return inline(bytes),
    }
    let (elements, mut at) = match header(bytes, 1) {
        CommandHeader::Incomplete => return Parsed::Incomplete,
        CommandHeader::Length(None, _) => return Parsed::Broken(Broken::ArrayLength),
        CommandHeader::Length(Some(length), end) if length <= 0 => return Parsed::Empty(end),
        CommandHeader::Length(Some(length), end) => (length, end),
    };
    if usize::try_from(elements).is_ok_and(|elements| elements > bounds.arguments) {
        return Parsed::Broken(Broken::TooManyArguments(bounds.arguments));
    }
    for _ in 0..elements {
        match bytes.get(at) {
            None => return Parsed::Incomplete,
            Some(b'$') => {}
            Some(other) => return Parsed::Broken(Broken::NotBulk(*other)),
        }
        let (length, start) = match header(bytes, at + 1) {
            CommandHeader::Incomplete => return Parsed::Incomplete,
            CommandHeader::Length(length, end) => {
                (length.and_then(|length| usize::try_from(length).ok()), end)
            }
        };
        let Some(length) = length else { return Parsed::Broken(Broken::BulkLength) };
        if length > bounds.bulk {
            return Parsed::Broken(Broken::TooLongArgument(bounds.bulk));
        }
        let end = start + length;
        if end > MAX_MESSAGE {
            return Parsed::Broken(Broken::TooLong);
        }
        match bytes.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Parsed::Broken(Broken::Unterminated),
            None => return Parsed::Incomplete,
        }
        ranges.push(start..end);
        at = end + 2;
    }
    Parsed::Command(at)
}

fn header(bytes: &[u8], start: usize) -> CommandHeader {
    let rest = &bytes[start..];
    let line = &rest[..rest.len().min(MAX_HEADER)];
    match line.iter().position(|byte| *byte == b'\r') {
        // its number is no number either way
        None if line.len() == MAX_HEADER => CommandHeader::Length(None, start),
        None => CommandHeader::Incomplete,
        Some(end) => match rest.get(end + 1) {
            None => CommandHeader::Incomplete,
            Some(b'\n') => CommandHeader::Length(number(&line[..end]), start + end + 2),
            Some(_) => CommandHeader::Length(None, start),
        },
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number <= i64::from(u32::MAX))
}

fn inline(bytes: &[u8]) -> Parsed {
    let line = &bytes[..bytes.len().min(MAX_LINE)];
    match line.iter().position(|byte| *byte == b'\n') {
        Some(end) => Parsed::Inline(end + 1),
        None if line.len() == MAX_LINE => Parsed::Broken(Broken::LongLine),
        None => Parsed::Incomplete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> (Parsed, Vec<Vec<u8>>) {
        let mut ranges = Ranges::new();
        let parsed = parse(bytes, CommandBounds::FULL, &mut ranges);
        (parsed, ranges.iter().map(|range| bytes[range.clone()].to_vec()).collect())
    }

    #[test]
    fn a_command_is_found_once_it_is_complete() {
        let bytes = b"*3\r\n$6\r\nRL.GET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n*1";
        let length = bytes.len() - 2;
        for end in 0..length {
            assert_eq!(parsed(&bytes[..end]).0, Parsed::Incomplete, "{end}");
        }
        let parts = vec![b"RL.GET".to_vec(), vec![], b"a\r\nb".to_vec()];
        assert_eq!(parsed(bytes), (Parsed::Command(length), parts));
    }

    #[test]
    fn arrays_without_elements_and_lines_are_told_apart() {
        for (bytes, expected) in [
            (&b"*0\r\n*"[..], Parsed::Empty(4)),
            (b"*-1\r\n", Parsed::Empty(5)),
            (b"PING\r\n*1", Parsed::Inline(6)),
            (b"\n", Parsed::Inline(1)),
            (b"PING", Parsed::Incomplete),
        ] {
            assert_eq!(parsed(bytes).0, expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_is_no_command_or_too_large_is_told_apart_early() {
        let long = "x".repeat(MAX_LINE);
        let many = "$1048576\r\n".to_owned() + &"x".repeat(1 << 20) + "\r\n";
        let four = "*5\r\n".to_owned() + &many.repeat(4) + "$1048576\r\n";
        for (text, expected) in [
            ("*x\r\n", Broken::ArrayLength),
            ("*1\r1", Broken::ArrayLength),
            ("*00000000000000000000000000000000", Broken::ArrayLength),
            ("*1025\r\n", Broken::TooManyArguments(1_024)),
            ("*1\r\n:1\r\n", Broken::NotBulk(b':')),
            ("*1\r\n$-1\r\n", Broken::BulkLength),
            ("*1\r\n$\r\n", Broken::BulkLength),
            ("*1\r\n$1048577\r\n", Broken::TooLongArgument(1 << 20)),
            ("*1\r\n$1\r\nabc", Broken::Unterminated),
            (&four, Broken::TooLong),
            (&long, Broken::LongLine),
        ] {
            assert_eq!(
                parsed(text.as_bytes()).0,
                Parsed::Broken(expected),
                "{}",
                &text[..text.len().min(40)]
            );
        }
    }
}
