//! Sending stats to a statsd server, over real sockets.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use weir::settings::{Flags, Settings};
use weir_export::statsd::{self, Dialect, Protocol, StatsdSettings};
use weir_observe::{RuleCounts, RuleLimit, Stats};

const LOADED: &str = "ratelimit.service.config_load_success";
const DEADLINE: Duration = Duration::from_secs(20);

fn settings(port: u16, protocol: Protocol) -> StatsdSettings {
    StatsdSettings {
        host: "127.0.0.1".to_owned(),
        port,
        protocol,
        interval: Duration::from_millis(5),
        dialect: Dialect::Plain,
        tags: BTreeMap::new(),
        gauges: true,
        mogrifiers: Vec::new(),
    }
}

fn start(settings: StatsdSettings) -> (Arc<Stats>, JoinHandle<()>) {
    let stats = Arc::new(Stats::default());
    let running = tokio::spawn(statsd::run(settings, Arc::clone(&stats), pending()));
    (stats, running)
}

/// The stats that a server has received.
#[derive(Debug, Default)]
struct Received {
    rest: String,
    /// The sum of the counters, and the last value of the gauges.
    values: BTreeMap<String, u64>,
    lines: Vec<String>,
}

impl Received {
    fn add(&mut self, bytes: &[u8]) {
        self.rest.push_str(std::str::from_utf8(bytes).expect("a stat is text"));
        while let Some((line, rest)) = self.rest.split_once('\n') {
            let (name, value) = line.split_once(':').expect("a stat has a value");
            let (value, kind) = value.split_once('|').expect("a stat has a kind");
            match kind.split_once('|').map_or(kind, |(kind, _)| kind) {
                "c" => *self.values.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap(),
                "g" => {
                    self.values.insert(name.to_owned(), value.parse().unwrap());
                }
                "ms" => assert!(value.parse::<f64>().is_ok(), "{line}"),
                kind => panic!("no such kind: {kind}"),
            }
            self.lines.push(line.to_owned());
            self.rest = rest.to_owned();
        }
    }

    fn value(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or_default()
    }

    /// Reads until `enough`; returns false if the connection ends before.
    async fn read_until(&mut self, stream: &TcpStream, enough: impl Fn(&Self) -> bool) -> bool {
        let read = async {
            while !enough(self) {
                stream.readable().await.unwrap();
                let mut bytes = [0; 4096];
                match stream.try_read(&mut bytes) {
                    Ok(0) => return false,
                    Ok(read) => self.add(&bytes[..read]),
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                }
            }
            true
        };
        timeout(DEADLINE, read).await.expect("the stats come")
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    timeout(DEADLINE, listener.accept()).await.expect("a connection comes").unwrap().0
}

#[tokio::test]
async fn counters_are_sent_as_deltas() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (stats, running) = start(settings(listener.local_addr().unwrap().port(), Protocol::Tcp));
    let stream = accept(&listener).await;
    let mut received = Received::default();
    stats.config_load_success.add(3);
    assert!(received.read_until(&stream, |received| received.value(LOADED) >= 3).await);
    stats.config_load_success.add(4);
    stats.config_loaded_at.set(77);
    stats.method("ShouldRateLimit").record(1, Duration::from_micros(1_500));
    let gauge = "weir.config_loaded_timestamp_seconds";
    let timing = "ratelimit_server.ShouldRateLimit.response_time:1.500000|ms";
    let has = |received: &Received, line: &str| received.lines.iter().any(|has| has == line);
    let all = |received: &Received| {
        received.value(LOADED) >= 7 && received.value(gauge) == 77 && has(received, timing)
    };
    assert!(received.read_until(&stream, all).await);
    assert_eq!(received.value(LOADED), 7);
    assert_eq!(received.value("ratelimit_server.ShouldRateLimit.total_requests"), 1);
    assert!(!received.values.contains_key("ratelimit.service.config_load_error"), "{:?}", received.values);
    running.abort();
}

