//! Server-sent events.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
};

use serde_json::Value;
use weir_server::{
    health::Reason,
    http::admin::{AdminLevel, AdminSettings},
};

use crate::{
    client::{Admin, Ask, connect, document},
    schema::faults,
};

fn open(admin: &Admin, from: Ipv4Addr, topics: &str) -> TcpStream {
    let mut stream = connect(from, admin.server.address);
    let request =
        format!("GET /v1/stream?topics={topics} HTTP/1.1\r\nhost: {}\r\n\r\n", admin.server.address);
    stream.write_all(request.as_bytes()).expect("it is sent");
    stream
}

/// Reads until `is_enough`.
fn read(stream: &mut TcpStream, is_enough: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    while !is_enough(&text) {
        let mut part = [0; 4_096];
        let read = stream.read(&mut part).expect("an event in time");
        assert!(read > 0, "it ended: {text}");
        text += &String::from_utf8_lossy(&part[..read]);
    }
    text
}

fn data(text: &str, topic: &str) -> Option<Value> {
    let event = text.split(&format!("event: {topic}\ndata: ")).nth(1)?;
    serde_json::from_str(event.split_once("\n\n")?.0).ok()
}

#[tokio::test]
async fn events_have_the_answers_of_their_operations() {
    let admin = Admin::start(AdminSettings::default()).await;
    for _ in 0..120 {
        admin.service.decide(&[("tenant", "acme")], 1).await;
    }
    let topics = ["instance", "instances", "attention", "rules", "hot", "hot_rejected"];
    let mut stream = open(&admin, Ipv4Addr::LOCALHOST, &topics.join(","));
    let text = tokio::task::spawn_blocking(move || {
        read(&mut stream, |text| topics.iter().all(|topic| data(text, topic).is_some()))
    });
    let text = text.await.expect("events");
    assert!(text.to_lowercase().contains("content-type: text/event-stream"), "{text}");
    let document = document();
    for (topic, schema) in
        topics.into_iter().zip(["Instance", "Instances", "Attention", "RuleRates", "Hot", "Hot"])
    {
        let data = data(&text, topic).expect("data");
        let schema = &document["components"]["schemas"][schema];
        let found = faults(&document, schema, &data, topic);
        assert!(found.is_empty(), "{found:#?}\n{data}");
    }
    assert_eq!(data(&text, "hot_rejected").expect("data")["items"][0]["hits"], 20);
}

#[tokio::test]
async fn a_stream_ends_when_the_process_stops() {
    let admin = Admin::start(AdminSettings::default()).await;
    let mut stream = open(&admin, Ipv4Addr::LOCALHOST, "instance");
    let (mut stream, _) = tokio::task::spawn_blocking(move || {
        let head = read(&mut stream, |text| text.contains("\r\n\r\n"));
        (stream, head)
    })
    .await
    .expect("a head");
    admin.health.fail(Reason::Stopping);
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).map(|_| ())
    });
    // its last chunk is empty; the connection is that of the next request until the server stops
    admin.server.stop.send(()).expect("it runs");
    admin.server.running.await.expect("no panic").expect("it stops");
    rest.await.expect("it ends").expect("without an error");
}

#[tokio::test]
async fn streams_are_few_and_one_that_is_never_read_holds_up_nobody() {
    let settings = AdminSettings { level: Some(AdminLevel::Read), ..AdminSettings::default() };
    let admin = Admin::start(settings).await;
    let from = |i: u8| Ipv4Addr::new(127, 0, 1, i);
    let status = async |i: u8| admin.status(&Ask::get("/v1/stream?topics=instance").from(from(i))).await;
    let mut unread = Vec::new();
    for caller in 0..8 {
        for _ in 0..4 {
            let mut stream = open(&admin, from(caller), "instance");
            let (stream, head) = tokio::task::spawn_blocking(move || {
                let head = read(&mut stream, |text| text.contains("\r\n\r\n"));
                (stream, head)
            })
            .await
            .expect("a head");
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            unread.push(stream);
        }
        assert_eq!(status(caller).await, 429, "the fifth of {caller}");
    }
    assert_eq!(status(100).await, 429, "the 33rd");
    drop(unread.split_off(28));
    // the server notices when it writes the next event
    let mut late = loop {
        let mut stream = open(&admin, from(100), "instance");
        let (stream, head) = tokio::task::spawn_blocking(move || {
            let head = read(&mut stream, |text| text.contains("\r\n\r\n"));
            (stream, head)
        })
        .await
        .expect("a head");
        if head.starts_with("HTTP/1.1 200") {
            break stream;
        }
    };
    let text = tokio::task::spawn_blocking(move || read(&mut late, |text| data(text, "instance").is_some()));
    assert!(text.await.expect("an event").contains("event: instance"));
    assert_eq!(unread.len(), 28);
}
