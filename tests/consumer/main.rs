//! The workers of `examples/consumer`, and the provider that counts their calls.

// an example is a program, whose modules cannot be used otherwise
#[path = "../../examples/consumer/worker.rs"]
mod worker;

use weir_testing::child;

use std::{
    io::{BufRead as _, BufReader, Cursor, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use child::Serving;
use serde_json::Value;
use weir_client::{Limiter, limit::Hits};

/// What the provider allows in each window.
const LIMIT: u64 = 50;

/// Enough for four windows.
const JOBS: usize = 200;

/// A provider, killed on drop.
struct Provider {
    child: Child,
    address: String,
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/consumer").join(name)
}

fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(example(script));
    command
}

/// Returns a queue of different jobs.
fn queue() -> String {
    let jobs: Vec<String> = (0..JOBS).map(|job| format!("job {job}")).collect();
    jobs.join("\n") + "\n"
}

/// Returns the body of a response.
fn http(address: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .expect("a request");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

// === impl Provider ===

impl Provider {
    fn start() -> Self {
        let mut command = python("provider.py");
        let mut child = command.arg("0").stdout(Stdio::piped()).spawn().expect("python3 is installed");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("listening on ").expect("its address").to_owned();
        Self { child, address }
    }

    fn counts(&self) -> Value {
        serde_json::from_str(&http(&self.address, "GET", "/counts", "")).expect("JSON")
    }

    /// Checks that every job was done once, and that each window was used and none exceeded.
    fn check(&self) {
        let counts = self.counts();
        assert_eq!((&counts["jobs"], &counts["calls"]), (&JOBS.into(), &JOBS.into()), "{counts}");
        let windows = counts["windows"].as_array().expect("windows");
        let windows: Vec<u64> = windows.iter().map(|count| count.as_u64().expect("a number")).collect();
        assert_eq!(windows, [LIMIT; 4]);
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_in_rust_makes_all_calls_within_the_limit() {
    let provider = Provider::start();
    let limiter = Limiter::builder().rules_dir(example("limits")).build().await.expect("valid rules");
    // otherwise the first calls could be permitted at the end of a window, and made in the next one
    let all = Hits(LIMIT);
    let taken = limiter.acquire("partners", &[("api", "stickers")], all, Duration::from_mins(1)).await;
    taken.expect("a window");
    let made = worker::work(limiter, &provider.address, Cursor::new(queue())).await;
    assert_eq!(made.expect("all calls"), JOBS);
    provider.check();
}

#[test]
fn a_worker_in_python_makes_all_calls_within_the_limit() {
    let provider = Provider::start();
    let weir = Serving::start(example("limits").to_str().expect("text"), &[]);
    let all = serde_json::json!({
        "domain": "partners",
        "descriptors": [{"entries": [{"key": "api", "value": "stickers"}]}],
        "hitsAddend": LIMIT,
    });
    let taken = http(weir.address("http"), "POST", "/v1/acquire", &all.to_string());
    assert!(taken.contains("\"OK\""), "{taken}");
    let mut worker = python("worker.py");
    worker.args([weir.address("http"), &provider.address]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = worker.spawn().expect("python3 is installed");
    worker.stdin.take().expect("it is piped").write_all(queue().as_bytes()).expect("it reads the queue");
    let output = worker.wait_with_output().expect("its end");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{JOBS} calls were made\n"));
    provider.check();
}
