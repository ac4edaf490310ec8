//! Calls of many short headers, which never end.

use std::time::Instant;

use super::{
    Held,
    connection::Connection,
    target::{PATIENCE, Target},
};

const CONNECTIONS: usize = 8;

/// The open calls of each connection: weir's own bound.
const CALLS: u32 = 4_096;

const DECISION: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const HEALTH: &str = "/grpc.health.v1.Health/Watch";

/// As many headers as the bound on their bytes admits.
pub(crate) fn many(target: &Target) -> Held {
    attack(target, DECISION, 440)
}

/// As many headers as weir admits.
pub(crate) fn few(target: &Target) -> Held {
    attack(target, DECISION, 95)
}

/// The same, of the service that reports health.
pub(crate) fn health(target: &Target) -> Held {
    attack(target, HEALTH, 95)
}

fn attack(target: &Target, path: &str, headers: usize) -> Held {
    let block = block(path, headers);
    let (begun, mut open, mut calls) = (Instant::now(), Vec::new(), 0);
    for _ in 0..CONNECTIONS {
        let Ok(mut connection) = Connection::open(&target.grpc) else { break };
        for _ in 0..CALLS {
            if begun.elapsed() > PATIENCE || connection.call(&block).is_err() {
                break;
            }
            calls += 1;
        }
        open.push(connection);
    }
    let outcome = format!("{calls} calls of {headers} headers on {} connections", open.len());
    Held { outcome, _open: Box::new(open) }
}

/// Returns the header block of a call of `path` with `headers` headers whose names have two letters.
fn block(path: &str, headers: usize) -> Vec<u8> {
    const DIGITS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
    let length = u8::try_from(path.len()).expect("it is short");
    // POST and http from HPACK's static table, and a literal path and host
    let mut block = [&[0x83, 0x86, 0x04, length][..], path.as_bytes(), &[0x41, 1, b'w']].concat();
    // the content type, by the name's index
    block.extend([&[0x0f, 0x10, 16][..], b"application/grpc"].concat());
    for i in 0..headers {
        block.extend([0, 2, DIGITS[i / DIGITS.len()], DIGITS[i % DIGITS.len()], 0]);
    }
    block
}
