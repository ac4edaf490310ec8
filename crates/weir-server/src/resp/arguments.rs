//! Numbers and words in arguments.

/// Parses an integer: digits, which may begin with zeros, and a sign.
pub(super) fn integer<T: std::str::FromStr>(argument: &[u8]) -> Option<T> {
    std::str::from_utf8(argument).ok()?.parse().ok()
}

pub(super) fn is_word(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}
