//! Granted hits never exceed the limit, at whatever time within the hold they are used.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, sample::select};
use tokio::runtime::Builder;
use weir_limit::{Algorithm, OverLimitPolicy, Period, Tier, Timestamp};
use weir_store::{clock::Clock as _, remote::Report};

use crate::ops::Op;
use crate::support::{CountedTarget, bucket, pass, tier};

/// The period of the tiers, in milliseconds.
const PERIOD: u64 = 10_000;

/// An action of an instance.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Waits this many milliseconds.
    Pass(u64),
    /// Takes this many hits at once.
    Take(u64),
    /// Requests a grant of up to `want` hits, and uses them at these fractions of the hold.
    Grant { want: u64, hold: u64, used_at: [f64; 3] },
    /// Gives back this fraction of one of its latest grants.
    GiveBack { part: f64, latest: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let passing = prop_oneof![4 => 0..300_u64, 2 => 0..3_000_u64, 1 => 0..12_000_u64];
    let granting =
        (1..12_u64, select(vec![0_u64, 100, 500, 1_000, 3_000]), [0.0..=1.0, 0.0..=1.0, 0.0..=1.0])
            .prop_map(|(want, hold, used_at)| Step::Grant { want, hold, used_at });
    let step = prop_oneof![
        3 => passing.prop_map(Step::Pass),
        2 => (1..4_u64).prop_map(Step::Take),
        4 => granting,
        1 => (0.0..=1.0, 0..3_usize).prop_map(|(part, latest)| Step::GiveBack { part, latest }),
    ];
    vec(step, 1..80)
}

/// A grant, and when its hits are used.
#[derive(Clone, Debug)]
struct Granted {
    at: Timestamp,
    hits: u64,
    until: Timestamp,
    used_at: [f64; 3],
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn part(whole: u64, part: f64) -> u64 {
    (whole as f64 * part) as u64
}

/// Runs the steps against a store. Returns the number of used hits by the time of their use.
fn uses(tier: &Tier, steps: &[Step]) -> BTreeMap<Timestamp, u64> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let counted = CountedTarget::new(vec![tier.clone()], OverLimitPolicy::Ignore);
        let mut uses = BTreeMap::new();
        let mut grants: Vec<Granted> = Vec::new();
        for step in steps {
            let now = counted.store.clock().now();
            match *step {
                Step::Pass(millis) => pass(millis).await,
                Step::Take(hits) => *uses.entry(now).or_default() += counted.take(hits),
                Step::Grant { want, hold, used_at } => {
                    let hits = counted.grant(1, want, hold);
                    let mut until = now.after(Period::from_millis(hold));
                    if tier.algorithm == Algorithm::FixedWindow {
                        let end = now.window_end(tier.period).as_nanos() - 1;
                        until = until.min(Timestamp::from_nanos(end));
                    }
                    grants.push(Granted { at: now, hits, until, used_at });
                }
                Step::GiveBack { part: share, latest } => {
                    if let Some(grant) = grants.iter_mut().rev().nth(latest).filter(|grant| grant.until > now)
                    {
                        let back = part(grant.hits, share);
                        grant.hits -= back;
                        let at = std::mem::replace(&mut grant.at, now);
                        counted.now(Op::Add { report: Report::unused(at, back, grant.until) });
                    }
                }
            }
        }
        for Granted { at, hits, until, used_at } in grants {
            for i in 0..hits {
                let share = used_at[usize::try_from(i % 3).expect("few")];
                let later = part(until.since(at).as_nanos(), share);
                *uses.entry(at.after(Period::from_nanos(later))).or_default() += 1;
            }
        }
        uses
    })
}

/// Returns the most hits in any interval of `length` that begins with a use.
fn most_within(uses: &BTreeMap<Timestamp, u64>, length: Period) -> u64 {
    let within = |from: Timestamp| uses.range(from..from.after(length)).map(|(_, hits)| hits).sum();
    uses.keys().map(|from| within(*from)).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn grants_of_a_fixed_window_keep_the_limit(steps in steps(), limit in 1..30_u32) {
        let uses = uses(&tier(limit, PERIOD / 1_000, Algorithm::FixedWindow), &steps);
        let mut windows: BTreeMap<Timestamp, u64> = BTreeMap::new();
        for (at, hits) in uses {
            *windows.entry(at.window_end(Period::from_millis(PERIOD))).or_default() += hits;
        }
        prop_assert!(windows.values().all(|used| *used <= u64::from(limit)), "{windows:?}");
    }

    #[test]
    fn grants_of_a_sliding_window_keep_the_limit(steps in steps(), limit in 1..30_u32) {
        let uses = uses(&tier(limit, PERIOD / 1_000, Algorithm::SlidingWindow), &steps);
        prop_assert!(most_within(&uses, Period::from_millis(PERIOD)) <= u64::from(limit), "{uses:?}");
    }

    /// A bucket refills while granted hits are held, so both may be used together.
    #[test]
    fn grants_of_a_token_bucket_keep_the_limit(steps in steps(), requests in 1..30_u32, burst in 1..30_u32) {
        let hold = 3_000;
        let uses = uses(&tier(requests, PERIOD / 1_000, bucket(burst, false)), &steps);
        let times: Vec<Timestamp> = uses.keys().copied().collect();
        for (i, from) in times.iter().enumerate() {
            let mut used = 0;
            for to in &times[i..] {
                used += uses[to];
                let inflow = (to.since(*from).as_nanos() / 1_000_000 + 1 + hold) * u64::from(requests) / PERIOD;
                prop_assert!(used <= u64::from(burst) + inflow, "{used} from {from:?} to {to:?}");
            }
        }
    }
}
