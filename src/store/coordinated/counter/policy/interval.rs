//! The policy of `interval`: the estimate decides, and what it admits is reported later.

use super::{Ask, View};
use crate::limit::{Hits, Period};

/// The age of the last reply from which a rejected request asks the store whether hits were given back elsewhere.
const STALE_REJECTION: Period = Period::from_secs(1);

/// Returns the age of the last reply from which the store's count is to be read after `ask`, which is `over` the limit
/// or not: counted hits are reported, and the reply includes the hits of others; other requests have to read.
#[inline]
pub(in super::super) fn read_from_age(ask: &Ask, over: bool, view: View<'_>) -> Option<Period> {
    if ask.hits == Hits(0) {
        return Some(view.sync_interval);
    }
    (over && !view.is_alone()).then_some(STALE_REJECTION)
}
