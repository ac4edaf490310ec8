//! SipHash-1-3 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012), for texts
//! that are pushed one by one. Each but the last is padded with zeros to whole words, so that no text has to be joined
//! with another one.

const WORD: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct SipHash {
    state: [u64; 4],
    words: usize,
}

// === impl SipHash ===

impl SipHash {
    pub(super) const fn new(secret: [u64; 2]) -> Self {
        let [k0, k1] = secret;
        let state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { state, words: 0 }
    }

    /// Appends `text`, the byte `end`, which is not zero, and then zeros up to the next word.
    #[inline]
    pub(super) fn push(&mut self, text: &[u8], end: u8) {
        let (words, tail) = text.as_chunks();
        for word in words {
            absorb(&mut self.state, u64::from_le_bytes(*word));
        }
        absorb(&mut self.state, last_bytes(text, tail) | u64::from(end) << (8 * tail.len()));
        self.words += words.len() + 1;
    }

    /// Of all texts, and then of `text` and the byte `end`, which is not zero.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs a tenth of what it does")]
    pub(super) fn finish(mut self, text: &[u8], end: u8) -> [u64; 2] {
        let (words, tail) = text.as_chunks();
        for word in words {
            absorb(&mut self.state, u64::from_le_bytes(*word));
        }
        let rest = last_bytes(text, tail) | u64::from(end) << (8 * tail.len());
        // the last word ends with the number of bytes modulo 256, for which seven others leave room
        let length = ((self.words * WORD + text.len() + 1) as u64) << 56;
        if tail.len() < WORD - 1 {
            absorb(&mut self.state, rest | length);
        } else {
            absorb(&mut self.state, rest);
            absorb(&mut self.state, length);
        }
        self.state[2] ^= 0xee;
        let first = squeeze(&mut self.state);
        self.state[1] ^= 0xdd;
        [first, squeeze(&mut self.state)]
    }
}

/// `tail` ends `text`. Read in up to three pieces, which may overlap: copying so few bytes costs more than hashing.
#[inline]
fn last_bytes(text: &[u8], tail: &[u8]) -> u64 {
    let len = tail.len();
    if let Some(last) = text.last_chunk() {
        // in two shifts, since one of 64 bits would overflow
        return (u64::from_le_bytes(*last) >> 1) >> (63 - 8 * len);
    }
    if let (Some(first), Some(last)) = (tail.first_chunk(), tail.last_chunk()) {
        return u64::from(u32::from_le_bytes(*first))
            | u64::from(u32::from_le_bytes(*last)) << (8 * (len - 4));
    }
    let at = |i: usize| u64::from(tail[i]) << (8 * i);
    if len == 0 { 0 } else { at(0) | at(len / 2) | at(len - 1) }
}

const fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    state[0] ^= word;
}

const fn squeeze(state: &mut [u64; 4]) -> u64 {
    round(state);
    round(state);
    round(state);
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

const fn round(state: &mut [u64; 4]) {
    let [mut a, mut b, mut c, mut d] = *state;
    a = a.wrapping_add(b);
    c = c.wrapping_add(d);
    b = b.rotate_left(13) ^ a;
    d = d.rotate_left(16) ^ c;
    a = a.rotate_left(32).wrapping_add(d);
    c = c.wrapping_add(b);
    d = d.rotate_left(21) ^ a;
    b = b.rotate_left(17) ^ c;
    *state = [a, b, c.rotate_left(32), d];
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher as _;

    use proptest::{collection::vec, prelude::*};
    use siphasher::sip128::{Hasher128 as _, SipHasher13};

    use super::*;

    proptest! {
        /// The hash is that of another implementation, of the padded texts.
        #[test]
        fn texts_are_hashed_as_one(secret: [u64; 2], texts in vec((vec(any::<u8>(), 0..200), 1..=u8::MAX), 0..8)) {
            let mut ours = SipHash::new(secret);
            let mut padded = Vec::new();
            for (text, end) in &texts {
                padded.extend_from_slice(text);
                padded.push(*end);
                let mut theirs = SipHasher13::new_with_keys(secret[0], secret[1]);
                theirs.write(&padded);
                let expected = theirs.finish128();
                prop_assert_eq!(ours.finish(text, *end), [expected.h1, expected.h2]);
                ours.push(text, *end);
                padded.resize(padded.len().next_multiple_of(WORD), 0);
            }
        }
    }
}
