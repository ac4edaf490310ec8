//! `THROTTLE`: what throttlecrab does, and where weir does better.

use super::start;
use crate::client::Client;

const INVALID: &str = "-ERR Rate limit check failed: invalid rate limit parameters";

#[tokio::test]
async fn the_reply_says_whether_it_is_allowed_and_seconds_are_cut() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    for left in (0..10).rev() {
        let reply = client.ask("THROTTLE k 10 60 60").await;
        assert_eq!(reply, format!("[:1 :10 :{left} :{} :0]", 10 - left));
    }
    assert_eq!(client.ask("THROTTLE k 10 60 60").await, "[:0 :10 :0 :10 :1]");
    weir.clock.advance(weir_limit::Period::from_millis(500));
    // cut to nothing, although it is denied
    assert_eq!(client.ask("throttle k 10 60 60").await, "[:0 :10 :0 :9 :0]");
    // the time until a bucket that had room for them would have them
    assert_eq!(client.ask("THROTTLE k 10 60 60 15").await, "[:0 :10 :0 :9 :14]");
}

/// throttlecrab admits up to 17 of 10, and its limit of one never limits.
#[tokio::test]
async fn no_more_than_the_burst_is_admitted_after_any_time() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    for idle in [0, 9, 10, 15, 17, 18, 19, 60] {
        assert_eq!(client.ask("THROTTLE k 10 1 1 10").await, "[:1 :10 :0 :10 :0]");
        weir.advance(idle);
        let mut admitted = 0;
        while client.ask("THROTTLE k 10 1 1").await.starts_with("[:1 ") {
            admitted += 1;
        }
        assert_eq!(admitted, idle.min(10), "{idle}");
        weir.advance(10);
    }
    assert_eq!(client.ask("THROTTLE one 1 1 60").await, "[:1 :1 :0 :60 :0]");
    assert_eq!(client.ask("THROTTLE one 1 1 60").await, "[:0 :1 :0 :60 :60]");
}

#[tokio::test]
async fn errors_have_its_texts() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    for (command, reply) in [
        ("THROTTLE", "-ERR wrong number of arguments for 'throttle' command"),
        ("THROTTLE k 1 1", "-ERR wrong number of arguments for 'throttle' command"),
        ("THROTTLE k 1 1 1 1 1", "-ERR wrong number of arguments for 'throttle' command"),
        ("THROTTLE k x 1 1", "-ERR invalid max_burst"),
        ("THROTTLE k 1 x 1", "-ERR invalid count_per_period"),
        ("THROTTLE k 1 1 x", "-ERR invalid period"),
        ("THROTTLE k 1 1 1 x", "-ERR invalid quantity"),
        ("THROTTLE k 0 1 1", INVALID),
        ("THROTTLE k 1 0 1", INVALID),
        ("THROTTLE k 1 1 -1", INVALID),
        ("THROTTLE k 1 1 1 -1", "-ERR Rate limit check failed: negative quantity: -1"),
        // that is looked at first
        ("THROTTLE k 0 1 1 -7", "-ERR Rate limit check failed: negative quantity: -7"),
        ("NOTHING", "-ERR unknown command 'NOTHING'"),
    ] {
        assert_eq!(client.ask(command).await, reply, "{command}");
    }
}

#[tokio::test]
async fn a_key_is_one_bucket_for_both_commands_and_only_one_gives_tokens_back() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("CL.THROTTLE k 9 1 60 4").await, "[:0 :10 :6 :-1 :240]");
    assert_eq!(client.ask("THROTTLE k 10 1 60 2").await, "[:1 :10 :4 :360 :0]");
    let refused = "-ERR Rate limit check failed: negative quantity: -3";
    assert_eq!(client.ask("THROTTLE k 10 1 60 -3").await, refused);
    assert_eq!(client.ask("THROTTLE k 10 1 60 0").await, "[:1 :10 :4 :360 :0]");
    assert_eq!(client.ask("CL.THROTTLE k 9 1 60 -3").await, "[:0 :10 :7 :-1 :180]");
}
