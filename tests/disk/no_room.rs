//! A disk without room: a small file system that is filled, and a limit on the size of files, where nobody may mount
//! any.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tonic::transport::Channel;
use weir_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::{
    child::{run, stderr},
    skipped::skipped,
    support::until,
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

/// A file system of its own, in memory, which is unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of this many MiB; none if this process may not.
    fn mount(at: &Path, mebibytes: u64) -> Option<Self> {
        fs::create_dir(at).expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
            .arg(at)
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).expect("a file");
        let error = loop {
            if let Err(error) = file.write_all(&[1; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("filler")).expect("the file");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Takes the room away that `data` have and gives it back, beside a weir that counts.
async fn nothing_is_lost(dir: &Path, data: &Path, take_room: impl Fn(&Weir), give_room: impl Fn(&Weir)) {
    let rules = dir.join("rules");
    fs::create_dir(&rules).expect("a directory");
    fs::write(rules.join("shop.yaml"), RULES).expect("a file");
    let (rules, data) = (rules.to_str().expect("a plain path"), data.to_str().expect("a plain path"));
    let mut weir = Weir::start(rules, data).await;
    for i in 0..50 {
        weir.take(&i.to_string(), 2).await;
    }
    until("all is written", || weir.metric("weir_disk_written_total") >= 50);
    assert_eq!(weir.metric("weir_disk_available"), 1);
    take_room(&weir);
    for i in 0..80 {
        assert_eq!(weir.take(&i.to_string(), 3).await, if i < 50 { 2 } else { 0 });
    }
    // the last page of a file may have room for some more
    let mut others = 0;
    while weir.metric("weir_disk_available") == 1 {
        assert!(others < 100_000, "it is not noticed");
        weir.take(&format!("other{others}"), 1).await;
        others += 1;
    }
    assert!(weir.metric("weir_disk_write_failures_total") > 0);
    // decisions go on, and count
    for i in 0..80 {
        assert_eq!(weir.take(&i.to_string(), 1).await, if i < 50 { 5 } else { 3 });
    }
    assert!(weir.metric("weir_disk_pending") > 0);
    give_room(&weir);
    until("it writes again", || weir.metric("weir_disk_available") == 1);
    until("all is written", || weir.metric("weir_disk_pending") == 0);
    // also what is killed then is there
    weir.signal("KILL");
    weir.child.wait().expect("its end");
    let mut weir = Weir::start(rules, data).await;
    for i in 0..80 {
        assert_eq!(weir.take(&i.to_string(), 0).await, if i < 50 { 6 } else { 4 }, "{i}");
    }
    for i in 0..others {
        assert_eq!(weir.take(&format!("other{i}"), 0).await, 1, "other {i}");
    }
    assert_eq!(weir.metric("weir_disk_damaged_total"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_files_may_not_grow() {
    let dir = tempfile::tempdir().expect("a directory");
    let (take, give) = (|weir: &Weir| weir.limit_files("1"), |weir: &Weir| weir.limit_files("unlimited"));
    nothing_is_lost(dir.path(), &dir.path().join("data"), take, give).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_the_disk_is_full() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(&dir.path().join("disk"), 16) else {
        return skipped("a full disk", "only root may mount a small file system");
    };
    nothing_is_lost(dir.path(), &disk.0.join("data"), |_| disk.fill(), |_| disk.make_room()).await;
}

/// The error names the file.
#[test]
fn weir_does_not_start_on_a_full_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(&dir.path().join("disk"), 2) else {
        return skipped("a start on a full disk", "only root may mount a small file system");
    };
    disk.fill();
    let data = disk.0.join("data");
    let data = data.to_str().expect("a plain path");
    let rules = dir.path().join("rules");
    fs::create_dir(&rules).expect("a directory");
    fs::write(rules.join("shop.yaml"), RULES).expect("a file");
    let serve =
        ["serve", "--config", rules.to_str().expect("a plain path"), "--grpc-port", "0", "--port", "0"];
    let variables = [("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", data), ("DEBUG_PORT", "0")];
    let output = run(&serve, &variables);
    let said = stderr(&output);
    assert!(!output.status.success() && said.contains(data) && said.contains("No space left"), "{said}");
}
