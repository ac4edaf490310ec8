//! The clocks. All other code receives the time as a parameter.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use weir_limit::{Period, Timestamp};

/// The least step of the wall clock that is reported: adjustments of a clock that runs fast or slow are smaller.
pub const STEP: Period = Period::from_secs(1);

/// How often a clock that may be set is read again.
const LOOK: Duration = Duration::from_secs(1);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

pub trait Clock: Send + Sync + 'static {
    /// Returns the current time. It may step back between calls.
    fn now(&self) -> Timestamp;

    /// Returns the time since an instant that is the same for all calls. It never steps, whatever the wall clock does.
    fn uptime(&self) -> Period {
        Period::from_nanos(u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The system's wall clock. All instances align windows to the epoch, so monotonic time cannot be used.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A clock that changes only when it is set, for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
    passed: AtomicU64,
}

/// What a clock shows, and the time that has passed. Two of them tell whether the clock has stepped in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub now: Timestamp,
    /// [`Clock::uptime`].
    pub uptime: Period,
}

// === impl Reading ===

impl Reading {
    /// Reads `clock`: both at one time, as far as that can be.
    pub fn of(clock: &(impl Clock + ?Sized)) -> Self {
        loop {
            let before = clock.uptime();
            let reading = Self { now: clock.now(), uptime: clock.uptime() };
            // otherwise the thread was stopped in between
            if reading.uptime.as_nanos().saturating_sub(before.as_nanos()) < STEP.as_nanos() / 10 {
                return reading;
            }
        }
    }

    /// Returns the nanoseconds by which the clock was set since `earlier`, negative if back; none below [`STEP`].
    pub fn step_since(&self, earlier: &Self) -> Option<i64> {
        let ahead =
            |reading: &Self| i128::from(reading.now.as_nanos()) - i128::from(reading.uptime.as_nanos());
        let step = i64::try_from(ahead(self) - ahead(earlier)).ok()?;
        (step.unsigned_abs() >= STEP.as_nanos()).then_some(step)
    }
}

/// Returns how long to wait before it is looked whether `until` has come: a second at most, since clocks may be set; for
/// ever if it never comes.
pub fn pause_before(until: Option<Timestamp>, now: Timestamp) -> Duration {
    until.map_or(Duration::MAX, |until| Duration::from_nanos(until.since(now).as_nanos()).min(LOOK))
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_nanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl ManualClock {
    pub const fn at(now: Timestamp) -> Self {
        Self { nanos: AtomicU64::new(now.as_nanos()), passed: AtomicU64::new(0) }
    }

    /// Sets the time to `now`, later or earlier: the clock steps, and no time passes.
    pub fn set(&self, now: Timestamp) {
        self.nanos.store(now.as_nanos(), Ordering::Release);
    }

    /// Advances the time by `period`, which passes.
    pub fn advance(&self, period: Period) {
        self.passed.fetch_add(period.as_nanos(), Ordering::AcqRel);
        self.set(self.now().after(period));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.nanos.load(Ordering::Acquire))
    }

    fn uptime(&self) -> Period {
        Period::from_nanos(self.passed.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_steps_and_one_that_goes_on_does_not() {
        let clock = ManualClock::at(Timestamp::from_secs(10_000));
        let first = Reading::of(&clock);
        clock.advance(Period::from_secs(3_600));
        let second = Reading::of(&clock);
        assert_eq!(second.step_since(&first), None);
        clock.set(Timestamp::from_secs(10_000));
        let third = Reading::of(&clock);
        assert_eq!(third.step_since(&second), Some(-3_600_000_000_000));
        assert_eq!(first.step_since(&third), Some(3_600_000_000_000));
        clock.set(Timestamp::from_millis(10_000_999));
        assert_eq!(Reading::of(&clock).step_since(&third), None);
    }

    #[test]
    fn the_system_measures_the_time_that_passes() {
        let first = Reading::of(&SystemClock);
        while Reading::of(&SystemClock).uptime <= first.uptime {}
    }
}
