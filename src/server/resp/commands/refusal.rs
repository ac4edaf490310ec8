//! Errors of the store.

use crate::{server::resp::reply::Replies, store::StoreError};

/// Replies that the store has failed.
pub(super) fn refuse_store(error: &StoreError, replies: &mut Replies) {
    replies.error(&format!("ERR {error}"));
}
