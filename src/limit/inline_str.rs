//! Texts that requests are compared with.

use std::hash::{Hash, Hasher};

use hashbrown::Equivalent;
use smallvec::SmallVec;

/// A text that lies in the table that it is looked up in, if it is as short as most are: one that lies elsewhere is a further
/// line of memory, which is in no cache where there are thousands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InlineStr(SmallVec<[u8; 16]>);

impl InlineStr {
    pub(super) fn as_str(&self) -> &str {
        // it was made of a text
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl From<&str> for InlineStr {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

/// As `str` hashes, which it is looked up with.
impl Hash for InlineStr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Equivalent<InlineStr> for str {
    fn equivalent(&self, text: &InlineStr) -> bool {
        *self.as_bytes() == *text.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_itself_however_long() {
        for text in ["", "tenant", "exactly 16 bytes", "/v1/organizations/products", "größer"] {
            assert_eq!(InlineStr::from(text).as_str(), text);
            assert!(text.equivalent(&InlineStr::from(text)) && !text.equivalent(&InlineStr::from("other")));
        }
        assert_eq!(size_of::<InlineStr>(), 24);
    }
}
