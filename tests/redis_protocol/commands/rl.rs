//! `RL.*`, the commands of smyte/ratelimit.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use tokio::runtime::Handle;

use super::start;
use crate::{client::Client, in_process::NOW};

const INTEGER: &str = "-Value is not an integer or out of range";
const SYNTAX: &str = "-Syntax error";

#[tokio::test]
async fn the_first_example_of_its_readme() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    for reply in [":2", ":1", ":0"] {
        assert_eq!(client.ask("RL.REDUCE TwoPerMin 2 60").await, reply);
    }
    weir.advance(59);
    assert_eq!(client.ask("RL.REDUCE TwoPerMin 2 60").await, ":0");
    weir.advance(1);
    // all tokens come at the end of the minute
    assert_eq!(client.ask("rl.get TwoPerMin 2 60").await, ":2");
}

#[tokio::test]
async fn replies_are_the_tokens_before_and_a_take_that_finds_too_little_drains() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("RL.REDUCE k 10 60 TAKE 4").await, ":10");
    assert_eq!(client.ask("RL.REDUCE k 10 60 TAKE 7").await, ":6");
    assert_eq!(client.ask("RL.GET k 10 60").await, ":0");
}

#[tokio::test]
async fn a_get_and_a_take_of_nothing_create_nothing() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    for get in ["RL.GET k 5 60", "RL.PGET k 5 60000", "RL.REDUCE k 5 60 TAKE 0", "RL.GET k 5 60 AT 7 STRICT"]
    {
        assert_eq!(client.ask(get).await, ":5");
    }
    assert_eq!(client.ask("EXISTS k").await, ":0");
    // so the first step is counted from the first take
    weir.advance(59);
    assert_eq!(client.ask("RL.REDUCE k 5 60").await, ":5");
    weir.advance(59);
    assert_eq!(client.ask("RL.GET k 5 60").await, ":4");
}

#[tokio::test]
async fn steps_are_counted_from_the_last_one_and_time_that_goes_back_does_nothing() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("RL.REDUCE k 10 100 REFILL 3 TAKE 10 AT 1000").await, ":10");
    assert_eq!(client.ask("RL.GET k 10 100 REFILL 3 AT 1099").await, ":0");
    assert_eq!(client.ask("RL.REDUCE k 10 100 REFILL 3 AT 1250").await, ":6");
    // the steps were at 1,100 and 1,200
    assert_eq!(client.ask("RL.GET k 10 100 REFILL 3 AT 1299").await, ":5");
    assert_eq!(client.ask("RL.GET k 10 100 REFILL 3 AT 1300").await, ":8");
    assert_eq!(client.ask("RL.REDUCE k 10 100 REFILL 3 AT 5").await, ":5");
    assert_eq!(client.ask("RL.GET k 10 100 REFILL 3 AT 1300").await, ":7");
}

#[tokio::test]
async fn a_strict_bucket_that_is_empty_begins_its_step_again_also_back_in_time() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("RL.REDUCE k 1 10 STRICT AT 100").await, ":1");
    for at in (105..200).step_by(5) {
        assert_eq!(client.ask(&format!("RL.REDUCE k 1 10 STRICT AT {at}")).await, ":0");
    }
    assert_eq!(client.ask("RL.REDUCE k 1 10 STRICT AT 50").await, ":0");
    assert_eq!(client.ask("RL.GET k 1 10 AT 60").await, ":1");
}

#[tokio::test]
async fn the_parameters_are_part_of_a_bucket_and_the_unit_of_time_is_not() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("RL.REDUCE k 5 60 TAKE 3").await, ":5");
    for other in ["RL.GET k 6 60", "RL.GET k 5 61", "RL.GET k 5 60 REFILL 4", "RL.GET K 5 60"] {
        assert_ne!(client.ask(other).await, ":2", "{other}");
    }
    for same in ["RL.GET k 5 60", "RL.GET k 5 60 REFILL 5", "RL.PGET k 5 60000"] {
        assert_eq!(client.ask(same).await, ":2", "{same}");
    }
    // a bucket that is used with and without AT is one bucket
    assert_eq!(client.ask(&format!("RL.PREDUCE k 5 60000 AT {NOW}000")).await, ":2");
    assert_eq!(client.ask("RL.GET k 5 60").await, ":1");
}

#[tokio::test]
async fn a_session_has_its_start_in_milliseconds_and_is_strict() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("RL.SESSIONIZE s 1 1800 AT 5000").await, "[:1 :5000000]");
    assert_eq!(client.ask("RL.SESSIONIZE s 1 1800 AT 6000").await, "[:0 :5000000]");
    // strict: a session lasts as long as its requests come within half an hour of each other
    assert_eq!(client.ask("RL.SESSIONIZE s 1 1800 AT 7500").await, "[:0 :5000000]");
    assert_eq!(client.ask("RL.PSESSIONIZE s 1 1800000 AT 9300000").await, "[:1 :9300000]");
    // in smyte/ratelimit a bucket that RL.REDUCE has used ends the process
    assert_eq!(client.ask("RL.REDUCE mixed 1 1800 AT 5000").await, ":1");
    assert_eq!(client.ask("RL.SESSIONIZE mixed 1 1800 AT 5100").await, "[:0 :5100000]");
}

