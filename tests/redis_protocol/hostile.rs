//! Clients that mean harm, or speak something else.

use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use weir_proto::envoy::{service::ratelimit::v3::rate_limit_response::Code, r#type::v3::RateLimitUnit};

use crate::{
    client::{Client, command, port, start},
    in_process::{DEADLINE, Weir, get},
    wire,
};

async fn serving(variables: &[(&str, &str)]) -> (Weir, Client) {
    let weir = start("domain: d", variables).await;
    let client = Client::to(&weir).await;
    (weir, client)
}

/// Sends `bytes` on a connection of its own. Returns all that it gets until the other end closes the connection.
async fn answer(weir: &Weir, bytes: &[u8]) -> String {
    let mut client = Client::to(weir).await;
    client.send(bytes).await;
    client.rest().await
}

/// Waits until a metric has this value.
async fn until_metric(weir: &Weir, line: &str) {
    let wait = async {
        while !get(weir.addresses.debug, "/metrics").await.contains(line) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("no {line}"));
}

#[tokio::test]
async fn a_line_is_refused_and_the_connection_stays() {
    let (_weir, mut client) = serving(&[]).await;
    client.send(b"PING\r\n\r\nset k v\n").await;
    for _ in 0..2 {
        let reply = client.reply().await;
        assert!(
            reply.starts_with("-Protocol Error: Invalid Array length: inline commands are not supported"),
            "{reply}"
        );
    }
    assert_eq!(client.ask("PING").await, "+PONG");
}

/// A web page could have a browser send commands in the body of a request.
#[tokio::test]
async fn http_is_no_way_to_send_commands() {
    let (weir, _) = serving(&[]).await;
    let body = String::from_utf8(command(&["RL.REDUCE", "k", "2", "60"])).expect("text");
    for request in [
        format!("POST / HTTP/1.1\r\nHost: weir\r\n\r\n{body}"),
        format!("GET / HTTP/1.0\r\n\r\n{body}"),
        format!("Host: weir\r\n{body}"),
    ] {
        assert_eq!(answer(&weir, request.as_bytes()).await, "", "{request}");
    }
    assert_eq!(Client::to(&weir).await.ask("RL.GET k 2 60").await, ":2");
}

#[tokio::test]
async fn tls_to_a_port_without_it_is_closed() {
    let (weir, _) = serving(&[]).await;
    assert_eq!(answer(&weir, b"\x16\x03\x01\x02\x00\x01\n").await, "");
}

#[tokio::test]
async fn what_is_no_command_ends_the_connection_after_the_replies_before_it() {
    let (weir, _) = serving(&[]).await;
    for (bytes, reply) in [
        ("*1\r\n$4\r\nPING\r\n*x\r\n", "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n"),
        ("*1\r\n:4\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
        ("*1\r\n$4\r\nPINGS\r\n", "-ERR Protocol error: a bulk string does not end where it should\r\n"),
        ("*1025\r\n", "-ERR Protocol error: a command has at most 1024 arguments\r\n"),
        ("*1\r\n$1048577\r\n", "-ERR Protocol error: an argument has at most 1048576 bytes\r\n"),
    ] {
        assert_eq!(answer(&weir, bytes.as_bytes()).await, reply, "{}", bytes.escape_debug());
    }
    let metrics = get(weir.addresses.debug, "/metrics").await;
    assert!(metrics.contains("weir_bounds_exceeded_total{bound=\"message_bytes\"} 2"), "{metrics}");
}

#[tokio::test]
async fn before_authentication_commands_are_small() {
    let (weir, _) = serving(&[("WEIR_REDIS_AUTH", "secret")]).await;
    assert_eq!(
        answer(&weir, b"*11\r\n").await,
        "-ERR Protocol error: a command has at most 10 arguments\r\n"
    );
    assert_eq!(
        answer(&weir, b"*2\r\n$4\r\nAUTH\r\n$16385\r\n").await,
        "-ERR Protocol error: an argument has at most 16384 bytes\r\n"
    );
}

#[tokio::test]
async fn a_client_may_guess_ten_times() {
    let (weir, mut client) = serving(&[("WEIR_REDIS_AUTH", "secret")]).await;
    assert_eq!(client.ask("AUTH secret").await, "+OK");
    // by itself and as part of a greeting
    let guesses = [command(&["AUTH", "x"]), command(&["HELLO", "3", "AUTH", "default", "x"])].concat();
    let answers = answer(&weir, &guesses.repeat(50)).await;
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    assert_eq!(answers, wrong.repeat(10));
    until_metric(&weir, "weir_bounds_exceeded_total{bound=\"wrong_passwords\"} 1").await;
    until_metric(&weir, "weir_redis_port_auth_failed_total 10").await;
    // others notice nothing
    assert_eq!(client.ask("PING").await, "+PONG");
    assert_eq!(Client::to(&weir).await.ask("AUTH secret").await, "+OK");
}

/// Nobody waits for a client whose guess is held back, not even a client of the same thread, nor a stop.
#[tokio::test]
async fn a_stop_does_not_wait_for_guesses() {
    let (weir, mut client) = serving(&[("WEIR_REDIS_AUTH", "secret"), ("WEIR_WORKERS", "1")]).await;
    let mut guessing = Client::to(&weir).await;
    guessing.send(&command(&["AUTH", "x"]).repeat(9)).await;
    let begun = async {
        while get(weir.addresses.debug, "/metrics").await.contains("weir_redis_port_auth_failed_total 0\n") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, begun).await.expect("a guess");
    assert_eq!(client.ask("AUTH secret").await, "+OK");
    let stopped = weir.stop();
    assert_eq!(guessing.rest().await.matches("WRONGPASS").count(), 9);
    stopped.await.expect("no panic").expect("a clean stop");
}

/// Clients that have authenticated are closed by no flood of those that have not.
#[tokio::test]
async fn connections_without_a_password_close_each_other() {
    let (weir, mut client) = serving(&[("WEIR_REDIS_AUTH", "secret"), ("WEIR_MAX_CONNECTIONS", "64")]).await;
    assert_eq!(client.ask("AUTH secret").await, "+OK");
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(Client::to(&weir).await);
    }
    until_metric(&weir, "weir_bounds_exceeded_total{bound=\"unauthenticated_connections\"} 92").await;
    until_metric(&weir, "weir_bounds_exceeded_total{bound=\"connections\"} 0").await;
    // the oldest first
    assert_eq!(flood[0].rest().await, "");
    assert_eq!(flood[99].ask("AUTH secret").await, "+OK");
    assert_eq!(client.ask("PING").await, "+PONG");
}

#[tokio::test]
async fn a_command_has_to_arrive_in_time() {
    let (weir, mut client) = serving(&[("WEIR_REQUEST_TIMEOUT", "100ms")]).await;
    client.send(b"*2\r\n$4\r\n").await;
    assert_eq!(client.rest().await, "");
    until_metric(&weir, "weir_bounds_exceeded_total{bound=\"request_timeout\"} 1").await;
}

/// Also if bytes keep coming.
#[tokio::test]
async fn a_command_that_comes_in_drops_has_to_arrive_in_time() {
    let (weir, mut client) = serving(&[("WEIR_REQUEST_TIMEOUT", "2s")]).await;
    client.send(b"*2\r\n$4\r\nECHO\r\n$1000000\r\n").await;
    let drops = async {
        while client.try_send(b"x").await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, drops).await.expect("it is closed");
    until_metric(&weir, "weir_bounds_exceeded_total{bound=\"request_timeout\"} 1").await;
    // each command has its own time: all together take longer
    let mut client = Client::to(&weir).await;
    for part in b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n".repeat(15).chunks(10) {
        client.send(part).await;
        tokio::time::sleep(std::time::Duration::from_millis(60)).await;
    }
    for _ in 0..30 {
        assert_eq!(client.reply().await, "+PONG");
    }
}

