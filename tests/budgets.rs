//! Budgets whose costs are reported after the answers, such as the tokens of language models: every spelling of a limit
//! with `reserve`, in every mode and store of the program.

use std::{fmt::Write as _, fs};

use futures_util::future::join_all;
use prost_types::value::Kind;
use tempfile::TempDir;
use tonic::transport::Channel;
use weir_harness::wire::{descriptor, hits, refund, request};
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use weir_testing::{child::Serving, memcached_server, redis_server, wait::until};

const LIMIT: u64 = 100;

/// Far above what is left.
const COST: u64 = 1_400;

/// No window ends during the test, and no bucket is refilled.
const SPELLINGS: [(&str, &str); 6] = [
    ("unit", "unit: year, requests_per_unit: 100"),
    ("fixed", "requests: 100, per: 365d"),
    ("sliding", "requests: 100, per: 365d, algorithm: sliding_window"),
    ("bucket", "requests: 100, per: 365d, algorithm: token_bucket"),
    ("steps", "requests: 100, per: 365d, algorithm: token_bucket, refill: step"),
    (
        "tiers",
        "tiers: [{requests: 100, per: 365d}, {requests: 300, per: 364d, algorithm: sliding_window}, {requests: \
         5000, per: 363d, algorithm: token_bucket}]",
    ),
];

const MODES: [&str; 6] = ["auto", "local", "strict", "interval", "lease", "split"];

/// Both have the same rules; in the second one, a rejected request counts nowhere.
const DOMAINS: [&str; 2] = ["each", "together"];

type Client = RateLimitServiceClient<Channel>;

/// Weirs that share a store, and a client of each.
struct Weirs {
    serving: Vec<Serving>,
    clients: Vec<Client>,
    _rules: TempDir,
}

/// One rule of these weirs.
#[derive(Clone)]
struct Budget<'a> {
    weirs: &'a Weirs,
    domain: &'a str,
    key: String,
    mode: &'a str,
}

fn rules(spellings: &[(&str, &str)], more: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (domain, scope) in DOMAINS.into_iter().zip(["", "all_or_nothing: true\n"]) {
        let mut text = format!(
            "domain: {domain}\n{scope}descriptors:\n  - {{key: other, rate_limit: {{requests: 9, per: 365d}}}}\n"
        );
        for (spelling, limit) in spellings {
            for mode in MODES {
                let parts = if mode == "split" { ", instances: 2" } else { "" };
                let rule = format_args!("{{{limit}, coordination: {mode}{parts}{more}}}");
                let _ = writeln!(text, "  - key: {spelling}_{mode}\n    rate_limit: {rule}");
            }
        }
        fs::write(dir.path().join(format!("{domain}.yaml")), text).expect("a file in it");
    }
    dir
}

// === impl Weirs ===

impl Weirs {
    async fn start(instances: usize, rules: TempDir, variables: &[(&str, &str)]) -> Self {
        let own = [("WEIR_STOP_DELAY", "0"), ("WEIR_DECISION_BUDGET", "5s"), ("RUNTIME_WATCH_ROOT", "true")];
        let variables = [&own, variables].concat();
        let start = |_| Serving::start(rules.path().to_str().expect("a plain path"), &variables);
        let serving: Vec<Serving> = (0..instances).map(start).collect();
        let mut clients = Vec::new();
        for weir in &serving {
            let address = format!("http://{}", weir.address("grpc"));
            clients.push(RateLimitServiceClient::connect(address).await.expect("it listens"));
        }
        let weirs = Self { serving, clients, _rules: rules };
        if instances > 1 {
            until("all instances know each other", async || {
                weirs.serving.iter().all(|weir| weir_metric(weir, "weir_instances") == instances as u64)
            })
            .await;
        }
        weirs
    }

