//! The versions of the tiers in the store, as far as they are known.

use super::{LocalCounter, tiers::flows};

/// What is known of the [version](crate::store::remote::Reply::version) of a tier in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(u64);

// === impl Version ===

impl Version {
    /// Nothing is counted there, as far as it is known.
    pub(super) const NONE: Self = Self(0);

    /// It is not known how the store's state differs from the last reply. Versions in the store are below 2^48.
    pub(super) const LOST: Self = Self(u64::MAX);

    pub(super) const fn of(version: u64) -> Self {
        Self(version)
    }

    /// Returns the version; none if it is lost.
    pub(super) const fn known(self) -> Option<u64> {
        if self.0 == Self::LOST.0 { None } else { Some(self.0) }
    }
}

// === impl LocalCounter ===

impl LocalCounter {
    /// Returns the version of tier `i` of the limit in use, if it is a sliding window or a bucket.
    pub(super) fn version(&self, i: usize) -> Version {
        let each = self.rare.more().and_then(|more| more.versions.as_deref());
        each.and_then(|versions| versions.get(i).copied()).unwrap_or(self.heard.version)
    }

    /// Returns whether that of a tier of the limit in use is lost.
    pub(super) fn has_lost_version(&self) -> bool {
        (0..self.target.tiers.len()).any(|i| self.version(i) == Version::LOST)
    }

    /// Notes the versions of the tiers of the limit in use. A command that changes all of them gives all the same, so
    /// that few counters have different ones.
    pub(super) fn set_versions(&mut self, versions: impl Fn(usize) -> Version) {
        let tiers = &self.target.tiers;
        let mut flowing = (0..tiers.len()).filter(|i| flows(std::slice::from_ref(&tiers[*i])));
        let first = flowing.next().map_or(Version::NONE, &versions);
        if flowing.all(|i| versions(i) == first) {
            self.heard.version = first;
            if let Some(more) = self.rare.more_mut()
                && more.versions.take().is_some()
            {
                self.rare.shrink();
            }
        } else {
            let each = (0..tiers.len()).map(versions).collect();
            self.rare.make_more().versions = Some(each);
        }
    }
}
