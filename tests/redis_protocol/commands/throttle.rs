//! `CL.THROTTLE`: what redis-cell does, and where weir does better.

use super::start;
use crate::client::Client;

/// The error of redis-cell.
fn error(text: &str) -> String {
    format!("-Cell error: Store error: {text}")
}

#[tokio::test]
async fn the_first_example_of_its_readme() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60 1").await, "[:0 :16 :15 :-1 :2]");
    for _ in 0..15 {
        client.ask("CL.THROTTLE user123 15 30 60").await;
    }
    assert_eq!(client.ask("cl.throttle user123 15 30 60").await, "[:1 :16 :0 :2 :32]");
    weir.advance(1);
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60").await, "[:1 :16 :0 :1 :31]");
    weir.advance(1);
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60").await, "[:0 :16 :0 :-1 :32]");
}

#[tokio::test]
async fn the_reply_is_five_integers_in_both_versions_of_the_protocol() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    client.ask("HELLO 3").await;
    assert_eq!(client.ask("CL.THROTTLE k 15 30 60").await, "[:0 :16 :15 :-1 :2]");
}

#[tokio::test]
async fn seconds_are_rounded_up_from_a_millisecond_on() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    let advance = |nanos| weir.clock.advance(weir_limit::Period::from_nanos(nanos));
    assert_eq!(client.ask("CL.THROTTLE k 0 1 10").await, "[:0 :1 :0 :-1 :10]");
    advance(1_000_001);
    assert_eq!(client.ask("CL.THROTTLE k 0 1 10").await, "[:1 :1 :0 :10 :10]");
    advance(8_998_999_999);
    assert_eq!(client.ask("CL.THROTTLE k 0 1 10").await, "[:1 :1 :0 :1 :1]");
    advance(500_000);
    assert_eq!(client.ask("CL.THROTTLE k 0 1 10").await, "[:1 :1 :0 :1 :1]");
    advance(500_001);
    // less than a millisecond is left of the second
    assert_eq!(client.ask("CL.THROTTLE k 0 1 10").await, "[:1 :1 :0 :1 :1]");
    advance(999_000_000 - 500_000);
    assert_eq!(client.ask("CL.THROTTLE k 0 1 10").await, "[:1 :1 :0 :0 :0]");
}

#[tokio::test]
async fn errors_have_its_texts() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    let usage = error("Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]");
    for (command, expected) in [
        ("CL.THROTTLE", usage.clone()),
        ("CL.THROTTLE k 1 1", usage.clone()),
        ("CL.THROTTLE k 1 1 1 1 1", usage),
        ("CL.THROTTLE k x 1 1", error("Couldn't parse as integer: x")),
        ("CL.THROTTLE k 1 y 1", error("Couldn't parse as integer: y")),
        ("CL.THROTTLE k 1 1 1.5", error("Couldn't parse as integer: 1.5")),
        ("CL.THROTTLE k 1 1 1 9223372036854775808", error("Couldn't parse as integer: 9223372036854775808")),
        ("CL.THROTTLE k 1 0 1", error("Zero rates are not supported")),
        ("CL.THROTTLE k 1 1 0", error("Zero rates are not supported")),
        // it denies everything
        ("CL.THROTTLE k 1 -1 60", error("Negative rates are not supported")),
        ("CL.THROTTLE k 1 1 -60", error("Negative rates are not supported")),
        ("CL.THROTTLE k +5 04 060", "[:0 :6 :5 :-1 :15]".into()),
    ] {
        assert_eq!(client.ask(command).await, expected, "{command}");
    }
}

#[tokio::test]
async fn a_changed_plan_applies_at_once_and_fills_no_bucket() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    for _ in 0..2 {
        client.ask("CL.THROTTLE k 0 1 3600").await;
    }
    // redis-cell denies for an hour
    assert_eq!(client.ask("CL.THROTTLE k 9 100 60").await, "[:0 :10 :8 :-1 :2]");
    // a lowered limit denies for no longer than one of its own tokens takes; redis-cell, for half an hour
    client.ask("CL.THROTTLE l 9 10 36000 10").await;
    assert_eq!(client.ask("CL.THROTTLE l 1 1 10").await, "[:1 :2 :0 :10 :20]");
    weir.advance(10);
    assert_eq!(client.ask("CL.THROTTLE l 1 1 10").await, "[:0 :2 :0 :-1 :20]");
    // what has flowed in until a plan changes did so at the earlier pace
    client.ask("CL.THROTTLE m 4 5 86400 5").await;
    weir.advance(43_200);
    assert_eq!(client.ask("CL.THROTTLE m 9 10 1 0").await, "[:0 :10 :7 :-1 :1]");
}

