//! Timers of a clock that [`run`] moves to the next timer from time to time, while other tasks run: a timer may fire
//! before, between or after any of their steps.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    future::Future,
    ops::{Add, AddAssign, Sub},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use shuttle::rand::Rng as _;

pub use std::time::Duration;

/// The most times that the clock waits for other tasks between two timers.
const MOST_STEPS: u32 = 60;

/// The most that the clock moves at once: tasks may be about to wait for less.
const MOST_TIME: Duration = Duration::from_millis(100);

/// How often it waits once it is slow, so that whatever needs no timer is done before the next one.
const SLOW_STEPS: u32 = 3_000;

#[derive(Default)]
struct Timers {
    now: Duration,
    is_slow: bool,
    last_id: u64,
    by_deadline: BTreeMap<(Duration, u64), Option<Waker>>,
}

thread_local! {
    // Shuttle runs all tasks of a test on one thread
    static TIMERS: RefCell<Timers> = RefCell::default();
}

/// Starts the clock again. To be called before each run.
pub fn restart() {
    TIMERS.take();
}

/// Lets the clock move slowly from now on, as if tasks took no time.
pub fn slow_down() {
    TIMERS.with_borrow_mut(|timers| timers.is_slow = true);
}

/// Fires one timer after the other until it is dropped.
pub async fn run() {
    loop {
        let is_slow = TIMERS.with_borrow(|timers| timers.is_slow);
        let steps = if is_slow { SLOW_STEPS } else { shuttle::rand::thread_rng().gen_range(1..=MOST_STEPS) };
        for _ in 0..steps {
            shuttle::future::yield_now().await;
        }
        // nothing is borrowed while another task may run
        let waker = TIMERS.with_borrow_mut(|timers| {
            let (deadline, _) = *timers.by_deadline.first_key_value()?.0;
            timers.now = timers.now.max(deadline.min(timers.now + MOST_TIME));
            if deadline > timers.now {
                return None;
            }
            timers.by_deadline.pop_first()?.1
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// An instant of the clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Self {
        Self(TIMERS.with_borrow(|timers| timers.now))
    }

    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Completes when the clock reaches an instant.
#[derive(Debug)]
pub struct Sleep {
    deadline: Duration,
    id: Option<u64>,
}

pub fn sleep(time: Duration) -> Sleep {
    sleep_until(Instant::now() + time)
}

pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline: deadline.0, id: None }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        TIMERS.with_borrow_mut(|timers| {
            let is_registered = self.id.is_some_and(|id| timers.by_deadline.contains_key(&(deadline, id)));
            if timers.now >= deadline && !is_registered {
                return Poll::Ready(());
            }
            let id = *self.id.get_or_insert_with(|| {
                timers.last_id += 1;
                timers.last_id
            });
            timers.by_deadline.insert((deadline, id), Some(context.waker().clone()));
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let key = (self.deadline, id);
            // a waker may run other code when it is dropped
            let waker = TIMERS.with_borrow_mut(|timers| timers.by_deadline.remove(&key));
            drop(waker);
        }
    }
}

/// The end of a [`timeout`].
pub mod error {
    #[derive(Debug, PartialEq, Eq)]
    pub struct Elapsed(pub(super) ());

    impl std::fmt::Display for Elapsed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("deadline has elapsed")
        }
    }

    impl std::error::Error for Elapsed {}
}

/// Waits for `future`, but no longer than `time`.
pub async fn timeout<F: Future>(time: Duration, future: F) -> Result<F::Output, error::Elapsed> {
    timeout_at(Instant::now() + time, future).await
}

/// Waits for `future`, but no longer than until `deadline`.
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, error::Elapsed> {
    let (mut future, mut end) = (pin!(future), pin!(sleep_until(deadline)));
    std::future::poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => end.as_mut().poll(context).map(|()| Err(error::Elapsed(()))),
    })
    .await
}

/// What an interval does after a missed tick. It waits for a whole period in any case.
#[derive(Clone, Copy, Debug)]
pub enum MissedTickBehavior {
    Burst,
    Delay,
    Skip,
}

/// Ticks at once, and then after each period.
#[derive(Debug)]
pub struct Interval {
    period: Duration,
    next: Instant,
}

pub fn interval(period: Duration) -> Interval {
    Interval { period, next: Instant::now() }
}

impl Interval {
    pub fn set_missed_tick_behavior(&mut self, _: MissedTickBehavior) {}

    pub async fn tick(&mut self) -> Instant {
        sleep_until(self.next).await;
        self.next = Instant::now() + self.period;
        Instant::now()
    }
}
