//! Many connections of HTTP/1 with an unfinished header.

use std::{io::Write as _, time::Instant};

use super::{
    Held,
    target::{PATIENCE, Target, connect},
};

/// The connections: what was weir's own bound once.
const CONNECTIONS: usize = 16_384;

/// Headers of 62 KB, which a server with a bound of 64 KiB holds.
pub(crate) fn large(target: &Target) -> Held {
    attack(target, 62_000)
}

/// Headers that are below weir's bound.
pub(crate) fn small(target: &Target) -> Held {
    attack(target, 15_000)
}

fn attack(target: &Target, bytes: usize) -> Held {
    let header = format!("GET /healthcheck HTTP/1.1\r\nhost: weir\r\nx-a: {}", "a".repeat(bytes));
    let (begun, mut open, mut refused) = (Instant::now(), Vec::new(), 0);
    // the system's limit of open files may be lower
    while open.len() < CONNECTIONS && begun.elapsed() < PATIENCE {
        let Ok(mut stream) = connect(&target.http) else { break };
        refused += usize::from(stream.write_all(header.as_bytes()).is_err());
        open.push(stream);
    }
    Held {
        outcome: format!("{} connections, {refused} refused at once", open.len()),
        _open: Box::new(open),
    }
}
