//! Values that each thread writes in a place of its own: threads that write one cache line wait for one another.

use std::{
    cell::Cell,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

const MAX_PLACES: usize = 16;

/// A power of two of at least the processors, up to [`MAX_PLACES`].
static PLACES: LazyLock<usize> = LazyLock::new(|| {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    processors.next_power_of_two().min(MAX_PLACES)
});

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A value with a place for each thread. What was written stays when a thread ends, whose place another one may take.
#[derive(Debug)]
pub struct Sharded<T>(Box<[ShardedPlace<T>]>);

/// A place shares no cache line with others; processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ShardedPlace<T>(T);

// === impl Sharded ===

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Self::of(T::default)
    }
}

impl<T> Sharded<T> {
    pub(super) fn of(make: impl Fn() -> T) -> Self {
        Self::of_at_least(1, make)
    }

    /// At least so many places, a power of two, for values that threads hold for a while.
    pub fn of_at_least(places: usize, make: impl Fn() -> T) -> Self {
        Self((0..places.max(*PLACES)).map(|_| ShardedPlace(make())).collect())
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn own(&self) -> &T {
        // a power of two
        &self.0[thread_number() & (self.0.len() - 1)].0
    }

    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|place| &place.0)
    }
}

impl<T: Default> Sharded<T> {
    /// One place that all threads share, for values that are too many for more.
    pub(super) fn single() -> Self {
        Self([ShardedPlace::default()].into())
    }
}

fn thread_number() -> usize {
    THREAD.get().unwrap_or_else(|| {
        let number = THREADS.fetch_add(1, Ordering::Relaxed);
        THREAD.set(Some(number));
        number
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;

    #[test]
    fn what_threads_have_written_is_there_after_their_end() {
        let counter = Sharded::<Counter>::default();
        thread::scope(|scope| {
            for n in 1..=100 {
                let counter = &counter;
                scope.spawn(move || counter.own().add(n));
            }
        });
        assert_eq!(counter.all().map(Counter::get).sum::<u64>(), 5_050);
    }

    #[test]
    fn no_two_places_share_a_line() {
        assert_eq!((size_of::<ShardedPlace<Counter>>(), align_of::<ShardedPlace<Counter>>()), (128, 128));
    }
}
