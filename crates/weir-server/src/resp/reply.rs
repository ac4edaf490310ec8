//! Writes replies, in the version of the protocol that the client has chosen.

const MAX_QUOTED: usize = 128;

#[derive(Debug, Default)]
pub(super) struct CommandReplies {
    bytes: Vec<u8>,
    pub(super) is_resp3: bool,
    errors: u64,
}

// === impl CommandReplies ===

impl CommandReplies {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn clear(&mut self) {
        const KEPT: usize = 16 << 10;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
    }

    pub(super) fn take_errors(&mut self) -> u64 {
        std::mem::take(&mut self.errors)
    }

    /// A word such as `OK`.
    pub(super) fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_line();
    }

    /// An error. Control characters, which could end its line, become spaces.
    pub(super) fn error(&mut self, text: &str) {
        self.errors += 1;
        self.bytes.push(b'-');
        self.bytes.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.end_line();
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.bytes.push(b':');
        self.bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.end_line();
    }

    pub(super) fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        self.header(b'$', bytes.as_ref().len());
        self.bytes.extend_from_slice(bytes.as_ref());
        self.end_line();
    }

    /// A text for people, which RESP3 tells from other strings.
    pub(super) fn text(&mut self, text: &str) {
        if !self.is_resp3 {
            return self.bulk(text);
        }
        self.header(b'=', text.len() + 4);
        self.bytes.extend_from_slice(b"txt:");
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_line();
    }

    /// Nothing, in the place of a string or a number.
    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Nothing, in the place of an array.
    pub(super) fn null_array(&mut self) {
        self.bytes.extend_from_slice(if self.is_resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// The beginning of an array; its elements follow.
    pub(super) fn array(&mut self, elements: usize) {
        self.header(b'*', elements);
    }

    /// The beginning of a set; its elements follow. An array in RESP2.
    pub(super) fn set(&mut self, elements: usize) {
        self.header(if self.is_resp3 { b'~' } else { b'*' }, elements);
    }

    /// The beginning of a map; its keys and values follow in turn. An array of twice as many elements in RESP2.
    pub(super) fn map(&mut self, pairs: usize) {
        if self.is_resp3 { self.header(b'%', pairs) } else { self.header(b'*', pairs * 2) }
    }

    fn header(&mut self, kind: u8, length: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        self.end_line();
    }

    fn end_line(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

pub(super) fn quoted(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_QUOTED)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(is_resp3: bool, write: impl FnOnce(&mut CommandReplies)) -> String {
        let mut replies = CommandReplies { is_resp3, ..CommandReplies::default() };
        write(&mut replies);
        String::from_utf8(replies.bytes().to_vec()).expect("text")
    }

    #[test]
    fn both_versions_are_written() {
        let write = |replies: &mut CommandReplies| {
            replies.map(1);
            replies.bulk("k");
            replies.set(1);
            replies.integer(i64::MIN);
            replies.null();
            replies.null_array();
            replies.text("t");
        };
        let two = "*2\r\n$1\r\nk\r\n*1\r\n:-9223372036854775808\r\n$-1\r\n*-1\r\n$1\r\nt\r\n";
        assert_eq!(written(false, write), two);
        let three = "%1\r\n$1\r\nk\r\n~1\r\n:-9223372036854775808\r\n_\r\n_\r\n=5\r\ntxt:t\r\n";
        assert_eq!(written(true, write), three);
    }

    #[test]
    fn an_error_stays_on_its_line() {
        let text = written(false, |replies| replies.error(&format!("ERR {}", quoted(b"a\r\n+OK\r\n\xff"))));
        assert_eq!(text, "-ERR a  +OK  \u{fffd}\r\n");
    }
}
