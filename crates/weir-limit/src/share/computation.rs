//! The shares of all members, computed from a copy of a pool: what takes long needs no lock.
//!
//! A [`Pool`](super::Pool) that many threads use hands out a [`Computation`], is asked for decisions meanwhile, and
//! takes the [`Shares`] when they are there.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    Borrow, Lend, Sharing,
    census::{Census, Standing},
    division::{Claim, Division},
    member::{HIT, MemberState},
    rule::PoolRule,
};
use crate::units::Period;

#[derive(Clone, Copy, Debug)]
pub(super) struct SharePosition {
    pub(super) cycle: u64,
    pub(super) step: u32,
    pub(super) granted: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ComputationId(u64);

#[derive(Clone, Debug)]
pub struct Computation {
    pub(super) id: ComputationId,
    pub(super) members: Vec<(Arc<str>, MemberState)>,
    pub(super) position: SharePosition,
    pub(super) capacity: u32,
    pub(super) cycle: Period,
    pub(super) sharing: Arc<Sharing>,
}

/// The shares of the members of a pool, in the order of their places.
#[derive(Clone, Debug)]
pub struct Shares {
    pub(super) id: Option<ComputationId>,
    pub(super) cycle: u64,
    pub(super) parts: Vec<SharePart>,
    /// The hits that nobody is expected to need.
    pub(super) common: u32,
    pub(super) census: Census,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SharePart {
    pub(super) allowance: u32,
    pub(super) default: u32,
    pub(super) standing: Standing,
}

// === impl ComputationId ===

impl ComputationId {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

// === impl Computation ===

impl Computation {
    /// Computes the shares. This takes some thousand instructions for each member.
    pub fn run(&self) -> Shares {
        let rule = PoolRule { capacity: self.capacity, cycle: self.cycle, sharing: &self.sharing };
        Shares { id: Some(self.id), ..compute(&rule, self.position, &self.members) }
    }
}

pub(super) fn compute(
    rule: &PoolRule<'_>,
    position: SharePosition,
    members: &[(Arc<str>, MemberState)],
) -> Shares {
    let SharePosition { cycle, step, granted } = position;
    let sharing = rule.sharing;
    let (steps, within) = (rule.steps(), sharing.lend == Lend::WithinCycle);
    let has_newcomer = members.iter().any(|(_, member)| member.is_new);
    let capacity = rule.shared_with(has_newcomer, step);
    let division = Division {
        borrow: sharing.borrow,
        capacity: capacity.max(granted),
        reserve: rule.reserve_in(step),
        cycle,
    };
    let standings: Vec<Standing> = members.iter().map(|(name, _)| Standing::of(name, sharing)).collect();
    let mut claims: Vec<Claim<'_>> = members
        .iter()
        .zip(&standings)
        .map(|((name, member), standing)| Claim {
            name,
            weight: standing.weight,
            demand: member.demand,
            min: sharing.min,
            max: sharing.max,
            granted: member.granted,
            is_new: member.is_new,
        })
        .collect();
    let defaults = division.default_shares(&claims);
    // the fractions of all forecasts are rounded together, also those of members that have asked already: so many that
    // ask in turn keep what the rest will ask for, and those that ask for nothing lend it in line with time
    let (mut parts, mut with_room) = (0, vec![false; members.len()]);
    for (i, (claim, default)) in claims.iter_mut().zip(&defaults).enumerate() {
        let member = &members[i].1;
        if within {
            let forecast = member.forecast(step, steps, *default);
            claim.demand = forecast.hits;
            parts += forecast.fraction;
            with_room[i] = forecast.has_room;
        } else if member.is_new {
            claim.demand = *default;
        }
    }
    // not always for the same members
    let first = usize::try_from(cycle % members.len().max(1) as u64).unwrap_or_default();
    let turned = (first..members.len()).chain(0..first).filter(|i| with_room[*i]);
    for i in turned.take(usize::try_from(parts.div_ceil(HIT)).unwrap_or(usize::MAX)) {
        claims[i].demand = claims[i].demand.saturating_add(1);
    }
    // the exact numbers of the rule, unless somebody was granted more already
    let exact = (!within).then(|| division.shares(&claims));
    let exact =
        exact.filter(|shares| claims.iter().zip(shares).all(|(claim, share)| claim.granted <= *share));
    let allowances = exact.unwrap_or_else(|| division.allowances(&claims, !within));
    let allowed: u64 = allowances.iter().copied().map(u64::from).sum();
    let lends = within && sharing.borrow != Borrow::None;
    let common =
        if lends { u32::try_from(u64::from(capacity).saturating_sub(allowed)).unwrap_or(0) } else { 0 };
    let mut census = Census::default();
    let parts =
        allowances.into_iter().zip(defaults).zip(standings).map(|((allowance, default), standing)| {
            census.add(standing);
            SharePart { allowance, default, standing }
        });
    Shares { id: None, cycle, parts: parts.collect(), common, census }
}
