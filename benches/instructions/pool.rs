//! A pool of a thousand members whose shares are computed beside decisions, and what is done to it.

use std::{hint::black_box, sync::Arc};

use weir_limit::{
    Period, Timestamp,
    share::{Computation, Pool, PoolRule, Shares, Sharing},
};

const CAPACITY: u32 = 100_000;
const CYCLE: Period = Period::from_secs(10);

/// A part of the work for the shares of a pool.
pub(crate) struct ShareWork {
    work: Work,
    /// Whom a decision is about.
    member: &'static str,
    pool: Pool,
    sharing: Arc<Sharing>,
    now: Timestamp,
    computation: Option<Computation>,
    shares: Option<Shares>,
}

#[derive(Clone, Copy)]
enum Work {
    Decide,
    Copy,
    Compute,
    Install,
}

// === impl ShareWork ===

impl ShareWork {
    /// Creates the case `name`: a decision in a step (`decide`), the first one of a step (`first_of_step`) or of a
    /// cycle (`first_of_cycle`), that about a new member (`newcomer`), or the parts of a computation (`copy`,
    /// `compute`, `install`). With `sixteen_` before it there are as many members; a decision then computes their
    /// shares by itself.
    pub(crate) fn new(name: &str) -> Self {
        let (members, name) = name.strip_prefix("sixteen_").map_or((1_000, name), |name| (16, name));
        let sharing = Arc::new(Sharing { max_members: 1_024, ..Sharing::default() });
        let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &sharing };
        let mut pool = Pool::concurrent();
        let mut at = 1_000_000_000;
        for step in 0..25 {
            at += 500;
            for i in 0..members {
                pool.decide(&rule, &format!("tenant-{i}"), 1 + i % 9, true, Timestamp::from_millis(at));
            }
            if step < 24
                && let Some(computation) = pool.begin_shares(CAPACITY, CYCLE, &sharing)
            {
                pool.install(computation.run());
            }
        }
        // the shares of the last step are due
        let wait = match name {
            "first_of_step" => 500,
            "first_of_cycle" => 10_000,
            _ => 0,
        };
        let work = match name {
            "copy" => Work::Copy,
            "compute" => Work::Compute,
            "install" => Work::Install,
            _ => Work::Decide,
        };
        let is_copied = matches!(work, Work::Compute | Work::Install);
        let computation = if is_copied { pool.begin_shares(CAPACITY, CYCLE, &sharing) } else { None };
        let shares = computation.as_ref().filter(|_| matches!(work, Work::Install)).map(Computation::run);
        let member = if name == "newcomer" { "new" } else { "tenant-7" };
        Self { work, member, pool, sharing, now: Timestamp::from_millis(at + wait), computation, shares }
    }

    /// Does the work.
    pub(crate) fn run(&mut self) {
        match self.work {
            Work::Decide => {
                let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &self.sharing };
                black_box(self.pool.decide(&rule, self.member, 1, true, self.now));
            }
            Work::Copy => self.computation = self.pool.begin_shares(CAPACITY, CYCLE, &self.sharing),
            Work::Compute => self.shares = self.computation.as_ref().map(Computation::run),
            Work::Install => {
                if let Some(shares) = self.shares.take() {
                    self.pool.install(shares);
                }
            }
        }
    }
}
