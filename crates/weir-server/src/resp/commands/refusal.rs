//! Errors of the store.

use crate::resp::reply::Replies;
use weir_store::StoreError;

pub(super) fn refuse_store(error: &StoreError, replies: &mut Replies) {
    replies.error(&format!("ERR {error}"));
}
