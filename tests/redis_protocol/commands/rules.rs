//! `WEIR.TAKE`, `WEIR.PEEK` and `WEIR.RESET`.

use super::start;
use crate::{client::Client, wire};

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { name: per-tenant, unit: minute, requests_per_unit: 3 }
    descriptors:
      - key: path
        value: /login
        rate_limit: { requests: 5, per: 10m, algorithm: token_bucket, burst: 2 }
  - key: window
    rate_limit: { requests: 2, per: 1h, algorithm: sliding_window }
  - key: free
    rate_limit: { unlimited: true }
";

fn reply(code: &str, remaining: u32, rest: &str) -> String {
    format!("{{\"code\": \"{code}\", \"limit_remaining\": :{remaining}{rest}}}")
}

#[tokio::test]
async fn the_reply_is_what_should_rate_limit_answers() {
    let weir = start(RULES, &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(
        client.ask("WEIR.TAKE shop tenant acme").await,
        "[\"code\" \"OK\" \"limit_remaining\" :2 \"requests_per_unit\" :3 \"unit\" \"MINUTE\" \"duration_until_reset\" :30 \
         \"name\" \"per-tenant\"]"
    );
    client.ask("HELLO 3").await;
    let minute = |code, remaining| {
        let rest = ", \"requests_per_unit\": :3, \"unit\": \"MINUTE\", \"duration_until_reset\": :30, \"name\": \"per-tenant\"";
        reply(code, remaining, rest)
    };
    assert_eq!(client.ask("WEIR.PEEK shop tenant acme").await, minute("OK", 2));
    assert_eq!(client.ask("WEIR.TAKE shop tenant acme HITS 2").await, minute("OK", 0));
    assert_eq!(client.ask("WEIR.TAKE shop tenant acme").await, minute("OVER_LIMIT", 0));
    assert_eq!(client.ask("WEIR.TAKE shop tenant other hits 0").await, minute("OK", 3));
    let login = |code, remaining, reset| {
        let rest =
            format!(", \"requests_per_unit\": :5, \"unit\": \"10m\", \"duration_until_reset\": :{reset}");
        reply(code, remaining, &rest)
    };
    assert_eq!(client.ask("WEIR.TAKE shop tenant acme path /login HITS 2").await, login("OK", 0, 240));
    assert_eq!(client.ask("WEIR.TAKE shop tenant acme path /login").await, login("OVER_LIMIT", 0, 120));
    assert_eq!(client.ask("WEIR.TAKE shop nothing x").await, reply("OK", 0, ""));
    assert_eq!(client.ask("WEIR.TAKE shop free x").await, reply("OK", u32::MAX, ""));
    // a key called HITS, of which the last two arguments are the option
    assert_eq!(client.ask("WEIR.TAKE shop HITS 7").await, reply("OK", 0, ""));
}

#[tokio::test]
async fn the_counters_are_those_of_grpc() {
    let mut weir = start(RULES, &[]).await;
    let mut client = Client::to(&weir).await;
    client.ask("WEIR.TAKE shop tenant acme HITS 2").await;
    let request = wire::request("shop", [wire::descriptor([("tenant", "acme")])]);
    assert_eq!(weir.decide(request.clone()).await.statuses[0].limit_remaining, 0);
    assert!(client.ask("WEIR.TAKE shop tenant acme").await.starts_with("[\"code\" \"OVER_LIMIT\""));
    assert_eq!(weir.decide(request).await.statuses[0].limit_remaining, 0);
}

/// The commands have no name by which a request could end.
#[tokio::test]
async fn no_request_in_flight_begins() {
    let rules = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { in_flight: 1 }\n";
    let weir = start(rules, &[]).await;
    let mut client = Client::to(&weir).await;
    for _ in 0..2 {
        let refused = client.ask("WEIR.TAKE shop user acme").await;
        assert!(refused.contains("requests in flight, which this protocol cannot end"), "{refused}");
    }
}

/// The limit of a member of a pool is its share.
#[tokio::test]
async fn a_limit_that_is_shared_is_reported_as_by_grpc() {
    let rules = "domain: shop\ndescriptors:\n  - key: client\n    rate_limit: { requests: 4000, per: 1h, share: {} }\n";
    let mut weir = start(rules, &[]).await;
    let mut client = Client::to(&weir).await;
    for value in ["a", "b"] {
        let taken = client.ask(&format!("WEIR.TAKE shop client {value}")).await;
        let request = wire::request("shop", [wire::descriptor([("client", value)])]);
        let status = weir.decide(request).await.statuses.remove(0);
        let requests = status.current_limit.expect("a limit").requests_per_unit;
        let remaining = status.limit_remaining + 1;
        let expected = format!("\"limit_remaining\" :{remaining} \"requests_per_unit\" :{requests} ");
        assert!(taken.contains(&expected), "{expected}: {taken}");
    }
}

#[tokio::test]
async fn a_reset_gives_all_hits_back_if_it_is_allowed() {
    let weir = start(RULES, &[]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(
        client.ask("WEIR.RESET shop tenant acme").await,
        "-ERR WEIR.RESET is off: WEIR_REDIS_RESET=true turns it on"
    );
    let mut weir = start(RULES, &[("WEIR_REDIS_RESET", "true")]).await;
    let mut client = Client::to(&weir).await;
    for descriptor in ["tenant acme", "tenant acme path /login", "window w"] {
        let take = format!("WEIR.TAKE shop {descriptor}");
        let first = client.ask(&take).await;
        while client.ask(&take).await.contains("\"OK\"") {}
        assert_eq!(client.ask(&format!("WEIR.RESET shop {descriptor}")).await, ":1");
        let again = client.ask(&take).await;
        assert_eq!(
            again.split(' ').take(4).collect::<Vec<_>>(),
            first.split(' ').take(4).collect::<Vec<_>>()
        );
    }
    assert_eq!(client.ask("WEIR.RESET shop nothing x").await, ":0");
    // more than any limit admits: those that are rejected count, too
    let mut descriptor = wire::descriptor([("tenant", "acme")]);
    descriptor.hits_addend = Some(u64::MAX);
    weir.decide(wire::request("shop", [descriptor])).await;
    assert!(client.ask("WEIR.TAKE shop tenant acme").await.contains("OVER_LIMIT"));
    assert_eq!(client.ask("WEIR.RESET shop tenant acme").await, ":1");
    assert!(client.ask("WEIR.TAKE shop tenant acme").await.contains("\"OK\""));
}

#[tokio::test]
async fn counters_of_rules_that_deny_it_are_not_reset() {
    let rules =
        "domain: shop\ngive_back: deny\ndescriptors:\n- {key: k, rate_limit: {requests: 3, per: 1h}}\n";
    let weir = start(rules, &[("WEIR_REDIS_RESET", "true")]).await;
    let mut client = Client::to(&weir).await;
    client.ask("WEIR.TAKE shop k x HITS 2").await;
    assert_eq!(
        client.ask("WEIR.RESET shop k x").await,
        "-ERR 'give_back: deny' is in force for the rule shop.k"
    );
    let peeked = client.ask("WEIR.PEEK shop k x").await;
    assert!(peeked.contains("\"limit_remaining\" :1 "), "{peeked}");
}

#[tokio::test]
async fn errors_say_what_is_wrong() {
    let weir = start(RULES, &[("WEIR_MAX_ENTRIES", "2")]).await;
    let mut client = Client::to(&weir).await;
    for (command, reply) in [
        ("WEIR.TAKE shop tenant", "-ERR wrong number of arguments for 'weir.take' command"),
        ("WEIR.TAKE shop tenant a path", "-ERR a domain must be followed by keys and values in turn"),
        ("WEIR.TAKE shop tenant a HITS x", "-ERR HITS must be followed by a number from 0 to 4294967295"),
        (
            "WEIR.TAKE shop tenant a HITS 4294967296",
            "-ERR HITS must be followed by a number from 0 to 4294967295",
        ),
        ("WEIR.PEEK  tenant a", "-ERR rate limit domain must not be empty"),
        (
            "WEIR.PEEK shop a 1 b 2 c 3",
            "-ERR the descriptors of the request have more than 2 entries (WEIR_MAX_ENTRIES)",
        ),
    ] {
        assert_eq!(client.ask(command).await, reply, "{command}");
    }
    let reply = client.ask_of(&[&b"WEIR.TAKE"[..], b"shop", b"tenant", b"\xff"]).await;
    assert_eq!(reply, "-ERR the domain, keys and values must be UTF-8");
}
