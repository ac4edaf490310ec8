//! A disk without room: a limit on the size of files stands for it, which can be lifted again.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use tonic::transport::Channel;
use weir::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::{
    support::{Disk, until},
    wire::{descriptor, hits, request},
};

const RULES: &str =
    "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { tiers: [{ requests: 1000, per: 30d }] }\n";

/// A weir that does not die of the signal about files that are too large, as the system sends none about a full disk.
struct Weir {
    child: Child,
    http: String,
    client: RateLimitServiceClient<Channel>,
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Weir {
    async fn start(rules: &str, data: &str) -> Self {
        use std::io::BufRead as _;

        let mut child = Command::new("sh")
            .args([
                "-c",
                "trap '' XFSZ; exec \"$@\"",
                "sh",
                env!("CARGO_BIN_EXE_weir"),
                "serve",
                "--config",
                rules,
            ])
            .args(["--grpc-host", "127.0.0.1", "--host", "127.0.0.1", "--debug-host", "127.0.0.1"])
            .args(["--grpc-port", "0", "--port", "0", "--debug-port", "0"])
            .env_clear()
            .envs([("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", data), ("WEIR_STOP_DELAY", "0")])
            // on a busy machine a read may take long
            .env("WEIR_DECISION_BUDGET", "1m")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh can be started");
        let mut stderr = std::io::BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        while !line.starts_with("weir: listening") {
            line.clear();
            assert!(stderr.read_line(&mut line).expect("a line") > 0, "it does not listen");
        }
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        let address = |name: &str| {
            let mut parts = line.split_whitespace().filter_map(|part| part.split_once('='));
            parts.find(|(part, _)| *part == name).expect("an address").1.to_owned()
        };
        let client = RateLimitServiceClient::connect(format!("http://{}", address("grpc"))).await;
        Self { child, http: address("http"), client: client.expect("it listens") }
    }

    /// Limits the size of files, in bytes.
    fn limit_files(&self, bytes: &str) {
        let (pid, limit) = (self.child.id().to_string(), format!("--fsize={bytes}:unlimited"));
        let set =
            Command::new("prlimit").args(["--pid", &pid, &limit]).status().expect("prlimit can be started");
        assert!(set.success());
    }

    /// Returns the hits that a value had before `count` more.
    async fn take(&mut self, value: &str, count: u64) -> u64 {
        let request = request("shop", [hits(count, descriptor([("k", value)]))]);
        let response = self.client.should_rate_limit(request).await.expect("a response").into_inner();
        1_000 - u64::from(response.statuses[0].limit_remaining) - count
    }

    fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(&self.http).expect("it listens");
        let request = "GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it takes a request");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("a response");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}")).parse().expect("a whole number")
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("kill").success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_the_disk_is_full() {
    let dir = tempfile::tempdir().expect("a directory");
    let (rules, data) = (dir.path().join("rules"), dir.path().join("data"));
    fs::create_dir(&rules).expect("a directory");
    fs::write(rules.join("shop.yaml"), RULES).expect("a file");
    let (rules, data) = (rules.to_str().expect("a plain path"), data.to_str().expect("a plain path"));
    let mut weir = Weir::start(rules, data).await;
    for i in 0..50 {
        weir.take(&i.to_string(), 2).await;
    }
    until("all is written", || weir.metric("weir_disk_written_total") >= 50);
    assert_eq!(weir.metric("weir_disk_available"), 1);
    weir.limit_files("1");
    for i in 0..80 {
        assert_eq!(weir.take(&i.to_string(), 3).await, if i < 50 { 2 } else { 0 });
    }
    until("it is noticed", || weir.metric("weir_disk_available") == 0);
    assert!(weir.metric("weir_disk_write_failures_total") > 0);
    // decisions go on, and count
    for i in 0..80 {
        assert_eq!(weir.take(&i.to_string(), 1).await, if i < 50 { 5 } else { 3 });
    }
    assert!(weir.metric("weir_disk_pending") > 0);
    weir.limit_files("unlimited");
    until("it writes again", || weir.metric("weir_disk_available") == 1);
    until("all is written", || weir.metric("weir_disk_pending") == 0);
    // also what is killed then is there
    weir.signal("KILL");
    weir.child.wait().expect("its end");
    let mut weir = Weir::start(rules, data).await;
    for i in 0..80 {
        assert_eq!(weir.take(&i.to_string(), 0).await, if i < 50 { 6 } else { 4 }, "{i}");
    }
}

/// Above its bound the directory does not grow, and decisions go on. A clean stop writes the last changes nevertheless.
#[test]
fn nothing_is_written_above_the_bound() {
    let mut disk = Disk::new();
    disk.settings.max_bytes = Some(1);
    let opened = disk.open();
    until("it is noticed", || opened.metric("weir.disk.available") == 0);
    for hits in 0..20 {
        assert_eq!(opened.take("v", 1).before.0, hits);
    }
    until("it is pending", || opened.metric("weir.disk.pending") == 1);
    assert_eq!(opened.metric("weir.disk.written"), 0);
    opened.close();
    disk.settings.max_bytes = None;
    assert_eq!(disk.open().hits("v"), 20);
}
