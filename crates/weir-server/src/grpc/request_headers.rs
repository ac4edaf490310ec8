//! The headers of calls: what they take in memory, and the bound on their number.
//!
//! HTTP/2 bounds the bytes of a header list, but a list of many short headers takes several times as much.

use http::Request;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderName, HeaderValue};

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
}