#[tokio::test]
async fn arguments_are_read_from_the_left_and_ranges_come_last() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    for (command, reply) in [
        // the last option of a kind wins, in any order
        ("RL.REDUCE a 9 60 TAKE 5 STRICT TAKE 2 AT 7", ":9"),
        ("RL.GET a 9 60 AT 8 strict AT 7", ":7"),
        ("RL.GET k 5 60 NONSENSE abc", INTEGER),
        ("RL.GET k 5 60 NONSENSE 5", SYNTAX),
        ("RL.GET k 5 60 TAKE 1", SYNTAX),
        ("RL.PGET k 5 60 TAKE 1", SYNTAX),
        ("RL.REDUCE k 5 60 TAKE", SYNTAX),
        ("RL.REDUCE k x 60", INTEGER),
        ("RL.REDUCE k 5 1.5", INTEGER),
        ("RL.REDUCE k 0 60", INTEGER),
        ("RL.REDUCE k 5 0", INTEGER),
        ("RL.REDUCE k 5 60 REFILL 0", INTEGER),
        ("RL.REDUCE k 5 60 TAKE -1", INTEGER),
        ("RL.REDUCE k 5 60 AT -1", INTEGER),
        ("RL.REDUCE k 0 60 NONSENSE 5", SYNTAX),
        // a period has 32 bits, everything else 64
        ("RL.GET k 5 2147483647", ":5"),
        ("RL.GET k 5 2147483648", INTEGER),
        ("RL.PGET k 9223372036854775807 2147483647", ":9223372036854775807"),
        ("RL.PGET k 9223372036854775808 2147483647", INTEGER),
        ("RL.PGET k 1 1 REFILL 9223372036854775807 AT 9223372036854775807", ":1"),
        // as seconds, it would wrap
        ("RL.GET k 1 1 AT 9223372036854775807", INTEGER),
        ("RL.GET k 5", "-Wrong number of arguments for 'rl.get' command"),
        ("RL.GET k 5 6 AT 1 AT 1 AT 1", "-Wrong number of arguments for 'rl.get' command"),
        ("rl.reduce k", "-Wrong number of arguments for 'rl.reduce' command"),
        ("RL.REDUCE k 5 6 AT 1 AT 1 AT 1 STRICT", ":5"),
        ("RL.REDUCE k 5 6 AT 1 AT 1 AT 1 AT 1", "-Wrong number of arguments for 'rl.reduce' command"),
        ("RL.NoNe k", "-Unknown command: 'rl.none'"),
    ] {
        assert_eq!(client.ask(command).await, reply, "{command}");
    }
}

#[tokio::test]
async fn a_bucket_of_callers_times_does_not_expire_with_the_servers_clock() {
    let weir = start("domain: d", &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("RL.REDUCE history 1 10 AT 1000").await, ":1");
    assert_eq!(client.ask("RL.REDUCE future 1 10 AT 9000000000").await, ":1");
    assert_eq!(client.ask("RL.REDUCE now 1 10").await, ":1");
    weir.advance(3_600);
    assert_eq!(client.ask("EXISTS now").await, ":0");
    assert_eq!(client.ask("EXISTS history future").await, ":2");
    assert_eq!(client.ask("RL.GET history 1 10 AT 1009").await, ":0");
    assert_eq!(client.ask("RL.GET future 1 10 AT 9000000009").await, ":0");
    assert_eq!(client.ask("TTL history").await, format!(":{}", 7 * 86_400 - 3_600));
}

/// The published description of smyte/ratelimit in ten lines.
fn model(bucket: &mut Option<(i64, i64)>, command: &Command) -> i64 {
    let (tokens, last) = bucket.unwrap_or((command.max, command.at));
    let steps = (command.at - last).max(0) / command.period;
    let (tokens, last) = ((tokens + steps * command.refill).min(command.max), last + steps * command.period);
    if command.take > 0 {
        let left = (tokens - command.take).max(0);
        *bucket = Some((left, if command.strict && left == 0 { command.at } else { last }));
    }
    tokens
}

#[derive(Clone, Copy, Debug)]
struct Command {
    max: i64,
    period: i64,
    refill: i64,
    take: i64,
    at: i64,
    strict: bool,
}

#[tokio::test(flavor = "multi_thread")]
async fn random_commands_at_random_times_are_answered_as_by_the_published_model() {
    let weir = start("domain: d", &[]).await;
    let (handle, cases) = (Handle::current(), AtomicU64::new(0));
    let commands = (1..20_i64, 1..50_i64, 1..25_i64, vec((0..25_i64, 0..400_i64, any::<bool>()), 1..40));
    let commands = commands.prop_map(|(max, period, refill, takes)| -> Vec<Command> {
        let command = |(take, at, strict)| Command { max, period, refill, take, at, strict };
        takes.into_iter().map(command).collect()
    });
    let test = |commands: Vec<Command>| {
        let key = cases.fetch_add(1, Ordering::Relaxed);
        let (mut client, mut bucket) = (handle.block_on(Client::to(&weir)), None);
        for command in &commands {
            let Command { max, period, refill, take, at, strict } = command;
            let strict = if *strict { " STRICT" } else { "" };
            let text = format!("RL.REDUCE {key} {max} {period} REFILL {refill} TAKE {take} AT {at}{strict}");
            let reply = handle.block_on(client.ask(&text));
            prop_assert_eq!(reply, format!(":{}", model(&mut bucket, command)), "{}", text);
        }
        Ok(())
    };
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    tokio::task::block_in_place(|| TestRunner::new(config).run(&commands, test))
        .expect("it equals the model");
}
