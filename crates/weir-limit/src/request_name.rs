//! The name that an answer gives a running request, and that its end brings back: the name of its places, and the
//! entries of the descriptors that hold them.
//!
//! It is text, as proxies keep it: base64url (RFC 4648) of the twelve bytes of the [`PlaceName`], a dot, and base64url of
//! the descriptors. A descriptor is the number of its entries, then their keys and values, each after its length;
//! numbers are little-endian in groups of seven bits, the highest bit set but in the last one.

use smallvec::SmallVec;

use super::{descriptor::Entry, place::PlaceName};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The digits of a place's name.
const NAME_DIGITS: usize = PlaceName::LEN / 3 * 4;

/// A name that was sent back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestName {
    /// The name of its places.
    pub place: PlaceName,
    descriptors: Vec<u8>,
}

// === impl RequestName ===

impl RequestName {
    /// The most bytes of the descriptors in a name, which become 16 KiB of digits. Longer ones are left out.
    pub const MAX_DESCRIPTORS: usize = 12_288;

    /// The most descriptors in a name.
    pub const MAX_HELD: usize = 64;

    /// The most bytes of a name.
    pub const MAX_LEN: usize = NAME_DIGITS + 1 + Self::MAX_DESCRIPTORS / 3 * 4;

    /// Writes the name of a request whose places, named `place`, are those of `descriptors`.
    pub fn write<'a>(place: PlaceName, descriptors: impl IntoIterator<Item = &'a [Entry<'a>]>) -> String {
        let mut bytes = Vec::new();
        for entries in descriptors.into_iter().take(Self::MAX_HELD) {
            let before = bytes.len();
            write_number(entries.len(), &mut bytes);
            for part in entries.iter().flat_map(|entry| [entry.key, entry.value]) {
                write_number(part.len(), &mut bytes);
                bytes.extend_from_slice(part.as_bytes());
            }
            if bytes.len() > Self::MAX_DESCRIPTORS {
                bytes.truncate(before);
            }
        }
        let mut text = String::with_capacity(NAME_DIGITS + 1 + bytes.len().div_ceil(3) * 4);
        encode(place.bytes(), &mut text);
        text.push('.');
        encode(&bytes, &mut text);
        text
    }

    /// Reads a name; none if it has another form. Text above [`RequestName::MAX_LEN`] is not read.
    pub fn read(text: &str) -> Option<Self> {
        let (place, descriptors) = text.split_once('.').filter(|_| text.len() <= Self::MAX_LEN)?;
        Some(Self { place: read_place(place)?, descriptors: decode(descriptors)? })
    }

    /// Reads the name of the places alone.
    pub fn read_place(text: &str) -> Option<PlaceName> {
        let (place, _) = text.split_once('.').filter(|_| text.len() <= Self::MAX_LEN)?;
        read_place(place)
    }

    /// Returns the entries of each descriptor, up to the first that is malformed.
    pub fn descriptors(&self) -> impl Iterator<Item = SmallVec<[Entry<'_>; 4]>> {
        let mut rest = &*self.descriptors;
        let descriptors = std::iter::from_fn(move || {
            let count = read_number(&mut rest).filter(|count| *count > 0)?;
            // each has two bytes at least, so that a number alone takes no memory
            (0..count).map(|_| Some(Entry { key: part(&mut rest)?, value: part(&mut rest)? })).collect()
        });
        descriptors.take(Self::MAX_HELD)
    }
}

fn read_place(text: &str) -> Option<PlaceName> {
    if text.len() != NAME_DIGITS {
        return None;
    }
    PlaceName::from_bytes(&decode(text)?)
}

