//! Many connections.

use std::fs;

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    frames::Attacker,
    target::{MB, Target},
};

/// Returns as many connections as this machine allows, up to `most`: each takes a file here and one in weir, which
/// keeps some.
fn as_many_as(most: usize) -> usize {
    weir_server::net::raise_open_files();
    let limits = fs::read_to_string("/proc/self/limits").expect("the limits of this process");
    let line =
        limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("the limit of files");
    let files = line.split_whitespace().next().and_then(|soft| soft.parse().ok()).unwrap_or(usize::MAX);
    most.min(files.saturating_sub(1_000) * 3 / 4)
}

#[tokio::test]
async fn ten_thousand_idle_connections_are_served_beside_others() {
    let count = as_many_as(10_000);
    let mut target = Target::start(&[("WEIR_MAX_CONNECTIONS", "16384")]).await;
    let mut idle = Vec::new();
    for i in 0..count {
        idle.push(Attacker::connect(target.address("grpc"), 65_535).await);
        if i % 500 == 0 {
            target.still_serves().await;
        }
    }
    target.still_serves().await;
    assert_eq!(target.exceeded("connections").await, 0);
    assert!(target.metric("weir_connections_open").await > count as u64);
    target.assert_grown_below(count as u64 * 32_000);
}

#[tokio::test]
async fn too_many_connections_close_each_other_and_not_those_in_use() {
    let mut target = Target::start(&[("WEIR_MAX_CONNECTIONS", "200")]).await;
    let mut idle = Vec::new();
    for i in 0..2_000 {
        let mut stream = TcpStream::connect(target.address("grpc")).await.expect("it listens");
        // some say nothing, and some begin
        if i % 2 == 0 {
            let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        }
        idle.push(stream);
        if i % 20 == 0 {
            // on its first connection
            target.still_serves().await;
        }
    }
    // weir accepts connections after the client believes that they are open
    target.until_exceeded("connections", 1_700).await;
    target.until_at_most("weir_connections_open ", 201).await;
    target.still_serves().await;
    target.assert_grown_below(30 * MB);
}
