//! Real Memcached servers on free ports, and instances in the test's process that share them.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::time;
use weir::{
    clock::{Clock, SystemClock},
    limit::{
        Algorithm, Coordination, Decision, Descriptor, Domain, Entry, KeyHasher, Limit, Matched,
        OnStoreFailure, OverLimitPolicy, Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope,
        Tier, Timestamp, Values,
    },
    store::{
        Store as _,
        coordinated::{Coordinated, CoordinationSettings},
        memcached::{MemcachedRemote, MemcachedSettings, ServerSource},
        redis::Address,
    },
};

/// The longest time that a test waits for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The longest window of the tests, which no test can see the end of.
pub(crate) const YEAR: u64 = 365 * 86_400;

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    port: u16,
    arguments: Vec<String>,
    dir: TempDir,
}

// === impl Server ===

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut server = Self { child: spawn("-1", &arguments, &dir), port: 0, arguments, dir };
        let file = server.dir.path().join("port");
        let begun = Instant::now();
        while server.port == 0 {
            assert!(begun.elapsed() < DEADLINE, "memcached does not start with {:?}", server.arguments);
            // written at once, with a line end
            let text = fs::read_to_string(&file).unwrap_or_default();
            let port = text.strip_prefix("TCP INET: ").and_then(|text| text.strip_suffix('\n'));
            server.port = port.map_or(0, |port| port.parse().expect("a port"));
            thread::sleep(Duration::from_millis(5));
        }
        server.wait_until_up();
        server
    }

    fn wait_until_up(&mut self) {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(self.child.try_wait().expect("its state").is_none(), "memcached has exited");
            assert!(begun.elapsed() < DEADLINE, "memcached does not listen");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> Address {
        Address::tcp("127.0.0.1", self.port)
    }

    /// Sends `command` as a client of the text protocol, without its line end. Returns the first line of the reply.
    pub(crate) fn send(&self, command: &str) -> String {
        let mut stream = BufReader::new(self.connect());
        write!(stream.get_mut(), "{command}\r\n").expect("it takes a command");
        let mut line = String::new();
        stream.read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }

    /// Returns the value of `key`.
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        let mut stream = self.connect();
        write!(stream, "get {key}\r\nquit\r\n").expect("it takes a command");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        let value = reply.strip_prefix("VALUE ")?.split("\r\n").nth(1);
        Some(value.expect("a value after its head").to_owned())
    }

    /// Returns the number of its items.
    pub(crate) fn items(&self) -> u64 {
        let mut stream = self.connect();
        write!(stream, "stats\r\nquit\r\n").expect("it takes a command");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        let items = reply.lines().find_map(|line| line.strip_prefix("STAT curr_items "));
        items.expect("it is among the stats").trim().parse().expect("a number")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout that is not zero");
        stream
    }

    /// Sends it a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill can be started");
        assert!(sent.success());
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("its end");
    }

    /// Starts it again on the same port, without its data.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.port.to_string(), &self.arguments, &self.dir);
        self.wait_until_up();
    }
}

fn spawn(port: &str, arguments: &[String], dir: &TempDir) -> Child {
    Command::new("memcached")
        // the user matters only to root
        .args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p", port])
        .args(arguments)
        .env("MEMCACHED_PORT_FILENAME", dir.path().join("port"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("memcached is installed")
}

impl Drop for Server {
    fn drop(&mut self) {
        // it may have exited already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns settings for `servers`, in their order.
pub(crate) fn settings(servers: &[&Server]) -> MemcachedSettings {
    let addresses = servers.iter().map(|server| server.address()).collect();
    MemcachedSettings {
        timeout: Duration::from_secs(5),
        ..MemcachedSettings::new(ServerSource::List(addresses))
    }
}

/// Waits until `done` returns true; panics at the [`DEADLINE`].
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(time::timeout(DEADLINE, waiting).await.is_ok(), "not in time: {what}");
}

/// Returns a fixed window.
pub(crate) fn window(requests: u32, seconds: u64) -> Tier {
    Tier { requests, period: Period::from_secs(seconds), algorithm: Algorithm::FixedWindow }
}

/// A clock that the test sets.
pub(crate) struct SetClock(parking_lot::Mutex<Timestamp>);

impl SetClock {
    pub(crate) fn at(seconds: u64) -> Arc<Self> {
        Arc::new(Self(parking_lot::Mutex::new(Timestamp::from_secs(seconds))))
    }

    pub(crate) fn set(&self, now: Timestamp) {
        *self.0.lock() = now;
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// One instance, with a rule for every value of the key `k` in the domain `fleet`.
pub(crate) struct Instance {
    pub(crate) store: Coordinated<MemcachedRemote>,
    clock: Arc<dyn Clock>,
    rules: RuleSet,
}

// === impl Instance ===

impl Instance {
    /// Creates one that limits by `tiers` in `mode`, and rejects what it decides without the store: then a machine that stops for
    /// a while exceeds no limit.
    pub(crate) fn new(
        settings: MemcachedSettings,
        tiers: &[Tier],
        over_limit_policy: OverLimitPolicy,
        mode: Coordination,
    ) -> Self {
        let coordination = RuleCoordination {
            mode: Some(mode),
            on_store_failure: Some(OnStoreFailure::Deny),
            ..RuleCoordination::default()
        };
        let limit = Limit::Tiers { tiers: tiers.iter().cloned().collect(), over_limit_policy };
        Self::with(settings, Rule { coordination, ..Rule::new(limit) }, Arc::new(SystemClock))
    }

    /// Creates one with `rule` and a clock.
    pub(crate) fn with(settings: MemcachedSettings, rule: Rule, clock: Arc<dyn Clock>) -> Self {
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = RuleSet::new(&[Domain { name: "fleet".into(), nodes: vec![node] }], KeyHasher::random());
        let remote = MemcachedRemote::new(settings, Arc::clone(&clock)).expect("no files are needed");
        // a generous budget and slow heartbeats, since a busy machine delays both
        let own = CoordinationSettings {
            budget: Period::from_secs(10),
            heartbeat: Period::from_millis(500),
            ..CoordinationSettings::default()
        };
        Self { store: Coordinated::new(remote, Arc::clone(&clock), own), clock, rules }
    }

    pub(crate) async fn wait_until_connected(&self) {
        until("memcached is connected", async || self.store.remote().state().is_connected()).await;
    }

    /// Sends `hits` for the counter of `value`. Returns the decision.
    pub(crate) async fn send(&self, value: &str, hits: u64) -> Decision {
        self.decide(value, hits, false).await
    }

    /// Gives `hits` of the counter of `value` back.
    pub(crate) async fn give_back(&self, value: &str, hits: u64) -> Decision {
        self.decide(value, hits, true).await
    }

    async fn decide(&self, value: &str, hits: u64, gives_back: bool) -> Decision {
        let entries = [Entry { key: "k", value }];
        let descriptor = Descriptor {
            entries: entries.into_iter().collect(),
            hits: Some(hits),
            refund: gives_back,
            ..Descriptor::default()
        };
        let request = Request { domain: "fleet", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        decisions.expect("a coordinated store always decides")[0]
    }
}