/// Each has a name of its own for each rule, and many services charge by name.
#[tokio::test]
async fn gauges_are_sent_only_if_asked_for() {
    for gauges in [None, Some("false"), Some("true")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let variables = [
            ("STATSD_HOST", Some("127.0.0.1")),
            ("STATSD_PORT", Some(&*port)),
            ("STATS_FLUSH_INTERVAL", Some("5ms")),
            ("WEIR_STATSD_GAUGES", gauges),
        ];
        let given =
            variables.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        let environment: BTreeMap<String, String> = given.collect();
        let settings = Settings::resolve(&Flags::default(), &environment).expect("valid settings");
        let (stats, running) = start(settings.statsd.expect("stats are sent"));
        let name: [Box<str>; 2] = ["shop".into(), "tenant".into()];
        stats.set_rule_limits(vec![RuleLimit {
            name: name.clone().into(),
            requests: 7,
            period: Duration::from_mins(1),
            per: "1m".into(),
            in_shadow: false,
        }]);
        stats.rule(&name).add(RuleCounts { total_hits: 3, ..RuleCounts::default() });
        let stream = accept(&listener).await;
        let mut received = Received::default();
        for more in 1..=3 {
            stats.config_load_success.add(1);
            // each flush sends everything
            assert!(received.read_until(&stream, |received| received.value(LOADED) == more).await);
        }
        assert_eq!(received.value("ratelimit.service.rate_limit.shop.tenant.total_hits"), 3);
        let gauges_of: Vec<_> = received.lines.iter().filter(|line| line.contains("|g")).collect();
        if gauges == Some("true") {
            assert!(
                gauges_of.iter().any(|line| *line == "weir.rule_limit.shop.tenant.1m:7|g"),
                "{gauges_of:?}"
            );
        } else {
            assert!(gauges_of.is_empty(), "{gauges_of:?}");
        }
        running.abort();
    }
}

/// A request chooses how many hits it has.
#[tokio::test]
async fn a_counter_at_its_most_sends_what_was_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (stats, running) = start(settings(listener.local_addr().unwrap().port(), Protocol::Tcp));
    let stream = accept(&listener).await;
    let rule = stats.rule(&["shop".into(), "tenant".into()]);
    let name = "ratelimit.service.rate_limit.shop.tenant.total_hits";
    let mut received = Received::default();
    for (hits, sum) in [(u64::MAX - 3, u64::MAX - 3), (5, u64::MAX)] {
        rule.add(RuleCounts { total_hits: hits, ..RuleCounts::default() });
        assert!(received.read_until(&stream, |received| received.value(name) == sum).await);
    }
    running.abort();
}

#[tokio::test]
async fn deltas_accumulate_while_the_server_is_unreachable() {
    // a reserved address without a listener
    let unreachable = TcpSocket::new_v4().unwrap();
    unreachable.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (stats, running) = start(settings(unreachable.local_addr().unwrap().port(), Protocol::Tcp));
    stats.config_load_success.add(5);
    let listener = unreachable.listen(8).unwrap();
    let mut received = Received::default();
    let first = accept(&listener).await;
    assert!(received.read_until(&first, |received| received.value(LOADED) >= 5).await);

    drop(first);
    // each flush notices a lost connection, whether or not there is something to send
    let second = accept(&listener).await;
    stats.config_load_success.add(6);
    assert!(received.read_until(&second, |received| received.value(LOADED) >= 11).await);
    assert_eq!(received.value(LOADED), 11);
    running.abort();
}

#[tokio::test]
async fn a_stop_flushes_the_rest() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rarely = StatsdSettings {
        interval: Duration::from_hours(1),
        ..settings(listener.local_addr().unwrap().port(), Protocol::Tcp)
    };
    let stats = Arc::new(Stats::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        let _ = stopped.await;
    };
    let running = tokio::spawn(statsd::run(rarely, Arc::clone(&stats), stopped));
    let stream = accept(&listener).await;
    let mut received = Received::default();
    let gauge = "weir.config_loaded_timestamp_seconds";
    assert!(received.read_until(&stream, |received| received.values.contains_key(gauge)).await);
    stats.config_load_success.add(9);
    stop.send(()).unwrap();
    assert!(received.read_until(&stream, |received| received.value(LOADED) == 9).await);
    timeout(DEADLINE, running).await.expect("it ends").unwrap();
    assert!(!received.read_until(&stream, |_| false).await, "nothing comes after the end");
    assert_eq!(received.value(LOADED), 9);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_an_unreachable_server() {
    let unreachable = TcpSocket::new_v4().unwrap();
    unreachable.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let settings = settings(unreachable.local_addr().unwrap().port(), Protocol::Tcp);
    let running = statsd::run(settings, Arc::default(), async {});
    timeout(DEADLINE, running).await.expect("it ends");
}

