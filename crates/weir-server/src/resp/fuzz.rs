//! The fuzz target: the bytes of a connection.

#![expect(clippy::missing_panics_doc, reason = "a target panics if weir is wrong")]

use std::{
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
};

use super::{
    Auth, Service, ServiceSettings, connection,
    parse::{CommandBounds, Parsed, Ranges, parse},
};
use crate::{connections::Connections, fuzz::parts};
use weir_store::MemoryStore;

const CHUNK: usize = 200;

struct Client<'a> {
    rest: &'a [u8],
    replies: Vec<u8>,
}

impl AsyncRead for Client<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let (now, later) = self.rest.split_at(self.rest.len().min(CHUNK).min(into.remaining()));
        into.put_slice(now);
        self.rest = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.replies.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Serves a connection. The first bit of the input says whether its client has to authenticate.
pub fn connection(input: &[u8]) {
    static SERVICES: LazyLock<[Service<MemoryStore>; 2]> =
        LazyLock::new(|| [None, Auth::parse("me:secret")].map(service));
    let Some((first, input)) = input.split_first() else { return };
    let mut ranges = Ranges::new();
    let parsed = parse(input, CommandBounds::FULL, &mut ranges);
    if let Parsed::Command(length) = parsed {
        let ends = ranges.iter().map(|range| range.end + 2).max();
        assert!(length <= input.len() && ends.unwrap_or(length) == length);
        // the beginning of a command is none
        assert_eq!(parse(&input[..length - 1], CommandBounds::FULL, &mut ranges), Parsed::Incomplete);
    }
    let service = &SERVICES[usize::from(first % 2)];
    let open = service.connections.open().expect("there is room");
    let mut client = Client { rest: input, replies: Vec::new() };
    // all that has arrived is carried out, and no wrong password makes it wait
    let (_stop, stopping) = watch::channel(true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(connection::serve(&mut client, &open, service, stopping));
    check(&client.replies);
}

fn service(auth: Option<Auth>) -> Service<MemoryStore> {
    let parts = parts();
    let settings = ServiceSettings { auth, allows_reset: true };
    let connections = Arc::<Connections>::default();
    Service::new(parts.limiter, parts.clock, &parts.stats, settings, connections)
}

/// Checks that replies are in the protocol, without a word more or less.
fn check(replies: &[u8]) {
    let mut at = 0;
    // the elements that are still to come
    let mut open = 0_usize;
    while at < replies.len() {
        let end = at + replies[at..].windows(2).position(|two| two == b"\r\n").expect("a line ends");
        let line = &replies[at + 1..end];
        let number = || std::str::from_utf8(line).expect("digits").parse::<i64>().expect("a number");
        let length = || usize::try_from(number()).unwrap_or(0);
        let kind = replies[at];
        at = end + 2;
        open = open.saturating_sub(1);
        match kind {
            b'+' | b'-' => assert!(!line.iter().any(u8::is_ascii_control)),
            b':' => drop(number()),
            b'_' => assert!(line.is_empty()),
            b'$' if number() == -1 => {}
            b'$' | b'=' => {
                at += length();
                assert_eq!(&replies[at..at + 2], b"\r\n");
                at += 2;
            }
            b'*' | b'~' => open += length(),
            b'%' => open += 2 * length(),
            other => panic!("an unknown type {}", other.escape_ascii()),
        }
    }
    assert_eq!(open, 0, "elements are missing");
}
