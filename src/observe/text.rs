//! Text of others in log lines and messages: bounded, and without an effect on the line that it is in.

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

/// Returns the first `max` characters of `text`, with an ellipsis if there are more.
#[must_use]
pub fn shortened(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// Writes to the writer in it, and spells out what would end the line, move the cursor or change the order of
/// characters: a line break becomes `\n`, an escape `\u{1b}`.
#[derive(Debug)]
pub struct Escaped<W>(pub W);

impl<W: Write> Write for Escaped<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, char)) = rest.char_indices().find(|(_, char)| is_active(*char)) {
            self.0.write_str(&rest[..at])?;
            match char {
                '\n' => self.0.write_str(r"\n")?,
                '\r' => self.0.write_str(r"\r")?,
                '\t' => self.0.write_str(r"\t")?,
                char => write!(self.0, "{}", char.escape_unicode())?,
            }
            rest = &rest[at + char.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// Returns whether `char` does something instead of showing something: the control characters, the line and paragraph
/// separators, and the marks that reverse the direction of writing.
fn is_active(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöü!", 3), "äöü…");
    }

    #[test]
    fn active_characters_are_spelled_out() {
        let mut escaped = Escaped(String::new());
        write!(escaped, "a\nb\r\t\0c\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}ä\"\\").expect("a string");
        assert_eq!(escaped.0, r#"a\nb\r\t\u{0}c\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}ä"\"#);
    }
}
