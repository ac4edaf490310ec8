//! Errors of the store.

use crate::resp::reply::CommandReplies;
use weir_store::StoreError;

pub(super) fn refuse_store(error: &StoreError, replies: &mut CommandReplies) {
    replies.error(&format!("ERR {error}"));
}
