//! The headers of calls: what they take in memory, the bound on their number, and the time that the caller waits.
//!
//! HTTP/2 bounds the bytes of a header list, but a list of many short headers takes several times as much.

use std::time::Duration;

use http::{HeaderMap, Request};
use tonic::Status;

use crate::{bounds::Bound, connections::ConnectionAccount};

/// The most headers of a call. Envoy sends about a dozen.
const MAX_HEADERS: usize = 100;

/// The memory of a place in the table of headers, in bytes: its name, its value, its hash and its share of the index.
const PLACE: usize = 112;

/// The memory of a name beside its text, in bytes: what the allocator takes for a short one.
const NAME: usize = 32;

/// The memory of a further value of a name, in bytes, beside its text: in a list that grows by doubling.
const REPEATED: usize = 144;

/// Of the number in gRPC's header `grpc-timeout`.
/// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>)
const DIGITS: usize = 8;

/// Left for the way of the request and of its response, and for timers, which may be a millisecond late.
const TRAVEL: Duration = Duration::from_millis(2);

pub(super) fn check<B>(call: &Request<B>, account: &ConnectionAccount) -> Result<(), Status> {
    if call.headers().len() <= MAX_HEADERS {
        return Ok(());
    }
    account.exceeded().add(Bound::Headers);
    Err(Status::resource_exhausted(format!("the call has more than {MAX_HEADERS} headers")))
}

/// The memory of the headers and the URI, in bytes.
pub(super) fn weight<B>(call: &Request<B>) -> usize {
    let headers = call.headers();
    let text: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let uri = call.uri();
    let uri = uri.path_and_query().map_or(0, |path| path.as_str().len())
        + uri.authority().map_or(0, |authority| authority.as_str().len());
    let repeated = headers.len() - headers.keys_len();
    // text may keep the frame that it came in
    headers.capacity() * PLACE + headers.keys_len() * NAME + repeated * REPEATED + 2 * (text + uri)
}

/// How long a decision may wait for a shared store, so that its response reaches the caller in time: the timeout less
/// [`TRAVEL`], and at least half of it. None without a timeout. The error is that of grpc-go.
pub(super) fn longest_wait(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let timeout = parse(value.as_bytes()).ok_or_else(|| malformed(value.as_bytes()))?;
    Ok(Some(timeout.saturating_sub(TRAVEL.min(timeout / 2))))
}

/// Zero is allowed, although the specification says "positive": to other servers it is a deadline that has passed.
fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=DIGITS).contains(&digits.len()) {
        return None;
    }
    let unit: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return None,
    };
    let number = digits.iter().try_fold(0, |number: u64, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })?;
    Some(Duration::from_nanos(number.saturating_mul(unit)))
}

#[cold]
fn malformed(value: &[u8]) -> Status {
    // the text goes into a header
    let shown = value[..value.len().min(16)].escape_ascii();
    Status::internal(format!(
        "malformed grpc-timeout: \"{shown}\" is not 1 to {DIGITS} digits and one of H, M, S, m, u, n"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderName, HeaderValue};
    use tonic::Code;

    use super::*;
    use crate::connections::Connections;

    fn call(names: impl IntoIterator<Item = String>) -> Request<()> {
        let mut call = Request::new(());
        for name in names {
            let name = HeaderName::try_from(name).expect("a name");
            call.headers_mut().append(name, HeaderValue::from_static("x"));
        }
        call
    }

    fn names(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|i| format!("h{i}"))
    }

    #[test]
    fn the_number_of_headers_is_bounded_also_if_they_have_one_name() {
        let open = Arc::new(Connections::default()).open().expect("it is the first");
        let account = open.account();
        assert!(check(&call(names(MAX_HEADERS)), account).is_ok());
        for many in [call(names(MAX_HEADERS + 1)), call(vec!["same".to_owned(); MAX_HEADERS + 1])] {
            let status = check(&many, account).expect_err("too many");
            assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        }
        assert_eq!(account.exceeded().get(Bound::Headers), 2);
    }

    #[test]
    fn the_weight_is_at_least_what_the_headers_allocate() {
        let long = || "y".repeat(5_000);
        for make in [
            (|| call(names(0))) as fn() -> Request<()>,
            || call(names(12)),
            || call(names(100)),
            || call(names(440)),
            || call(vec!["same".to_owned(); 100]),
        ] {
            let mut made = None;
            let measured = allocation_counter::measure(|| made = Some(make()));
            let (call, held) = (made.expect("a call"), measured.bytes_current);
            let held = usize::try_from(held).expect("it holds something");
            let weight = weight(&call);
            assert!(weight >= held && weight <= 2 * held + 1_000, "{weight} of {held}");
        }
        let uri = format!("http://{}/{}", "host", long()).parse().expect("a URI");
        let mut call = call(names(1));
        *call.uri_mut() = uri;
        assert!(weight(&call) > 10_000);
    }

    fn wait(value: &[u8]) -> Result<Option<Duration>, Status> {
        let value = HeaderValue::from_bytes(value).expect("a header value");
        longest_wait(&HeaderMap::from_iter([("grpc-timeout".parse().expect("a name"), value)]))
    }

    #[test]
    fn a_timeout_leaves_time_for_the_way_of_the_response() {
        let waits = [
            (&b"20m"[..], Duration::from_millis(18)),
            (b"5m", Duration::from_millis(3)),
            (b"5000u", Duration::from_millis(3)),
            (b"00000005m", Duration::from_millis(3)),
            (b"4m", Duration::from_millis(2)),
            // half of a shorter one
            (b"3m", Duration::from_micros(1_500)),
            (b"1n", Duration::from_nanos(1)),
            (b"0S", Duration::ZERO),
            (b"1S", Duration::from_millis(998)),
            (b"2M", Duration::from_millis(119_998)),
            (b"1H", Duration::from_millis(3_599_998)),
            (b"99999999H", Duration::from_nanos(u64::MAX).saturating_sub(TRAVEL)),
        ];
        for (value, expected) in waits {
            assert_eq!(wait(value).expect("a timeout"), Some(expected), "{}", value.escape_ascii());
        }
        assert_eq!(longest_wait(&HeaderMap::new()).expect("no timeout"), None);
    }

    #[test]
    fn a_malformed_timeout_is_an_error_that_names_it() {
        let long = [b'9'; 4_000];
        for value in [
            &b""[..],
            b"m",
            b"5",
            b"5s",
            b"5ms",
            b"-5m",
            b"+5m",
            b"1.5S",
            b" 5m",
            b"123456789m",
            b"\xff5m",
            &long,
        ] {
            let error = wait(value).expect_err("malformed");
            assert_eq!(error.code(), Code::Internal, "{}", value.escape_ascii());
            assert!(error.message().starts_with("malformed grpc-timeout: \""), "{}", error.message());
            assert!(error.message().len() < 200 && error.message().is_ascii(), "{}", error.message());
        }
        assert_eq!(
            wait(b"5s").expect_err("malformed").message(),
            "malformed grpc-timeout: \"5s\" is not 1 to 8 digits and one of H, M, S, m, u, n"
        );
    }
}