#[tokio::test]
async fn a_client_that_reads_no_replies_is_closed() {
    let (weir, _) = serving(&[("WEIR_SEND_TIMEOUT", "200ms")]).await;
    let mut stream = TcpStream::connect(("127.0.0.1", port(&weir.addresses))).await.expect("it listens");
    let echo = command(&[&b"ECHO"[..], &vec![b'x'; 60 << 10]]);
    // until it is closed; what it has not read fills all buffers on the way
    let write = async { while stream.write_all(&echo).await.is_ok() {} };
    tokio::time::timeout(DEADLINE, write).await.expect("it is closed");
    until_metric(&weir, "weir_bounds_exceeded_total{bound=\"send_timeout\"} 1").await;
}

#[tokio::test]
async fn what_all_connections_hold_is_bounded() {
    let (weir, _) = serving(&[("WEIR_MAX_BUFFERED_BYTES", "16MiB")]).await;
    // each holds four megabytes of an unfinished command
    let part = b"$1048576\r\n".iter().copied().chain(std::iter::repeat_n(b'x', 1 << 20)).chain(*b"\r\n");
    let part: Vec<u8> = part.collect();
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = Client::to(&weir).await;
        client.send(b"*9\r\n").await;
        // the largest ones are closed while they send
        for _ in 0..3 {
            client.try_send(&part).await;
        }
        clients.push(client);
    }
    until_metric(&weir, "weir_bounds_exceeded_total{bound=\"buffered_bytes\"}").await;
    let wait = async {
        loop {
            let metrics = get(weir.addresses.debug, "/metrics").await;
            let exceeded =
                metrics.lines().find(|line| line.contains("bound=\"buffered_bytes\"")).unwrap_or_default();
            if !exceeded.is_empty() && !exceeded.ends_with(" 0") {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("the largest is closed");
    assert_eq!(Client::to(&weir).await.ask("PING").await, "+PONG");
}

#[tokio::test]
async fn a_transaction_is_bounded() {
    let (_weir, mut client) = serving(&[]).await;
    assert_eq!(client.ask("MULTI").await, "+OK");
    let mut bytes = Vec::new();
    for _ in 0..10_001 {
        bytes.extend(command(&["PING"]));
    }
    client.send(&bytes).await;
    for _ in 0..10_000 {
        assert_eq!(client.reply().await, "+QUEUED");
    }
    assert_eq!(client.reply().await, "-ERR a transaction has at most 10000 commands");
    assert_eq!(client.ask("EXEC").await, "-EXECABORT Transaction discarded because of previous errors.");
}

/// All buckets of a key are searched at once, so there is a bound on them.
#[tokio::test]
async fn a_flood_of_buckets_of_one_key_evicts_its_own() {
    const MOST: usize = 8_192;
    let (weir, mut client) = serving(&[("WEIR_HOT_KEYS", "off")]).await;
    client.ask("CL.THROTTLE other 9 1 60").await;
    let mut bytes = Vec::new();
    for max in 1..=2 * MOST {
        bytes.extend(command(&["RL.REDUCE", "k", &max.to_string(), "60"]));
    }
    let mut flood = Client::to(&weir).await;
    flood.send(&bytes).await;
    for max in 1..=2 * MOST {
        assert_eq!(flood.reply().await, format!(":{max}"));
    }
    let live = async || {
        let metrics = get(weir.addresses.debug, "/metrics").await;
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("weir_counters_live{table=\"memory\"} "));
        line.and_then(|live| live.parse::<usize>().ok()).expect("a number")
    };
    assert!((MOST - 100..=MOST + 100).contains(&live().await), "{}", live().await);
    assert_eq!(client.ask("EXISTS k other").await, ":2");
    assert_eq!(client.ask("DEL k").await, ":1");
    assert_eq!(client.ask("EXISTS k other").await, ":1");
    assert_eq!(live().await, 1);
}

/// The work for a client ends with its connection.
#[tokio::test]
async fn a_search_ends_when_its_client_has_left() {
    let (weir, mut client) = serving(&[("WEIR_REDIS_AUTH", "secret")]).await;
    assert_eq!(client.ask("AUTH secret").await, "+OK");
    let mut bytes = Vec::new();
    for max in 1..=8_000 {
        bytes.extend(command(&["RL.REDUCE", "k", &max.to_string(), "60"]));
    }
    client.send(&bytes).await;
    for max in 1..=8_000 {
        assert_eq!(client.reply().await, format!(":{max}"));
    }
    // hundreds of thousands of searches
    let search = command(&[&["EXISTS"][..], &["k"; 1_000]].concat());
    let transaction = [command(&["MULTI"]), search.repeat(400), command(&["EXEC"])].concat();
    let mut searching = Client::to(&weir).await;
    assert_eq!(searching.ask("AUTH secret").await, "+OK");
    let open = async || {
        let metrics = get(weir.addresses.debug, "/metrics").await;
        metrics.lines().find(|line| line.starts_with("weir_connections_open ")).map(str::to_owned)
    };
    let before = open().await;
    searching.send(&transaction).await;
    until_metric(&weir, "weir_redis_port_commands_total{command=\"exec\"} 1").await;
    // others have their turn meanwhile
    assert_eq!(client.ask("RL.GET k 8000 60").await, ":7999");
    drop(searching);
    let left = async {
        while open().await == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, left).await.expect("the work ends");
    assert_eq!(client.ask("PING").await, "+PONG");
}

/// Buckets are among the counters, whose number is bounded.
#[tokio::test]
async fn a_flood_of_keys_stays_within_the_bound_on_counters() {
    let (weir, mut client) = serving(&[("WEIR_MAX_COUNTERS", "100")]).await;
    let mut bytes = Vec::new();
    for i in 0..1_000 {
        bytes.extend(command(&["CL.THROTTLE", &i.to_string(), "1", "1", "60"]));
        bytes.extend(command(&["RL.REDUCE", &i.to_string(), "2", "60", "AT", "7"]));
    }
    client.send(&bytes).await;
    for _ in 0..1_000 {
        assert_eq!(client.reply().await, "[:0 :2 :1 :-1 :60]");
        assert_eq!(client.reply().await, ":2");
    }
    let metrics = get(weir.addresses.debug, "/metrics").await;
    assert!(metrics.contains("weir_counters_live{table=\"memory\"} 100\n"), "{metrics}");
    assert!(
        metrics.contains("weir_counters_evicted_total{table=\"memory\",hits=\"lost\"} 1900\n"),
        "{metrics}"
    );
}

/// Buckets of quintillions of tokens and weeks, and limits of a year, are dear to lose. They evict each other, and not the
/// counters of rules.
#[tokio::test]
async fn what_requests_invent_evicts_no_counter_of_a_rule() {
    const RULES: &str =
        "{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 5}}]}";
    let mut weir = start(RULES, &[("WEIR_MAX_COUNTERS", "100")]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(take_of_each(&mut weir).await, [5; 80]);
    let mut bytes = Vec::new();
    for i in 0..500 {
        bytes.extend(command(&["RL.REDUCE", &i.to_string(), "9000000000000000000", "4000000"]));
        let one = format!("90000000000000{i:05}");
        bytes.extend(command(&["RL.REDUCE", "one", &one, "4000000", "TAKE", &one]));
    }
    client.send(&bytes).await;
    for _ in 0..1_000 {
        let reply = client.reply().await;
        assert!(reply.starts_with(":90000000000000"), "{reply}");
    }
    for i in 0..500 {
        let value = format!("year {i}");
        let descriptor =
            wire::limited(u32::MAX, RateLimitUnit::Year.into(), wire::descriptor([("k", &value)]));
        weir.decide(wire::request("d", [wire::hits(u32::MAX.into(), descriptor)])).await;
    }
    let metrics = get(weir.addresses.debug, "/metrics").await;
    assert!(metrics.contains("weir_counters_live{table=\"memory\"} 100\n"), "{metrics}");
    assert_eq!(take_of_each(&mut weir).await, [0; 80]);
}

/// Takes five times of each of many values of a rule. Returns how many were admitted of each.
async fn take_of_each(weir: &mut Weir) -> [u32; 80] {
    let mut admitted = [0; 80];
    for (value, admitted) in admitted.iter_mut().enumerate() {
        for _ in 0..5 {
            let descriptor = wire::descriptor([("k", value.to_string().as_str())]);
            let (code, _) = wire::gist(&weir.decide(wire::request("d", [descriptor])).await);
            *admitted += u32::from(code == Code::Ok);
        }
    }
    admitted
}
