//! As much of HPACK (RFC 7541) as a client needs that always sends the same headers, and wants to know of an answer
//! whether its `grpc-status` is 0.

/// The method that Envoy calls.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Entries of the static table.
const METHOD_POST: u8 = 3;
const SCHEME_HTTP: u8 = 6;
const STATIC_ENTRIES: usize = 61;

const INDEXED: u8 = 0x80;
const LITERAL_INDEXED: u8 = 0x40;
const SIZE_UPDATE: u8 = 0x20;

/// A name is either an entry of the static table, or spelled.
enum Name {
    Known(u8),
    Spelled(&'static str),
}

/// What an Envoy sends with each question besides method and scheme.
fn literals(authority: &str) -> [(Name, &str); 7] {
    [
        (Name::Known(4), PATH),
        (Name::Known(1), authority),
        (Name::Spelled("te"), "trailers"),
        (Name::Spelled("grpc-timeout"), "20m"),
        (Name::Known(31), "application/grpc"),
        (Name::Spelled("x-envoy-internal"), "true"),
        (Name::Spelled("x-forwarded-for"), "10.1.2.3"),
    ]
}

/// The header blocks of a connection's first request, which fills the dynamic table of the server, and of every later
/// one, which refers to it.
pub(crate) fn request_blocks(authority: &str) -> (Vec<u8>, Vec<u8>) {
    let literals = literals(authority);
    let mut first = vec![INDEXED | METHOD_POST, INDEXED | SCHEME_HTTP];
    let mut later = first.clone();
    let mut index = INDEXED | 61;
    index += u8::try_from(literals.len()).expect("they are few");
    for (name, value) in &literals {
        match name {
            Name::Known(index) => first.push(LITERAL_INDEXED | index),
            Name::Spelled(name) => {
                first.push(LITERAL_INDEXED);
                spell(name, &mut first);
            }
        }
        spell(value, &mut first);
        // what was put in last has the lowest index
        later.push(index);
        index -= 1;
    }
    (first, later)
}

/// A string without Huffman's code, shorter than 127 bytes.
fn spell(text: &str, out: &mut Vec<u8>) {
    let length = u8::try_from(text.len()).ok().filter(|length| *length < 0x7f);
    out.push(length.expect("a short text"));
    out.extend_from_slice(text.as_bytes());
}

/// What a header says, as far as anybody cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    StatusZero,
    StatusOther,
    Other,
}

/// The headers of answers: follows the dynamic table, though not what is driven out of it, which are headers that were
/// not used for long.
#[derive(Default)]
pub(crate) struct Answers {
    /// The dynamic table, the newest last.
    table: Vec<Meaning>,
}

/// `grpc-status` as it may be spelled: plainly, and in Huffman's code.
const STATUS: [&[u8]; 2] = [b"grpc-status", &[0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f]];
const ZERO: [&[u8]; 2] = [b"0", &[0x07]];

impl Answers {
    /// Reads a block of headers: whether it says that `grpc-status` is 0, or nothing if it does not mention it.
    /// `Err` when it is no HPACK.
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

/// A block that is no HPACK, or refers to what was never sent.
#[derive(Debug)]
pub(crate) struct Malformed;

fn integer(block: &mut &[u8], prefix: u32) -> Result<usize, Malformed> {
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(byte(block)?) & most;
    if value < most {
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

/// The bytes of a string, in whichever code they are.
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