    fn budget<'a>(&'a self, domain: &'a str, spelling: &str, mode: &'a str) -> Budget<'a> {
        Budget { weirs: self, domain, key: format!("{spelling}_{mode}"), mode }
    }

    /// Reports a cost far above the rest of every budget.
    async fn lose_nothing(&self, spellings: &[(&str, &str)], modes: &[&str], is_named: bool) {
        let mut budgets = Vec::new();
        for domain in DOMAINS {
            for (spelling, _) in spellings {
                budgets.extend(modes.iter().map(|mode| (spelling, self.budget(domain, spelling, mode))));
            }
        }
        join_all(budgets.iter().map(|(spelling, budget)| budget.ends_with_a_cost(spelling, is_named))).await;
    }
}

fn weir_metric(weir: &Serving, name: &str) -> u64 {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(weir.address("http")).expect("it listens");
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n").expect("sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a response");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_default()
}

// === impl Budget ===

impl Budget<'_> {
    async fn send<const N: usize>(&self, instance: usize, parts: [(i64, &str); N]) -> RateLimitResponse {
        let descriptors = parts.map(|(count, key)| {
            let entry = descriptor([(key, "acme")]);
            if count < 0 { refund(count.unsigned_abs(), entry) } else { hits(count.unsigned_abs(), entry) }
        });
        let mut client = self.weirs.clients[instance].clone();
        let response = client.should_rate_limit(request(self.domain, descriptors)).await;
        response.expect("a response").into_inner()
    }

    /// Returns whether `count` hits are admitted. Negative ones are given back.
    async fn count(&self, instance: usize, count: i64) -> bool {
        self.send(instance, [(count, &self.key)]).await.overall_code() == Code::Ok
    }

    async fn left(&self, instance: usize) -> u32 {
        let check = request(self.domain, [descriptor([(&*self.key, "acme"), ("in_flight", "check")])]);
        let response = self.weirs.clients[instance].clone().should_rate_limit(check).await;
        response.expect("a response").into_inner().statuses[0].limit_remaining
    }

    /// Begins a request of so many hits, and returns its name.
    async fn begin(&self, count: i64) -> String {
        let response = self.send(0, [(count, &self.key)]).await;
        let metadata = response.dynamic_metadata.unwrap_or_else(|| panic!("{} begins", self.key));
        match metadata.fields.get("in_flight").and_then(|value| value.kind.clone()) {
            Some(Kind::StringValue(name)) => name,
            other => panic!("{other:?}"),
        }
    }

    /// Reports the cost of the request `name` to another instance, if it knows of it, or ends it without one.
    async fn end(&self, name: &str, cost: Option<u64>) -> Code {
        let entry = descriptor([("in_flight", name)]);
        let entry = if let Some(cost) = cost { hits(cost, entry) } else { entry };
        let mut client = self.weirs.clients[self.instances() - 1].clone();
        let response = client.should_rate_limit(request(self.domain, [entry])).await;
        response.expect("a response").into_inner().overall_code()
    }

    fn instances(&self) -> usize {
        // each counts by itself
        if matches!(self.mode, "local" | "split") { 1 } else { self.weirs.clients.len() }
    }

    async fn ends_with_a_cost(&self, spelling: &str, is_named: bool) {
        let what = format!("{} of {}", self.key, self.domain);
        let limit = if self.mode == "split" { LIMIT / 2 } else { LIMIT };
        // a bucket owes one burst at most: what is above is forgiven
        let cost = if matches!(spelling, "bucket" | "steps") { limit * 3 / 2 } else { COST };
        if is_named {
            let (first, second) = (self.begin(1).await, self.begin(0).await);
            for (name, cost) in [(&second, None), (&first, Some(cost))] {
                assert_eq!(self.end(name, cost).await, Code::Ok, "{what}");
            }
        } else {
            assert!(self.count(0, 1).await && self.count(0, 0).await, "{what}: a request begins");
            assert!(self.count(0, 2).await, "{what}: a cost");
            // a cost counts whatever becomes of the request's other descriptors
            let response = self.send(0, [(cost.cast_signed(), &self.key), (1, "other")]).await;
            assert_eq!(response.overall_code(), Code::OverLimit, "{what}");
        }
        for instance in 0..self.instances() {
            until(&format!("{what} is used up at {instance}"), async || self.left(instance).await == 0).await;
            for _ in 0..3 {
                assert!(!self.count(instance, 1).await && !self.count(instance, 0).await, "{what}");
            }
        }
        // all of it counted, and no rejected request
        let counted = cost + if is_named { 1 } else { 3 };
        let back = i64::try_from(counted - limit).expect("few");
        self.count(0, -back).await;
        for instance in 0..self.instances() {
            assert!(!self.count(instance, 0).await, "{what}: {back} were given back");
        }
        self.count(0, -2).await;
        // a lease may hold them at one of the instances
        let least = if matches!(self.mode, "lease" | "auto") { 1 } else { self.instances() };
        until(&format!("{what} has 2 left"), async || {
            let left = join_all((0..self.instances()).map(|instance| self.left(instance))).await;
            left.iter().filter(|left| **left == 2).count() >= least
        })
        .await;
        self.count(0, -48).await;
        for instance in 0..self.instances() {
            until(&format!("{what} goes on at {instance}"), async || self.count(instance, 0).await).await;
        }
    }

    /// Takes hits, and replaces them by a cost in one request, until no more fit. Returns the costs.
    async fn use_up(self, taken: i64) -> u64 {
        let mut used = 0;
        while self.count(0, taken).await {
            self.send(0, [(-taken, &self.key), (7, &self.key)]).await;
            used += 7;
        }
        used
    }
}

