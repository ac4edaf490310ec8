//! A TCP proxy in front of Redis that replaces the seconds in each reply to `TIME`, and in the replies to heartbeats.
//!
//! weir cuts windows by the clock of Redis. With this proxy they do not depend on the hour at which the test runs.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
};

/// A reply to `TIME`, up to the seconds.
const BEFORE: &[u8] = b"*2\r\n$10\r\n";

/// Digits of the seconds, from 2001 to 2286.
const DIGITS: usize = 10;

/// Digits of the microseconds that the reply to a heartbeat has as a number.
const MICROS: usize = 16;

/// Starts a proxy in front of `server` and returns its address. It shows `seconds` since the epoch.
pub(crate) async fn proxy(server: SocketAddr, seconds: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("a listener has an address");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(carry(client, server, seconds));
        }
    });
    address
}

/// Carries one connection until either side ends it.
async fn carry(client: TcpStream, server: SocketAddr, seconds: u64) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("it is a TCP socket");
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let replies = async {
        let (mut pending, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            pending.extend_from_slice(&buffer[..count]);
            let complete = set_seconds(&mut pending, seconds);
            if to_client.write_all(&pending[..complete]).await.is_err() {
                return;
            }
            pending.drain(..complete);
        }
    };
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        () = replies => {}
    }
}

/// Replaces the seconds in `bytes`. Returns how many bytes are complete: the rest may be the begin of a time.
fn set_seconds(bytes: &mut [u8], seconds: u64) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &mut bytes[at..];
        if rest[0] == b':' {
            let digits = rest[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if rest.len() == 1 + digits {
                return at;
            }
            if digits == MICROS {
                rest[1..=DIGITS].copy_from_slice(format!("{seconds:0DIGITS$}").as_bytes());
            }
            at += 1 + digits;
            continue;
        }
        let begin = &rest[..rest.len().min(BEFORE.len())];
        if !BEFORE.starts_with(begin) {
            at += 1;
        } else if let Some(digits) = rest.get_mut(BEFORE.len()..BEFORE.len() + DIGITS) {
            digits.copy_from_slice(format!("{seconds:0DIGITS$}").as_bytes());
            at += BEFORE.len() + DIGITS;
        } else {
            return at;
        }
    }
    at
}

#[test]
fn seconds_are_replaced_and_an_incomplete_reply_is_kept() {
    let mut bytes = b"+OK\r\n*2\r\n$10\r\n1795300000\r\n$6\r\n123456\r\n*2\r\n$10\r\n17953".to_vec();
    let complete = set_seconds(&mut bytes, 1_234_567_890);
    assert_eq!(&bytes[..complete], b"+OK\r\n*2\r\n$10\r\n1234567890\r\n$6\r\n123456\r\n");
    let mut bytes = b"*5\r\n:1\r\n:1795300000123456\r\n:1795300000\r\n:-1\r\n:17953000001234".to_vec();
    let complete = set_seconds(&mut bytes, 1_234_567_890);
    assert_eq!(&bytes[..complete], b"*5\r\n:1\r\n:1234567890123456\r\n:1795300000\r\n:-1\r\n");
}
