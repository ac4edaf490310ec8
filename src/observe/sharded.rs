//! Values that each thread writes in a place of its own: threads that write one cache line wait for one another.

use std::{
    cell::Cell,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// The most places of a value. With more threads than places, some share one.
const MAX_PLACES: usize = 16;

/// The number of places: a power of two, at least that of the processors that this process may use, if these are not
/// more.
static PLACES: LazyLock<usize> = LazyLock::new(|| {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    processors.next_power_of_two().min(MAX_PLACES)
});

/// The number of threads that have a place.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of this thread among those, if it has a place.
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A value with a place for each thread. What was written stays when a thread ends, whose place another one may take.
#[derive(Debug)]
pub(super) struct Sharded<T>(Box<[Place<T>]>);

/// A place: no cache line of it has anything else. Processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Place<T>(T);

// === impl Sharded ===

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Self((0..*PLACES).map(|_| Place::default()).collect())
    }
}

impl<T: Default> Sharded<T> {
    /// Returns a value with one place, which all threads share, for values that are too many for more.
    pub(super) fn single() -> Self {
        Self([Place::default()].into())
    }

    /// Returns the place of this thread.
    pub(super) fn own(&self) -> &T {
        // a power of two
        &self.0[thread_number() & (self.0.len() - 1)].0
    }

    /// Returns all places.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|place| &place.0)
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
    use crate::observe::Counter;

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
        assert_eq!((size_of::<Place<Counter>>(), align_of::<Place<Counter>>()), (128, 128));
    }
}
