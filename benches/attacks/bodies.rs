//! Many callers that send large bodies to `/json` at once.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    Held,
    target::{Target, connect},
};

const CALLERS: usize = 30;

/// The descriptors of each body: below weir's bound.
const DESCRIPTORS: usize = 9_000;

/// How long the callers go on.
const TIME: Duration = Duration::from_secs(10);

/// Bodies of 1.2 MB.
pub(crate) fn large(target: &Target) -> Held {
    let entry = format!(r#"{{"entries": [{{"key": "other", "value": "{}"}}]}}"#, "x".repeat(85));
    let descriptors = vec![entry; DESCRIPTORS].join(",");
    let domain = target.domain.as_deref().unwrap_or("unknown");
    let body = format!(r#"{{"domain": "{domain}", "descriptors": [{descriptors}]}}"#);
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let (request, http) = (head + &body, target.http.as_str());
    let (begun, answered) = (Instant::now(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                while begun.elapsed() < TIME {
                    let Ok(stream) = connect(http) else { return };
                    answered.fetch_add(usize::from(post(stream, &request)), Ordering::Relaxed);
                }
            });
        }
    });
    let outcome = format!("{} bodies of {} KB decided", answered.into_inner(), body.len() / 1_000);
    Held { outcome, _open: Box::new(()) }
}

/// Returns whether the request was decided.
fn post(mut stream: TcpStream, request: &str) -> bool {
    let mut response = Vec::new();
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_end(&mut response).is_ok()
        && response.starts_with(b"HTTP/1.1 200")
}
