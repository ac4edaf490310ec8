//! Which messages are sent again, and when (<https://opentelemetry.io/docs/specs/otlp/#failures>).

use std::time::Duration;

use http::{Response, StatusCode, header::RETRY_AFTER};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// The pause after a first failed attempt; it doubles with each further one, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The longest pause that a collector can ask for.
const MAX_ASKED: Duration = Duration::from_secs(30);

/// Whether an attempt that has failed is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The collector does not want the message.
    Never,
    /// Another attempt may succeed.
    Later,
    /// The collector asks for this pause.
    After(Duration),
}

/// The pauses between the attempts for one message.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
}

// === impl Repeat ===

impl Repeat {
    /// Returns what a gRPC status says.
    pub(super) fn of_status(status: &Status) -> Self {
        let asked = status.get_details_retry_info().and_then(|info| info.retry_delay);
        match (status.code(), asked) {
            (Code::ResourceExhausted | Code::Unavailable, Some(pause)) => Self::After(pause),
            (
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss,
                _,
            ) => Self::Later,
            _ => Self::Never,
        }
    }

    /// Returns what a response over HTTP says that is no success.
    pub(super) fn of_response<B>(response: &Response<B>) -> Self {
        match response.status() {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
                let seconds = asked.and_then(|asked| asked.trim().parse().ok());
                seconds.map_or(Self::Later, |seconds| Self::After(Duration::from_secs(seconds)))
            }
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Self::Later,
            _ => Self::Never,
        }
    }
}

// === impl Pauses ===

impl Default for Pauses {
    fn default() -> Self {
        Self { next: FIRST_PAUSE }
    }
}

impl Pauses {
    /// Returns the pause before the next attempt, if there is one. `random` from 0 to 1 spreads the attempts of many
    /// instances.
    pub(super) fn next(&mut self, repeat: Repeat, random: f64) -> Option<Duration> {
        let pause = match repeat {
            Repeat::Never => return None,
            Repeat::Later => self.next,
            Repeat::After(asked) => asked.min(MAX_ASKED).max(self.next),
        };
        self.next = (self.next * 2).min(MAX_PAUSE);
        Some(pause + FIRST_PAUSE.mul_f64(random))
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn statuses_are_repeated_as_the_protocol_says() {
        let pause = Duration::from_secs(3);
        let asking = |code| {
            let details = ErrorDetails::with_retry_info(Some(pause));
            Repeat::of_status(&Status::with_error_details(code, "", details))
        };
        assert_eq!(asking(Code::ResourceExhausted), Repeat::After(pause));
        assert_eq!(asking(Code::Unavailable), Repeat::After(pause));
        assert_eq!(asking(Code::Internal), Repeat::Never);
        for (code, expected) in [
            (Code::Unavailable, Repeat::Later),
            (Code::Cancelled, Repeat::Later),
            (Code::DeadlineExceeded, Repeat::Later),
            (Code::ResourceExhausted, Repeat::Never),
            (Code::Unknown, Repeat::Never),
            (Code::InvalidArgument, Repeat::Never),
        ] {
            assert_eq!(Repeat::of_status(&Status::new(code, "")), expected, "{code}");
        }
    }

    #[test]
    fn responses_are_repeated_as_the_protocol_says() {
        for (status, asked, expected) in [
            (429, Some("7"), Repeat::After(Duration::from_secs(7))),
            (503, Some("soon"), Repeat::Later),
            (503, None, Repeat::Later),
            (502, Some("7"), Repeat::Later),
            (504, None, Repeat::Later),
            (500, Some("7"), Repeat::Never),
            (400, None, Repeat::Never),
        ] {
            let mut response = Response::builder().status(status);
            if let Some(asked) = asked {
                response = response.header(RETRY_AFTER, asked);
            }
            let response = response.body(()).expect("a response");
            assert_eq!(Repeat::of_response(&response), expected, "{status} {asked:?}");
        }
    }

    #[test]
    fn pauses_grow_and_obey_the_collector() {
        let seconds = Duration::from_secs_f64;
        let mut pauses = Pauses::default();
        let mut next = |repeat| pauses.next(repeat, 0.0);
        assert_eq!(next(Repeat::Later), Some(seconds(0.5)));
        assert_eq!(next(Repeat::After(seconds(3.0))), Some(seconds(3.0)));
        assert_eq!(next(Repeat::After(seconds(1.0))), Some(seconds(2.0)));
        assert_eq!(next(Repeat::After(seconds(1e6))), Some(MAX_ASKED));
        assert_eq!(next(Repeat::Later), Some(seconds(8.0)));
        assert_eq!(next(Repeat::Later), Some(MAX_PAUSE));
        assert_eq!(next(Repeat::Never), None);
        assert_eq!(Pauses::default().next(Repeat::Later, 1.0), Some(seconds(1.0)));
    }
}
