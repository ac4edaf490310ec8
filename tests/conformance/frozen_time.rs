//! A TCP proxy in front of Redis that replaces the time in each reply to `TIME`, and in the replies to heartbeats.
//!
//! weir cuts windows by the clock of Redis. With this proxy they do not depend on the hour at which the test runs. That
//! clock stands still: if its microseconds went on, it would step back at the end of each second, and weir takes no
//! reply about a counter that is earlier than the last one.

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

/// Starts a proxy in front of `server` and returns its address. It shows `seconds` since the epoch, and no
/// fraction.
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
            let complete = freeze(&mut pending, seconds);
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

/// Sets the times in `bytes`. Returns how many bytes are complete: the rest may be the begin of a time.
fn freeze(bytes: &mut [u8], seconds: u64) -> usize {
    let seconds = format!("{seconds:0DIGITS$}");
    let mut at = 0;
    while at < bytes.len() {
        let rest = &mut bytes[at..];
        if rest[0] == b':' {
            let digits = rest[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if rest.len() == 1 + digits {
                return at;
            }
            if digits == MICROS {
                let (whole, fraction) = rest[1..=MICROS].split_at_mut(DIGITS);
                whole.copy_from_slice(seconds.as_bytes());
                fraction.fill(b'0');
            }
            at += 1 + digits;
            continue;
        }
        let begin = &rest[..rest.len().min(BEFORE.len())];
        if !BEFORE.starts_with(begin) {
            at += 1;
            continue;
        }
        // the seconds, the length of the microseconds, and these
        let mut lines = rest.splitn_mut(6, |byte| *byte == b'\n').skip(2);
        let (Some(whole), Some(_), Some(fraction), Some(_)) =
            (lines.next(), lines.next(), lines.next(), lines.next())
        else {
            return at;
        };
        whole[..DIGITS].copy_from_slice(seconds.as_bytes());
        let digits = fraction.len() - 1;
        fraction[..digits].fill(b'0');
        at += BEFORE.len() + DIGITS;
    }
    at
}

#[test]
fn times_are_replaced_and_an_incomplete_reply_is_kept() {
    let mut bytes =
        b"+OK\r\n*2\r\n$10\r\n1795300000\r\n$5\r\n12345\r\n*2\r\n$10\r\n1795300000\r\n$1\r\n7\r".to_vec();
    let complete = freeze(&mut bytes, 1_234_567_890);
    assert_eq!(&bytes[..complete], b"+OK\r\n*2\r\n$10\r\n1234567890\r\n$5\r\n00000\r\n");
    let mut bytes = b"*5\r\n:1\r\n:1795300000123456\r\n:1795300000\r\n:-1\r\n:17953000001234".to_vec();
    let complete = freeze(&mut bytes, 1_234_567_890);
    assert_eq!(&bytes[..complete], b"*5\r\n:1\r\n:1234567890000000\r\n:1795300000\r\n:-1\r\n");
}
