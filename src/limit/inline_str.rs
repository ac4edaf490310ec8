//! Short strings stored inline, for the hash tables in which requests are looked up.

use std::hash::{Hash, Hasher};

use hashbrown::Equivalent;
use smallvec::SmallVec;

/// A string that stores up to 16 bytes inline. Most keys and values fit; a separate allocation would cost a cache miss per
/// look-up with thousands of rules.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InlineStr(SmallVec<[u8; 16]>);

impl InlineStr {
    pub(super) fn as_str(&self) -> &str {
        // it was created from a `str`
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl From<&str> for InlineStr {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

/// Hashes as `str` does, since look-ups use a `str`.
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
    fn strings_of_any_length_compare_as_str() {
        for text in ["", "tenant", "exactly 16 bytes", "/v1/organizations/products", "größer"] {
            assert_eq!(InlineStr::from(text).as_str(), text);
            assert!(text.equivalent(&InlineStr::from(text)) && !text.equivalent(&InlineStr::from("other")));
        }
        assert_eq!(size_of::<InlineStr>(), 24);
    }
}