fn write_number(mut number: usize, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// At most two bytes, as the bound on descriptors has.
fn read_number(bytes: &mut &[u8]) -> Option<usize> {
    let (number, rest) = match **bytes {
        [low @ 0..=0x7f, ref rest @ ..] => (usize::from(low), rest),
        [low, high @ 0..=0x7f, ref rest @ ..] => (usize::from(low & 0x7f) | usize::from(high) << 7, rest),
        _ => return None,
    };
    *bytes = rest;
    Some(number)
}

fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let length = read_number(bytes)?;
    let (part, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(part).ok()
}

/// Without padding.
fn encode(bytes: &[u8], out: &mut String) {
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - chunk.len()));
        out.extend((0..=chunk.len()).map(|i| char::from(DIGITS[bits >> (18 - 6 * i) & 63])));
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for chunk in text.as_bytes().chunks(4) {
        let mut bits = 0;
        for digit in chunk {
            bits = bits << 6 | u32::from(value_of(*digit)?);
        }
        let length = chunk.len().checked_sub(1).filter(|length| *length > 0)?;
        bits <<= 6 * (3 - length);
        bytes.extend_from_slice(&bits.to_be_bytes()[1..=length]);
    }
    Some(bytes)
}

const fn value_of(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::Timestamp;

    fn place(serial: u64) -> PlaceName {
        PlaceName::new(Timestamp::from_secs(1_700_000_000), serial, false)
    }

    fn names(read: &RequestName) -> Vec<Vec<(String, String)>> {
        let owned = |entry: &Entry<'_>| (entry.key.to_owned(), entry.value.to_owned());
        read.descriptors().map(|entries| entries.iter().map(owned).collect()).collect()
    }

    #[test]
    fn digits_are_those_of_base64url() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xfb\xff", "-_8")]
        {
            let mut written = String::new();
            encode(bytes, &mut written);
            assert_eq!(written, text);
            assert_eq!(decode(text).as_deref(), Some(bytes));
        }
        for text in ["Z", "Zm9vZ", "Zg==", "Z+8/", "Zm 9"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[test]
    fn descriptors_beyond_the_bound_are_left_out() {
        let (long, fits) = ("x".repeat(RequestName::MAX_DESCRIPTORS - 50), "y".repeat(100));
        let entries = |value| [Entry { key: "user", value }];
        let all = [entries("a"), entries(&long), entries("b"), entries(&fits)];
        let written = RequestName::write(place(1), all.iter().map(|entries| &entries[..]));
        assert!(written.len() <= RequestName::MAX_LEN);
        let read = RequestName::read(&written).expect("a name");
        let values: Vec<String> = names(&read).into_iter().map(|entries| entries[0].1.clone()).collect();
        assert_eq!(values, ["a", &long, "b"]);
        let too_long = "x".repeat(RequestName::MAX_DESCRIPTORS);
        let written = RequestName::write(place(1), [&entries(&too_long)[..]]);
        assert_eq!(written.len(), NAME_DIGITS + 1);
        assert_eq!(RequestName::read_place(&written), Some(place(1)));
    }

    #[test]
    fn other_text_is_no_name() {
        let name = RequestName::write(place(7), [&[Entry { key: "user", value: "acme" }][..]]);
        let long = name.clone() + &"A".repeat(RequestName::MAX_LEN);
        let others = [
            "",
            ".",
            "in_flight",
            &name[1..],
            &name.replace('.', ":"),
            "AAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAA.A",
            &long,
        ];
        for other in others {
            assert_eq!(RequestName::read(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            serial in 0..1_u64 << PlaceName::SERIAL_BITS,
            all in prop::collection::vec(prop::collection::vec((".{0,9}", ".{0,200}"), 1..4), 0..4),
        ) {
            let entries: Vec<Vec<Entry<'_>>> = all.iter()
                .map(|pairs| pairs.iter().map(|(key, value)| Entry { key, value }).collect())
                .collect();
            let written = RequestName::write(place(serial), entries.iter().map(|entries| &entries[..]));
            let read = RequestName::read(&written).expect("a name");
            prop_assert_eq!(read.place, place(serial));
            let read = names(&read);
            // a subsequence of all, and all if they are short
            let mut left = all.iter();
            prop_assert!(read.iter().all(|descriptor| left.any(|written| written == descriptor)));
            if all.iter().flatten().map(|(key, value)| key.len() + value.len() + 5).sum::<usize>() < 1_000 {
                prop_assert_eq!(read.len(), all.len());
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[A-Za-z0-9_.-]{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            let _ = RequestName::read(&text).map(|read| read.descriptors().count());
            let read = RequestName { place: place(0), descriptors: bytes };
            prop_assert!(read.descriptors().count() <= RequestName::MAX_HELD);
        }
    }
}
