//! Slow and half-finished requests on the HTTP ports, and lines of the log.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Duration, Instant, sleep, timeout},
};

use crate::target::{DEADLINE, MB, Target};

async fn connect(target: &Target, port: &str, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(target.address(port)).await.expect("it listens");
    stream.write_all(sent).await.expect("it accepts the bytes");
    stream
}

/// Reads until the server closes the connection.
async fn closed(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    // closed or reset, but not left open
    let _ = timeout(DEADLINE, stream.read_to_end(&mut received)).await.expect("in time");
    String::from_utf8_lossy(&received).into_owned()
}

#[tokio::test]
async fn half_sent_headers_and_bodies_are_closed() {
    let mut target = Target::start(&[("WEIR_REQUEST_TIMEOUT", "500ms")]).await;
    let body = b"POST /json HTTP/1.1\r\nhost: weir\r\ncontent-length: 4000000\r\n\r\n{\"domain\": \"d\"";
    let chunked = b"POST /json HTTP/1.1\r\nhost: weir\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"dom";
    let mut bodies = Vec::new();
    for _ in 0..150 {
        bodies.push(connect(&target, "http", body).await);
        bodies.push(connect(&target, "http", chunked).await);
    }
    let mut headers = Vec::new();
    for port in ["http", "debug"] {
        for sent in [&b""[..], b"GET", b"GET /metrics HTTP/1.1\r\nhost: weir\r\nx-a: "] {
            headers.push(connect(&target, port, sent).await);
        }
    }
    for stream in &mut bodies {
        let response = closed(stream).await;
        assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    }
    for stream in &mut headers {
        closed(stream).await;
    }
    assert_eq!(target.exceeded("request_timeout").await, 300);
    target.still_serves().await;
    target.assert_grown_below(30 * MB);
}

#[tokio::test]
async fn unfinished_headers_are_counted() {
    let mut target = Target::start(&[]).await;
    // of the largest size
    let header = format!("GET /metrics HTTP/1.1\r\nhost: weir\r\nx-a: {}", "a".repeat(15_000));
    let mut streams = Vec::new();
    for _ in 0..1_000 {
        streams.push(connect(&target, "http", header.as_bytes()).await);
    }
    let begun = Instant::now();
    while target.metric("weir_connections_buffered_bytes").await < 1_000 * 2 * 15_000 {
        assert!(begun.elapsed() < DEADLINE, "the headers are not counted");
        target.still_serves().await;
    }
    target.assert_grown_below(1_000 * 56_000);
}

#[tokio::test]
async fn a_header_of_more_than_16_kib_is_rejected() {
    let target = Target::start(&[]).await;
    let header = |bytes| {
        format!(
            "GET /healthcheck HTTP/1.1\r\nhost: weir\r\nconnection: close\r\nx-a: {}\r\n\r\n",
            "a".repeat(bytes)
        )
    };
    for (bytes, status) in [(16_000, "HTTP/1.1 200"), (17_000, "HTTP/1.1 431")] {
        let response = closed(&mut connect(&target, "http", header(bytes).as_bytes()).await).await;
        assert!(response.starts_with(status), "{bytes}: {response}");
    }
}

#[tokio::test]
async fn a_header_or_a_body_byte_by_byte_is_closed() {
    let target = Target::start(&[("WEIR_REQUEST_TIMEOUT", "500ms")]).await;
    let body = b"POST /json HTTP/1.1\r\nhost: weir\r\ncontent-length: 4000000\r\n\r\n";
    for begin in [&b"GET / HTTP/1.1\r\nx: "[..], body] {
        let mut stream = connect(&target, "http", begin).await;
        let drip = async {
            while stream.write_all(b" ").await.is_ok() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(DEADLINE, drip).await.expect("closed in time");
    }
}

#[tokio::test]
async fn pages_that_nobody_reads_are_closed() {
    let mut target = Target::start(&[("WEIR_SEND_TIMEOUT", "1s")]).await;
    // a page is larger than what the system takes only if it is asked for again and again
    let get = b"GET /metrics HTTP/1.1\r\nhost: weir\r\n\r\n".repeat(2_000);
    let mut streams = Vec::new();
    for _ in 0..5 {
        let stream = TcpStream::connect(target.address("debug")).await.expect("it listens");
        let (reader, mut writer) = stream.into_split();
        let get = get.clone();
        streams.push((reader, tokio::spawn(async move { writer.write_all(&get).await })));
    }
    target.until_exceeded("send_timeout", 5).await;
    target.still_serves().await;
    target.assert_grown_below(60 * MB);
}

#[tokio::test]
async fn a_million_objects_in_json_take_little_memory() {
    let mut target = Target::start(&[]).await;
    let list = "{},".repeat(1_300_000);
    let body = format!("{{\"domain\": \"d\", \"descriptors\": [{}]}}", list.trim_end_matches(','));
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = connect(&target, "http", &[head.as_bytes(), body.as_bytes()].concat()).await;
    let response = closed(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 413") && response.contains("WEIR_MAX_DESCRIPTORS"), "{response}");
    assert_eq!(target.exceeded("descriptors").await, 1);
    target.still_serves().await;
    target.assert_grown_below(50 * MB);
}

#[tokio::test]
async fn clients_cause_few_lines_of_the_log() {
    let mut target = Target::start(&[]).await;
    let bad = b"POST /json HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: 1\r\n\r\n!";
    for _ in 0..300 {
        let response = closed(&mut connect(&target, "http", bad).await).await;
        assert!(response.starts_with("HTTP/1.1 400"), "{response}");
        connect(&target, "http", b"nonsense\r\n\r\n").await;
        // speaks TLS to a port without it
        connect(&target, "grpc", b"\x16\x03\x01\x02\x00\x01\x00\x01").await;
        connect(&target, "grpc", b"GET / HTTP/1.1\r\n\r\n").await;
    }
    target.still_serves().await;
    let log = target.log().await;
    // two reasons, one line a second each; even a slow machine takes less than a minute
    assert!((1..150).contains(&log.lines().count()), "{log}");
}