#[tokio::test]
async fn datagrams_are_small_and_hold_whole_lines() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (stats, running) = start(settings(server.local_addr().unwrap().port(), Protocol::Udp));
    for i in 0..200 {
        stats.unknown_domain(&format!("nowhere-{i}"), 2);
    }
    let mut received = Received::default();
    let mut datagram = vec![0; 1 << 16];
    while received.values.iter().filter(|(name, _)| name.ends_with(".domain_not_found")).count() < 200 {
        let length = timeout(DEADLINE, server.recv(&mut datagram)).await.expect("a datagram comes").unwrap();
        assert!(length <= 1_432, "{length}");
        received.add(&datagram[..length]);
        assert_eq!(received.rest, "", "a line is cut in two");
    }
    assert_eq!(received.value("ratelimit.service.rate_limit.nowhere-7.domain_not_found"), 2);
    running.abort();
}

#[tokio::test]
async fn tags_are_sent_in_both_dialects() {
    let tags: BTreeMap<String, String> = [("zone".to_owned(), "eu.1".to_owned())].into();
    for (dialect, line) in [
        (Dialect::Plain, format!("{LOADED}.__zone=eu_1:2|c")),
        (Dialect::Dog, format!("{LOADED}:2|c|#zone:eu_1")),
    ] {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let tagged = StatsdSettings {
            dialect,
            tags: tags.clone(),
            ..settings(server.local_addr().unwrap().port(), Protocol::Udp)
        };
        let (stats, running) = start(tagged);
        stats.config_load_success.add(2);
        let mut received = Received::default();
        let mut datagram = vec![0; 1 << 16];
        while !received.lines.contains(&line) {
            let length = timeout(DEADLINE, server.recv(&mut datagram)).await.expect("it comes").unwrap();
            received.add(&datagram[..length]);
        }
        running.abort();
    }
}

/// The examples of envoyproxy/ratelimit's README, with its variables.
#[tokio::test]
async fn mogrifiers_give_the_names_of_envoyproxy_ratelimits_examples() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let environment: BTreeMap<String, String> = [
        ("USE_DOG_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &port),
        ("STATS_FLUSH_INTERVAL", "5ms"),
        ("WEIR_STATSD_GAUGES", "true"),
        ("EXTRA_TAGS", "zone:eu"),
        ("USE_DOG_STATSD_MOGRIFIERS", "DOMAIN,HITS"),
        ("DOG_STATSD_MOGRIFIER_DOMAIN_PATTERN", "^ratelimit\\.service\\.config_(.*)$"),
        ("DOG_STATSD_MOGRIFIER_DOMAIN_NAME", "ratelimit.service.config"),
        ("DOG_STATSD_MOGRIFIER_DOMAIN_TAGS", "domain:$1"),
        (
            "DOG_STATSD_MOGRIFIER_HITS_PATTERN",
            "^ratelimit\\.service\\.rate_limit\\.([^.]+)\\.(.*)\\.([^.]+)$",
        ),
        ("DOG_STATSD_MOGRIFIER_HITS_NAME", "ratelimit.service.rate_limit.$3"),
        ("DOG_STATSD_MOGRIFIER_HITS_TAGS", "domain:$1,descriptor:$2"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let settings = Settings::resolve(&Flags::default(), &environment).expect("valid settings");
    let (stats, running) = start(settings.statsd.expect("stats are sent"));
    let name = ["mongo_cps".into(), "database_users".into(), "tenant_a,b".into()];
    stats.rule(&name).add(RuleCounts { total_hits: 7, ..RuleCounts::default() });
    stats.config_load_success.add(2);
    let mut received = Received::default();
    let mut datagram = vec![0; 1 << 16];
    for line in [
        "ratelimit.service.rate_limit.total_hits:7|c|#zone:eu,domain:mongo_cps,descriptor:database_users.tenant_a_b",
        "ratelimit.service.config:2|c|#zone:eu,domain:load_success",
        // no pattern matches it
        "weir.config_loaded_timestamp_seconds:0|g|#zone:eu",
    ] {
        while !received.lines.iter().any(|received| received == line) {
            let length = timeout(DEADLINE, server.recv(&mut datagram)).await.expect(line).unwrap();
            received.add(&datagram[..length]);
        }
    }
    running.abort();
}
