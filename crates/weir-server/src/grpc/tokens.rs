//! The tokens by which clients give hits back.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
};

use parking_lot::Mutex;

use weir_limit::Timestamp;
use weir_store::Receipt;

/// The most receipts that are kept, some 100 bytes each. Beyond it the oldest are forgotten, whose hits stay taken.
const MOST: usize = 100_000;

/// The number of receipts that may have ended and are looked at for each new one.
const SWEPT: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Tokens {
    state: Mutex<TokenState>,
    /// Makes tokens that nobody can guess.
    secret: RandomState,
}

#[derive(Debug, Default)]
struct TokenState {
    /// By the number of their token, oldest first.
    receipts: BTreeMap<u64, Receipt>,
    issued: u64,
}

// === impl Tokens ===

impl Tokens {
    pub(super) fn issue(&self, receipt: Receipt, now: Timestamp) -> [u8; 16] {
        let mut state = self.state.lock();
        for _ in 0..SWEPT {
            let is_over = state.receipts.first_key_value().is_some_and(|(_, first)| first.ends_at() <= now);
            if is_over || state.receipts.len() >= MOST {
                state.receipts.pop_first();
            }
        }
        let number = state.issued;
        state.issued += 1;
        state.receipts.insert(number, receipt);
        self.token(number)
    }

    pub(super) fn redeem(&self, token: &[u8], now: Timestamp) -> Option<Receipt> {
        let number = u64::from_be_bytes(*token.first_chunk()?);
        if self.token(number) != token {
            return None;
        }
        self.state.lock().receipts.remove(&number).filter(|receipt| receipt.ends_at() > now)
    }

    fn token(&self, number: u64) -> [u8; 16] {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&number.to_be_bytes());
        token[8..].copy_from_slice(&self.secret.hash_one(number).to_be_bytes());
        token
    }
}
