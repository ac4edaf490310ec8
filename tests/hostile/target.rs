//! The weir under attack, and its other client.

use std::{fs, time::Duration};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tonic::transport::Channel;
use weir_proto::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};

use crate::{
    child::Serving,
    wire::{descriptor, gist, request},
};

/// How long a test waits for an event before it fails.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// A megabyte.
pub(crate) const MB: u64 = 1 << 20;

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
  - key: named
    rate_limit: { unit: hour, requests_per_unit: 1000000, name: NAME }
  - key: shared
    rate_limit: { unit: hour, requests_per_unit: 1000000, coordination: interval }
  - key: hashed
    rate_limit: { requests: 1000000, per: 1h, algorithm: sliding_window, coordination: interval }
  - key: waited
    rate_limit: { requests: 1000000, per: 50s, algorithm: sliding_window }
";

/// The length of the name of the rule `named`, which is part of every answer about it.
pub(crate) const NAME: usize = 2_000;

/// A weir in a process of its own, and an honest client.
pub(crate) struct Target {
    weir: Serving,
    honest: RateLimitServiceClient<Channel>,
    /// The resident memory before the attack, in bytes.
    before: u64,
    _dir: TempDir,
}

// === impl Target ===

impl Target {
    pub(crate) async fn start(variables: &[(&str, &str)]) -> Self {
        // its children have the same limit
        weir_server::net::raise_open_files();
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("rules.yaml"), RULES.replace("NAME", &"x".repeat(NAME))).expect("a file");
        let path = dir.path().to_str().expect("a path in UTF-8").to_owned();
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let start = move || {
            let variables: Vec<_> = variables.iter().map(|(name, value)| (&**name, &**value)).collect();
            Serving::start(&path, &variables)
        };
        let weir = tokio::task::spawn_blocking(start).await.expect("it starts");
        let address = format!("http://{}", weir.address("grpc"));
        let honest = RateLimitServiceClient::connect(address).await.expect("it listens");
        let mut target = Self { weir, honest, before: 0, _dir: dir };
        for _ in 0..10 {
            target.still_serves().await;
        }
        target.before = target.memory("VmRSS:");
        target
    }

    pub(crate) fn address(&self, server: &str) -> &str {
        self.weir.address(server)
    }

    /// Returns a field of the process's status, in bytes.
    fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.weir.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field of memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("kilobytes") * 1024
    }

    /// Returns by how much its memory has grown at most since the attack began, in bytes.
    pub(crate) fn most_growth(&self) -> u64 {
        self.memory("VmHWM:").saturating_sub(self.before)
    }

    /// Asserts that its memory has never grown by more than `most` bytes.
    pub(crate) fn assert_grown_below(&self, most: u64) {
        let grown = self.most_growth();
        assert!(grown < most, "its memory has grown by {} KB", grown / 1024);
    }

    /// Sends an ordinary request as the honest client, which must succeed.
    pub(crate) async fn still_serves(&mut self) {
        let sent = self.honest.should_rate_limit(request("d", [descriptor([("k", "honest")])]));
        let response = timeout(DEADLINE, sent).await.expect("in time").expect("a response");
        assert_eq!(gist(response.get_ref()).0, Code::Ok);
    }

    /// Returns the sum of a metric's values, from the metrics page.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.address("debug")).await.expect("it listens");
        let get = b"GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n";
        stream.write_all(get).await.expect("it accepts the bytes");
        let mut page = String::new();
        timeout(DEADLINE, stream.read_to_string(&mut page)).await.expect("in time").expect("a page");
        let values = page.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a small count")]
        let sum = values.sum::<f64>() as u64;
        sum
    }

    /// Returns how often a bound was reached.
    pub(crate) async fn exceeded(&self, bound: &str) -> u64 {
        self.metric(&format!("weir_bounds_exceeded_total{{bound=\"{bound}\"}}")).await
    }

    /// Waits until a bound was reached at least `times` times.
    pub(crate) async fn until_exceeded(&mut self, bound: &str, times: u64) {
        let begun = Instant::now();
        while self.exceeded(bound).await < times {
            assert!(begun.elapsed() < DEADLINE, "{bound} was not reached {times} times");
            self.still_serves().await;
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a metric is no more than `most`.
    pub(crate) async fn until_at_most(&mut self, metric: &str, most: u64) {
        let begun = Instant::now();
        while self.metric(metric).await > most {
            assert!(begun.elapsed() < DEADLINE, "{metric} is more than {most}");
            self.still_serves().await;
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops it at once, and returns its log.
    pub(crate) async fn log(self) -> String {
        self.weir.signal("TERM");
        let (_, log) = tokio::task::spawn_blocking(move || self.weir.ended()).await.expect("it ends");
        log
    }
}
