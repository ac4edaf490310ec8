//! The parts of limits that follow demand, as a store keeps them.

use std::collections::BTreeMap;

use crate::{
    limit::{
        Period, Timestamp,
        demand::{Demand, DemandPart, DemandParts, FollowedWindow},
        part::Place,
    },
    store::remote::{KeyDemand, KeyPart, MAX_DEMANDS},
};

/// The time without demand after which a limit has even parts again.
const FORGOTTEN: Period = Period::from_secs(60);

/// The limits whose parts follow demand.
#[derive(Debug, Default)]
pub(super) struct Demands {
    limits: BTreeMap<u64, FollowedLimit>,
}

/// A limit whose parts follow demand.
#[derive(Debug)]
struct FollowedLimit {
    window: FollowedWindow,
    parts: DemandParts<String>,
    /// When hits were last asked for.
    asked_at: Timestamp,
    closes: bool,
}

// === impl Demands ===

impl Demands {
    pub(super) fn clear(&mut self) {
        self.limits.clear();
    }

    /// Follows the `demands` of `instance`, which is at `place` among the `members` in force; none of them is about to
    /// change if `is_settled`. Returns its parts of all limits.
    pub(super) fn heartbeat(
        &mut self,
        instance: &str,
        place: Option<Place>,
        members: &[String],
        is_settled: bool,
        demands: &[KeyDemand],
        now: Timestamp,
    ) -> Vec<KeyPart> {
        for limit in self.limits.values_mut() {
            limit.parts.retain(|name| members.binary_search(name).is_ok());
        }
        if place.is_some() && is_settled {
            for demand in demands {
                if self.limits.len() < MAX_DEMANDS && demand.demand.hits > 0 {
                    self.limits.entry(demand.key).or_insert_with(|| FollowedLimit {
                        window: demand.window,
                        parts: DemandParts::even(demand.window.limit, members.to_vec()),
                        asked_at: now,
                        closes: false,
                    });
                }
            }
        }
        let mut replies = Vec::new();
        let next = now.as_nanos() / 1_000_000;
        self.limits.retain(|key, limit| {
            let Some(place) = place else {
                replies.push(KeyPart { key: *key, window: limit.window, part: DemandPart::default() });
                return true;
            };
            let asked = demands.iter().find(|demand| demand.key == *key);
            let demand = asked.map_or_else(Demand::default, |asked| asked.demand);
            let instances = place.instances.get();
            let part = limit.parts.heartbeat(instance.to_owned(), instances, demand, next, limit.closes);
            if limit.parts.is_in_demand() {
                limit.asked_at = now;
            }
            limit.closes |= now.since(limit.asked_at) > FORGOTTEN;
            let is_over = limit.closes && limit.parts.is_even(instances);
            if !is_over {
                replies.push(KeyPart { key: *key, window: limit.window, part });
            }
            !is_over
        });
        replies
    }
}
