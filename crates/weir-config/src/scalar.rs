//! Scalars of YAML 1.1, typed as envoyproxy/ratelimit's parser does, with their spelling kept.

use std::borrow::Cow;

use weir_observe::text::shortened;

/// The number of characters of a user's text that a message quotes.
const BRIEF: usize = 80;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scalar {
    text: Box<str>,
    /// Whether its spelling decides its type. A scalar that is quoted, a block or tagged as text is text.
    plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text,
}

impl Scalar {
    pub(super) fn new(text: &str, plain: bool) -> Self {
        Self { text: text.into(), plain }
    }

    pub(super) fn text(&self) -> &str {
        if self.is_null() { "" } else { &self.text }
    }

    pub(super) fn written(&self) -> &str {
        &self.text
    }

    pub(super) fn brief(&self) -> Cow<'_, str> {
        brief(&self.text)
    }

    pub(super) fn is_null(&self) -> bool {
        self.plain && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL")
    }

    /// Text is the same key in quotes and without.
    pub(super) fn as_key(&self) -> Self {
        Self { text: self.text.clone(), plain: self.meaning() != Meaning::Text }
    }

    pub(super) fn is_merge(&self) -> bool {
        self.plain && *self.text == *"<<"
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.meaning() {
            Meaning::Null => "nothing",
            Meaning::Bool(_) => "true or false",
            Meaning::Int(_) | Meaning::Float(_) => "a number",
            Meaning::Text => "text",
        }
    }

    pub(super) fn meaning(&self) -> Meaning {
        if !self.plain {
            return Meaning::Text;
        }
        if self.is_null() {
            return Meaning::Null;
        }
        match &*self.text {
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                Meaning::Bool(true)
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
                Meaning::Bool(false)
            }
            ".nan" | ".NaN" | ".NAN" => Meaning::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Meaning::Float(f64::INFINITY),
            "-.inf" | "-.Inf" | "-.INF" => Meaning::Float(f64::NEG_INFINITY),
            text => number(text).unwrap_or(Meaning::Text),
        }
    }
}

pub(super) fn brief(text: &str) -> Cow<'_, str> {
    shortened(text, BRIEF)
}

fn number(text: &str) -> Option<Meaning> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let digits = text.replace('_', "");
    integer(&digits).map(Meaning::Int).or_else(|| float(&digits).map(Meaning::Float))
}

/// A leading 0 makes it octal, as in C and in envoyproxy/ratelimit's parser.
fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(digits, radix).ok()?);
    Some(if negative { -number } else { number })
}

fn float(text: &str) -> Option<f64> {
    // Rust also parses names such as `infinity`, which are text in YAML
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    numeric.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_scalar_has_the_type_that_gos_parser_gives_it() {
        for (text, meaning) in [
            ("", Meaning::Null),
            ("~", Meaning::Null),
            ("null", Meaning::Null),
            ("nULL", Meaning::Text),
            ("yes", Meaning::Bool(true)),
            ("Off", Meaning::Bool(false)),
            ("tRue", Meaning::Text),
            ("12", Meaning::Int(12)),
            ("1_000", Meaning::Int(1000)),
            ("010", Meaning::Int(8)),
            ("0x1F", Meaning::Int(31)),
            ("-3", Meaning::Int(-3)),
            ("--3", Meaning::Text),
            ("18446744073709551615", Meaning::Int(18_446_744_073_709_551_615)),
            ("1.5", Meaning::Float(1.5)),
            ("1e3", Meaning::Float(1000.0)),
            (".inf", Meaning::Float(f64::INFINITY)),
            ("infinity", Meaning::Text),
            ("1.2.3.4", Meaning::Text),
            ("10s", Meaning::Text),
        ] {
            assert_eq!(Scalar::new(text, true).meaning(), meaning, "{text}");
        }
    }

    #[test]
    fn text_keeps_its_spelling() {
        for text in ["007", "true", "1.50", "0x1F"] {
            assert_eq!(Scalar::new(text, true).text(), text);
        }
        assert_eq!(Scalar::new("null", true).text(), "");
        assert_eq!(Scalar::new("null", false).text(), "null");
        assert_eq!(Scalar::new("12", false).meaning(), Meaning::Text);
    }
}
