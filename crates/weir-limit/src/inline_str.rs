//! Short strings stored inline, for the hash tables in which requests are looked up.

use std::hash::{Hash, Hasher};

use hashbrown::Equivalent;
use smallvec::SmallVec;

/// A string that stores up to 16 bytes inline. Most keys and values fit; a separate allocation would cost a cache miss
/// per look-up with thousands of rules.
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
    #[inline]
    fn equivalent(&self, text: &InlineStr) -> bool {
        are_equal(self.as_bytes(), &text.0)
    }
}

/// Texts of up to 16 bytes, as most are, are compared without a call.
#[inline]
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && match a.len() {
            0 => true,
            1..=3 => [a[0], a[a.len() / 2], a[a.len() - 1]] == [b[0], b[b.len() / 2], b[b.len() - 1]],
            // two pieces, which overlap
            4..=7 => a.first_chunk::<4>() == b.first_chunk() && a.last_chunk::<4>() == b.last_chunk(),
            8..=16 => a.first_chunk::<8>() == b.first_chunk() && a.last_chunk::<8>() == b.last_chunk(),
            _ => a == b,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_any_length_compare_as_str() {
        for text in
            ["", "a", "abc", "four", "tenant", "exactly 16 bytes", "/v1/organizations/products", "größer"]
        {
            assert_eq!(InlineStr::from(text).as_str(), text);
            assert!(text.equivalent(&InlineStr::from(text)) && !text.equivalent(&InlineStr::from("other")));
        }
        assert_eq!(size_of::<InlineStr>(), 24);
    }

    #[test]
    fn texts_that_differ_in_one_byte_are_different() {
        for len in 0..40 {
            let text = vec![b'a'; len];
            assert!(are_equal(&text, &text.clone()));
            assert!(!are_equal(&text, &[&*text, b"a"].concat()));
            for i in 0..len {
                let mut other = text.clone();
                other[i] = b'b';
                assert!(!are_equal(&text, &other) && !are_equal(&other, &text), "{i} of {len}");
            }
        }
    }
}
