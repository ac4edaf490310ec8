//! The part of HPACK (RFC 7541) that this client needs: it always sends the same headers, and only reads whether a
//! response's `grpc-status` is 0.

/// The headers of a connection's first request, recorded from an Envoy 1.40 with a cluster `ratelimit`. It adds
/// `:authority`, `te`, `grpc-timeout`, `content-type`, `x-envoy-internal`, `x-forwarded-for` and
/// `x-envoy-expected-rq-timeout-ms` to the server's dynamic table, but not `:path`, which every request contains in
/// Huffman code.
const FIRST: &str = "\
    8304ab60b5773fa5d05b3b98855ec1a4b41a93257eecafb4692e735264ee2d9dcc42b1ba73db449b4692e735264f\
    4186b0692d06a4c98640027465864d833505b11f40899acac8b24d494f6a7f8210295f8b1d75d0620d263d4c4d6564\
    408cf2b16aee7f4b1aa496ca8747834d9697408bf2b4a7b3c0ec90b22d29ec870be25c0b89717f\
    4096f2b16aee7f4b17cd65224b22d6765926a4a7b52b528f023230";

/// The headers of every later request.
const LATER: &str = "\
    8304ab60b5773fa5d05b3b98855ec1a4b41a93257eecafb4692e735264ee2d9dcc42b1ba73db449b4692e735264f\
    c486c3c2c1c0bfbe";

/// The number of entries in the static table.
const STATIC_ENTRIES: usize = 61;

const INDEXED: u8 = 0x80;
const LITERAL_INDEXED: u8 = 0x40;
const SIZE_UPDATE: u8 = 0x20;

/// Returns the header blocks of a connection's first request, and of every later one.
pub(crate) fn request_blocks() -> [Vec<u8>; 2] {
    let digit = |character: u8| match character {
        b'0'..=b'9' => character - b'0',
        _ => character - b'a' + 10,
    };
    let byte = |[high, low]: &[u8; 2]| digit(*high) << 4 | digit(*low);
    [FIRST, LATER].map(|text| text.as_bytes().as_chunks().0.iter().map(byte).collect())
}

/// The meaning of a header for this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    StatusZero,
    StatusOther,
    Other,
}

/// Decodes the headers of responses. Follows the dynamic table but not its evictions, which affect only headers that
/// have not been used for long.
#[derive(Default)]
pub(crate) struct ResponseHeaders {
    /// The dynamic table, with the newest entry last.
    table: Vec<Meaning>,
}

/// The encodings of `grpc-status`: plain, and in Huffman code.
const STATUS: [&[u8]; 2] = [b"grpc-status", &[0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f]];
const ZERO: [&[u8]; 2] = [b"0", &[0x07]];

impl ResponseHeaders {
    /// Reads a block of headers, and returns whether `grpc-status` is 0, or none if it is absent.
    pub(crate) fn read(&mut self, mut block: &[u8]) -> Result<Option<bool>, Malformed> {
        let mut zero = None;
        while let Some(first) = block.first().copied() {
            let meaning = if first & INDEXED != 0 {
                self.entry(integer(&mut block, 7)?)?
            } else if first & LITERAL_INDEXED != 0 {
                let meaning = self.literal(&mut block, 6)?;
                self.table.push(meaning);
                meaning
            } else if first & SIZE_UPDATE != 0 {
                integer(&mut block, 5)?;
                Meaning::Other
            } else {
                self.literal(&mut block, 4)?
            };
            match meaning {
                Meaning::StatusZero => zero = Some(true),
                Meaning::StatusOther => zero = Some(false),
                Meaning::Other => {}
            }
        }
        Ok(zero)
    }

    fn entry(&self, index: usize) -> Result<Meaning, Malformed> {
        if index <= STATIC_ENTRIES {
            return Ok(Meaning::Other);
        }
        let place = self.table.len().checked_sub(index - STATIC_ENTRIES).ok_or(Malformed)?;
        Ok(self.table[place])
    }

    fn literal(&self, block: &mut &[u8], prefix: u32) -> Result<Meaning, Malformed> {
        let is_status = match integer(block, prefix)? {
            0 => STATUS.contains(&string(block)?),
            index => self.entry(index)? != Meaning::Other,
        };
        let value = string(block)?;
        Ok(match is_status {
            false => Meaning::Other,
            true if ZERO.contains(&value) => Meaning::StatusZero,
            true => Meaning::StatusOther,
        })
    }
}

/// A block that is not HPACK, or refers to a missing entry.
#[derive(Debug)]
pub(crate) struct Malformed;

fn integer(block: &mut &[u8], prefix: u32) -> Result<usize, Malformed> {
    let max = (1_usize << prefix) - 1;
    let mut value = usize::from(byte(block)?) & max;
    if value < max {
        return Ok(value);
    }
    for shift in (0..28).step_by(7) {
        let next = byte(block)?;
        value += usize::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

/// Returns the encoded bytes of a string.
fn string<'a>(block: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = integer(block, 7)?;
    let (text, rest) = block.split_at_checked(length).ok_or(Malformed)?;
    *block = rest;
    Ok(text)
}

fn byte(block: &mut &[u8]) -> Result<u8, Malformed> {
    let (first, rest) = block.split_first().ok_or(Malformed)?;
    *block = rest;
    Ok(*first)
}