/// The weirs of each store, with what they need to run.
async fn in_memory_and_on_disk(more: &str, variables: &[(&str, &str)]) -> Vec<(Weirs, Option<TempDir>)> {
    let data = tempfile::tempdir().expect("a directory");
    let disk = [("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", data.path().to_str().expect("a plain path"))];
    let memory = Weirs::start(1, rules(&SPELLINGS, more), variables).await;
    let disk = Weirs::start(1, rules(&SPELLINGS, more), &[&disk, variables].concat()).await;
    vec![(memory, None), (disk, Some(data))]
}

fn redis(server: &redis_server::Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn a_cost_above_the_rest_ends_the_budget_in_memory_and_on_disk() {
    for (weirs, _data) in in_memory_and_on_disk(", reserve: 0", &[]).await {
        weirs.lose_nothing(&SPELLINGS, &MODES, false).await;
    }
}

#[tokio::test]
async fn a_cost_above_what_was_reserved_ends_the_budget_in_memory_and_on_disk() {
    let stops = [("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")];
    for reserve in [", reserve: 20", ", reserve: auto"] {
        for variables in [&[][..], &stops] {
            for is_named in [true, false] {
                for (weirs, _data) in in_memory_and_on_disk(reserve, variables).await {
                    weirs.lose_nothing(&SPELLINGS, &MODES, is_named).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_cost_above_the_rest_ends_the_budget_where_a_rejected_request_counts_nowhere() {
    let stops = [("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")];
    for (weirs, _data) in in_memory_and_on_disk(", reserve: 0", &stops).await {
        weirs.lose_nothing(&SPELLINGS, &["auto"], false).await;
    }
}

#[tokio::test]
async fn a_cost_above_the_rest_and_what_was_reserved_ends_the_budget_in_redis() {
    let server = redis_server::Server::start();
    let address = redis(&server);
    let variables =
        [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*address), ("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")];
    let (plain, cached) = (&variables[..2], &variables[..]);
    for (reserve, is_named, variables) in [
        (", reserve: 0", false, plain),
        (", reserve: 0", false, cached),
        (", reserve: 20", true, plain),
        (", reserve: 20", false, cached),
        (", reserve: auto", true, cached),
        (", reserve: auto", false, plain),
    ] {
        server.send::<()>(&["FLUSHALL"]);
        let weirs = Weirs::start(2, rules(&SPELLINGS, reserve), variables).await;
        weirs.lose_nothing(&SPELLINGS, &MODES, is_named).await;
    }
}

#[tokio::test]
async fn a_cost_above_the_rest_ends_the_budget_in_memcached() {
    let server = memcached_server::Server::start();
    let address = format!("127.0.0.1:{}", server.port());
    let variables = [("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", &*address)];
    let windows = &SPELLINGS[..2];
    let weirs = Weirs::start(2, rules(windows, ", reserve: 0"), &variables).await;
    weirs.lose_nothing(windows, &MODES, false).await;
}

/// Hits that callers reserve themselves, and hits that a rule reserves beside theirs.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_give_back_and_count_in_one_request_never_exceed_the_limit() {
    let server = redis_server::Server::start();
    let address = redis(&server);
    let shared = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*address)];
    for (variables, modes) in [(&[][..], &["auto"][..]), (&shared, &["strict", "lease"])] {
        for (reserve, taken, least) in [("", 10, LIMIT - 16), (", reserve: 20", 1, LIMIT - 20)] {
            let weirs = Weirs::start(1, rules(&SPELLINGS, reserve), variables).await;
            for mode in modes {
                for (spelling, _) in SPELLINGS.iter().skip(1) {
                    let budget = weirs.budget("each", spelling, mode);
                    let callers: Vec<_> = (0..16).map(|_| budget.clone().use_up(taken)).collect();
                    let used: u64 = join_all(callers).await.into_iter().sum();
                    assert!((least..=LIMIT).contains(&used), "{spelling}, {mode}{reserve}: {used}");
                }
            }
            server.send::<()>(&["FLUSHALL"]);
        }
    }
}

/// What tells a user of a rule that loses its costs.
// the clients' tasks must run while the test waits for a weir to stop
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_cost_is_counted_and_logged_once_with_what_to_write() {
    let data = tempfile::tempdir().expect("a directory");
    let disk = [("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", data.path().to_str().expect("a plain path"))];
    for variables in [&[][..], &disk] {
        let mut weirs = Weirs::start(1, rules(&SPELLINGS, ""), variables).await;
        for (domain, spelling) in [("each", "fixed"), ("together", "unit"), ("each", "unit")] {
            let budget = weirs.budget(domain, spelling, "auto");
            // a request whose hits are all known at once
            assert!(!budget.count(0, 1_400).await);
        }
        for (domain, spelling) in [("each", "fixed"), ("together", "unit"), ("each", "unit")] {
            let budget = weirs.budget(domain, spelling, "auto");
            for _ in 0..2 {
                budget.count(0, 0).await;
                budget.count(0, 1_400).await;
            }
        }
        for (domain, key) in [("each", "fixed_auto"), ("together", "unit_auto")] {
            let series = format!("weir_hits_cost_lost_total{{domain=\"{domain}\",key1=\"{key}\"}}");
            assert_eq!(weir_metric(&weirs.serving[0], &series), 2_800, "{series}");
        }
        let counted = "weir_hits_cost_lost_total{domain=\"each\",key1=\"unit_auto\"}";
        assert_eq!(weir_metric(&weirs.serving[0], counted), 0, "its costs count");
        let weir = weirs.serving.remove(0);
        weir.signal("TERM");
        let (status, output) = weir.ended();
        assert!(status.success(), "{output}");
        let lines: Vec<&str> = output.lines().filter(|line| line.contains("'reserve: 0'")).collect();
        assert_eq!(lines.len(), 2, "{output}");
        assert!(lines[0].contains("rule=each.fixed_auto") && lines[0].contains("each.yaml:"), "{output}");
        assert!(lines[1].contains("rule=together.unit_auto") && lines[1].contains("hits=1400"), "{output}");
    }
}
