use super::yaml::{YamlFault, YamlPosition};

/// UTF-16 if `bytes` begin with its byte order mark, as Windows writes files, else UTF-8.
pub(super) fn decode(bytes: Vec<u8>) -> Result<String, YamlFault> {
    match &*bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        _ => String::from_utf8(bytes).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            YamlFault::new(end_of(&String::from_utf8_lossy(valid)), "the file is not valid UTF-8")
        }),
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, YamlFault> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(pairs.len());
    for character in char::decode_utf16(pairs.iter().map(|pair| unit(*pair))) {
        let Ok(character) = character else {
            let message = "the file is not valid UTF-16, which its byte order mark announces";
            return Err(YamlFault::new(end_of(&text), message));
        };
        text.push(character);
    }
    if rest.is_empty() {
        Ok(text)
    } else {
        let message = "the file ends within a character of UTF-16, which its byte order mark announces";
        Err(YamlFault::new(end_of(&text), message))
    }
}

fn end_of(text: &str) -> YamlPosition {
    let before = text.rsplit('\n').next().map_or(0, |line| line.chars().count());
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    YamlPosition { line: count(text.matches('\n').count() + 1), column: count(before + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undecodable(bytes: &[u8]) -> (u32, u32, String) {
        let YamlFault { at, message } = decode(bytes.to_vec()).expect_err("no text");
        (at.line, at.column, message)
    }

    #[test]
    fn a_byte_order_mark_announces_utf16() {
        let text = "domain: d\r\n# ä 😀\n";
        let units: Vec<u16> = "\u{feff}".encode_utf16().chain(text.encode_utf16()).collect();
        let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        assert_eq!(decode(little).as_deref(), Ok(text));
        assert_eq!(decode(big).as_deref(), Ok(text));
        assert_eq!(decode(text.as_bytes().to_vec()).as_deref(), Ok(text));
        assert_eq!(decode(vec![0xff, 0xfe]).as_deref(), Ok(""));
    }

    #[test]
    fn bytes_that_are_no_text_have_a_place() {
        assert_eq!(undecodable(b"a\n\xc3\xa4b\xff"), (2, 3, "the file is not valid UTF-8".to_owned()));
        let (line, column, message) = undecodable(b"\xff\xfea\0\n\0\x00\xd8b\0");
        assert_eq!((line, column), (2, 1));
        assert!(message.contains("not valid UTF-16"), "{message}");
        let (line, column, message) = undecodable(b"\xfe\xff\0a\0");
        assert_eq!((line, column), (1, 2));
        assert!(message.contains("ends within a character"), "{message}");
    }
}
