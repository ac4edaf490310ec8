//! Texts that requests are compared with.

use std::hash::{Hash, Hasher};

use hashbrown::Equivalent;
use smallvec::SmallVec;

/// A text that lies in the table that it is looked up in, if it is as short as most are: one that lies elsewhere is a further
/// line of memory, which is in no cache where there are thousands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Text(SmallVec<[u8; 16]>);

impl Text {
    pub(super) fn as_str(&self) -> &str {
        // it was made of a text
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

/// As `str` hashes, which it is looked up with.
impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Equivalent<Text> for str {
    fn equivalent(&self, text: &Text) -> bool {
        *self.as_bytes() == *text.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_itself_however_long() {
        for text in ["", "tenant", "exactly 16 bytes", "/v1/organizations/products", "größer"] {
            assert_eq!(Text::from(text).as_str(), text);
            assert!(text.equivalent(&Text::from(text)) && !text.equivalent(&Text::from("other")));
        }
        assert_eq!(size_of::<Text>(), 24);
    }
}
