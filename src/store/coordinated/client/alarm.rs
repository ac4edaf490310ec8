//! Wakes the sender after a time, to some microseconds where the system can: tokio's timers count milliseconds.

use std::time::Duration;

use tokio::time::sleep;

/// The shortest time that tokio's timers measure.
const TICK: Duration = Duration::from_millis(1);

/// What wakes the sender.
#[derive(Debug)]
pub(super) struct Alarm(Option<precise::Timer>);

// === impl Alarm ===

impl Alarm {
    /// Creates an alarm. It uses tokio's timers unless it `follows_system`: time that a test or a simulation sets passes
    /// by these.
    pub(super) fn new(follows_system: bool) -> Self {
        Self(follows_system.then(precise::Timer::new).and_then(Result::ok))
    }

    /// Returns the shortest time that it measures.
    pub(super) const fn finest(&self) -> Duration {
        if self.0.is_some() { precise::FINEST } else { TICK }
    }

    /// Waits for `time`, or a little longer.
    pub(super) async fn wait(&mut self, time: Duration) {
        if let Some(timer) = &mut self.0
            && timer.wait(time).await.is_ok()
        {
            return;
        }
        sleep(time).await;
    }
}

/// A timer of Linux that wakes the runtime as a socket does.
#[cfg(all(target_os = "linux", feature = "remote"))]
mod precise {
    use std::{io, time::Duration};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::net::unix::pipe::Receiver;

    /// The shortest time that is worth a timer, whose setting and waking take a few microseconds.
    pub(super) const FINEST: Duration = Duration::from_micros(50);

    /// A timer, which is read as a pipe is: it has bytes when it has expired.
    #[derive(Debug)]
    pub(super) struct Timer(Receiver);

    impl Timer {
        /// # Panics
        ///
        /// Outside of a tokio runtime whose IO is enabled.
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            Ok(Self(Receiver::from_owned_fd_unchecked(timer)?))
        }

        /// Waits for `time`.
        pub(super) async fn wait(&mut self, time: Duration) -> io::Result<()> {
            // a time of zero would stop it
            let time = Timespec::try_from(time.max(Duration::from_nanos(1))).map_err(io::Error::other)?;
            let once = Itimerspec { it_interval: Timespec::default(), it_value: time };
            // what it was set to before is over
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
            loop {
                self.0.readable().await?;
                match self.0.try_read(&mut [0; 8]) {
                    // it had expired before it was set
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read.map(drop),
                }
            }
        }
    }
}

/// There are none elsewhere.
#[cfg(not(all(target_os = "linux", feature = "remote")))]
mod precise {
    use std::{io, time::Duration};

    pub(super) const FINEST: Duration = super::TICK;

    #[derive(Debug)]
    pub(super) enum Timer {}

    impl Timer {
        pub(super) fn new() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        #[expect(clippy::unused_async, reason = "as that of Linux")]
        pub(super) async fn wait(&mut self, _time: Duration) -> io::Result<()> {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux", feature = "remote"))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn it_wakes_up_after_each_time_that_is_set_and_not_before() {
        let mut alarm = Alarm::new(true);
        assert!(alarm.finest() < TICK && Alarm::new(false).finest() == TICK);
        for micros in [0, 50, 300, 2_000, 80] {
            let (time, begun) = (Duration::from_micros(micros), Instant::now());
            alarm.wait(time).await;
            assert!(begun.elapsed() >= time, "{micros} us");
            // one that nobody waits for any more does not end the next
            let abandoned = tokio::time::timeout(Duration::ZERO, alarm.wait(Duration::from_micros(1)));
            let _ = abandoned.await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_is_set_passes_by_the_timers_of_tokio() {
        let begun = tokio::time::Instant::now();
        Alarm::new(false).wait(Duration::from_mins(1)).await;
        assert_eq!(begun.elapsed().as_secs(), 60);
    }
}
