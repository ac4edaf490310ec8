//! Text of others in log lines, on pages and in what commands print: bounded, and without an effect on the line that it
//! is in. This is the one place that says which characters have one.

use std::{
    borrow::Cow,
    error::Error,
    fmt::{self, Write},
};

/// Returns the first `max` characters of `text`, with an ellipsis if there are more.
pub fn shortened(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// Returns `error` with its causes, which `Display` omits.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // an error that wraps another often has its text
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// Returns `text` on one line, as [`Escaped`] writes it.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return text.into();
    }
    let mut line = Escaped(String::new());
    // writing to a string cannot fail
    let _ = line.write_str(text);
    line.0.into()
}

/// Returns the lines of `text`, each [escaped].
pub fn escaped_lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// Escapes what [`Escaped`] spells out in the strings of `json`, a document on one line, which says the same then.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_active) {
        return json.into();
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for char in json.chars() {
        if is_active(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // writing to a string cannot fail
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(char);
        }
    }
    escaped.into()
}

/// Spells out what would end the line, move the cursor, reorder or hide characters, such as an escape as `\u{1b}`.
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

/// Whether `char` acts instead of showing something: control characters, separators of lines and paragraphs, marks that
/// change the direction, and what has no width, by which different texts look alike.
pub fn is_active(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            // the soft hyphen, and the mark of Arabic letters
            '\u{ad}' | '\u{61c}' | '\u{180e}'
                // spaces and joiners without width, and the marks of both directions
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                // letters that only tags have
                | '\u{e0000}'..='\u{e007f}'
        )
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

    #[test]
    fn what_has_no_width_is_spelled_out_and_letters_stay() {
        for hidden in
            "\u{ad}\u{61c}\u{180e}\u{200b}\u{200d}\u{200f}\u{2060}\u{2066}\u{feff}\u{fffa}\u{e0041}".chars()
        {
            assert_eq!(escaped(&format!("a{hidden}b")), format!("a{}b", hidden.escape_unicode()));
        }
        for plain in ["", "a b", "größe", "日本語", "שלום", "é", "€ 5 – “ok”…"] {
            assert!(matches!(escaped(plain), Cow::Borrowed(text) if text == plain), "{plain}");
        }
        assert_eq!(escaped_lines("a\u{1b}\nb\u{202e}\n"), "a\\u{1b}\nb\\u{202e}\n");
    }

    #[test]
    fn an_escaped_document_says_the_same() {
        let text = "a\u{1b}\n\u{7f}\u{9b}\u{202e}\u{e0041}ä\"\\";
        let value = serde_json::json!({ text: text });
        let document = value.to_string();
        let escaped = escaped_json(&document);
        assert!(!escaped.contains(is_active), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).expect("JSON"), value);
        assert_eq!(escaped_json("{\"a\":\"ä\"}"), "{\"a\":\"ä\"}");
    }
}
