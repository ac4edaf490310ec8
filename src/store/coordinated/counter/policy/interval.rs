//! The policy of `interval`: the estimate decides, and what it admits is reported later.

use super::{Ask, View};
use crate::limit::{Hits, Period};

/// The age of the last reply from which a rejected request asks the store whether hits were given back elsewhere.
const STALE_REJECTION: Period = Period::from_secs(1);

/// Counted hits are reported, and the reply has those of others. Other requests have to read the store's count.
#[inline]
pub(in super::super) fn read_from_age(ask: &Ask, over: bool, view: View<'_>) -> Option<Period> {
    if ask.hits == Hits(0) {
        return Some(view.sync_interval);
    }
    (over && !view.is_alone()).then_some(STALE_REJECTION)
}
