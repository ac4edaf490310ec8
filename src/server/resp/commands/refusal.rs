//! Errors of the store.

use crate::{server::resp::reply::Replies, store::StoreError};

pub(super) fn refuse_store(error: &StoreError, replies: &mut Replies) {
    replies.error(&format!("ERR {error}"));
}