#[tokio::test]
async fn a_negative_quantity_gives_back_and_never_beyond_full() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    client.ask("CL.THROTTLE k 9 1 60 5").await;
    assert_eq!(client.ask("CL.THROTTLE k 9 1 60 -2").await, "[:0 :10 :7 :-1 :180]");
    // redis-cell fails, and the key stays forever
    assert_eq!(client.ask("CL.THROTTLE k 9 1 60 -9").await, "[:0 :10 :10 :-1 :0]");
    assert_eq!(client.ask("EXISTS k").await, ":0");
    assert_eq!(client.ask("CL.THROTTLE k 9 1 60 -9223372036854775808").await, "[:0 :10 :10 :-1 :0]");
    assert_eq!(client.ask("CL.THROTTLE k 9 1 60 11").await, "[:1 :10 :10 :-1 :0]");
}

#[tokio::test]
async fn the_largest_numbers_do_not_wrap() {
    const MOST: &str = "9223372036854775807";
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    // what redis-cell replies to them is in the table of docs/redis-protocol.md
    assert_eq!(client.ask("CL.THROTTLE a 1000000 1000000 1").await, "[:0 :1000001 :1000000 :-1 :0]");
    assert_eq!(
        client.ask("CL.THROTTLE b 1000000000 1000000000 60").await,
        "[:0 :1000000001 :1000000000 :-1 :0]"
    );
    assert_eq!(
        client.ask(&format!("CL.THROTTLE c {MOST} 1 60")).await,
        format!("[:0 :{MOST} :9223372036854775806 :-1 :60]")
    );
    assert_eq!(
        client.ask(&format!("CL.THROTTLE d {MOST} {MOST} 1 {MOST}")).await,
        format!("[:0 :{MOST} :0 :-1 :1]")
    );
    assert_eq!(client.ask(&format!("CL.THROTTLE d {MOST} {MOST} 1")).await, format!("[:1 :{MOST} :0 :0 :1]"));
    let never = u64::MAX / 1_000_000_000;
    for (command, full_after) in [
        (format!("CL.THROTTLE e 1 1 {MOST}"), never - crate::in_process::NOW),
        (format!("CL.THROTTLE f {MOST} 1 {MOST} {MOST}"), never - crate::in_process::NOW),
    ] {
        let reply = client.ask(&command).await;
        assert!(
            reply.starts_with("[:0 ") && reply.ends_with(&format!(":-1 :{}]", full_after + 1)),
            "{reply}"
        );
    }
    assert_eq!(client.ask("CL.THROTTLE g -1 1 60").await, "[:1 :0 :0 :-1 :0]");
    assert_eq!(
        client.ask(&format!("CL.THROTTLE h -{MOST} 1 60 0")).await,
        "[:0 :-9223372036854775806 :0 :-1 :0]"
    );
}

#[tokio::test]
async fn keys_have_any_bytes() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    let long = vec![b'k'; 1 << 20];
    for key in [&b"\xff\xfe\0\r\n"[..], b"", "schl\u{fc}ssel".as_bytes(), &long, b"\xff\xfe\0\r"] {
        for reply in ["[:0 :2 :1 :-1 :60]", "[:0 :2 :0 :-1 :120]", "[:1 :2 :0 :60 :120]"] {
            assert_eq!(client.ask_of(&[b"CL.THROTTLE", key, b"1", b"1", b"60"]).await, reply);
        }
    }
}

#[tokio::test]
async fn a_bucket_is_deleted_and_looked_at_by_its_key() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    client.ask("CL.THROTTLE k 9 1 60 3").await;
    client.ask("RL.REDUCE k 5 600 TAKE 5").await;
    client.ask("RL.REDUCE k 5 60 REFILL 1 TAKE 2").await;
    client.ask("CL.THROTTLE other 9 1 60").await;
    assert_eq!(client.ask("EXISTS k other none k").await, ":3");
    assert_eq!([client.ask("TTL k").await, client.ask("TTL other").await], [":600", ":60"]);
    assert_eq!(client.ask("TTL none").await, ":-2");
    assert_eq!(client.ask("DEL k none k").await, ":1");
    assert_eq!(client.ask("CL.THROTTLE k 9 1 60 0").await, "[:0 :10 :10 :-1 :0]");
    assert_eq!(client.ask("RL.GET k 5 600").await, ":5");
    assert_eq!(client.ask("RL.GET k 5 60 REFILL 1").await, ":5");
    assert_eq!(client.ask("TTL other").await, ":60");
    weir.advance(60);
    assert_eq!([client.ask("TTL other").await, client.ask("EXISTS other").await], [":-2", ":0"]);
}
