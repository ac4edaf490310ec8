//! The speed of rate limiting commands with `redis-benchmark`: `CL.THROTTLE` and `RL.REDUCE` on weir in memory and on
//! disk, beside Redis' `INCR` and a script of the same algorithm (`EVALSHA`), and beside redis-cell if `--redis-cell`
//! is the path of its module.
//!
//! Requests a second of processor time that the server takes: on a machine that does other work, the time that passes
//! says little. `cargo bench --bench redis_protocol`; `-- --requests N` changes the number of requests of each row.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// The keys that the requests name at random.
const KEYS: &str = "100000";

/// Connections at a time.
const CLIENTS: &str = "50";

/// The generic cell rate algorithm as a script: a burst of 16, then 30 a minute.
const SCRIPT: &str = "
local interval, capacity = 2000000, 16
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + interval
local room = now + capacity * interval - full
if room < 0 then return {1, capacity, 0, math.ceil(-room / 1000000), math.ceil((full - interval - now) / 1000000)} end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return {0, capacity, math.floor(room / interval), -1, math.ceil((full - now) / 1000000)}
";

/// A server of this benchmark. Dropping it ends it.
struct Server {
    child: Child,
    port: u16,
    /// where its counters are, removed with it
    _data: Option<TempDir>,
}

/// The server of a row.
#[derive(Clone, Copy)]
enum Kind {
    Weir,
    WeirOnDisk,
    Redis,
    RedisCell,
}

/// What a row measures.
struct Row {
    name: &'static str,
    server: Kind,
    command: &'static [&'static str],
}

const ROWS: [Row; 6] = [
    Row {
        name: "weir: `CL.THROTTLE`",
        server: Kind::Weir,
        command: &["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"],
    },
    Row {
        name: "weir on disk: `CL.THROTTLE`",
        server: Kind::WeirOnDisk,
        command: &["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"],
    },
    Row {
        name: "weir: `RL.REDUCE`",
        server: Kind::Weir,
        command: &["RL.REDUCE", "key:__rand_int__", "15", "60"],
    },
    Row { name: "Redis: `INCR`", server: Kind::Redis, command: &["INCR", "key:__rand_int__"] },
    Row {
        name: "Redis: `EVALSHA` of a script",
        server: Kind::Redis,
        command: &["EVALSHA", "", "1", "key:__rand_int__"],
    },
    Row {
        name: "redis-cell: `CL.THROTTLE`",
        server: Kind::RedisCell,
        command: &["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"],
    },
];

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let requests = option("--requests").map_or(400_000, |number| number.parse().expect("a number"));
    println!(
        "| command | requests in a pipeline | requests a second | a second of the server's processor time |"
    );
    println!("| --- | --- | --- | --- |");
    for pipeline in [1, 16] {
        for row in &ROWS {
            let server = match (row.server, option("--redis-cell")) {
                (Kind::Weir, _) => weir(None),
                (Kind::WeirOnDisk, _) => weir(Some(tempfile::tempdir().expect("a directory"))),
                (Kind::Redis, _) => redis(&[]),
                (Kind::RedisCell, Some(module)) => redis(&["--loadmodule", module]),
                (Kind::RedisCell, None) => continue,
            };
            // once to warm up
            measure(&server, row, pipeline, requests / 10);
            let (passed, computed) = measure(&server, row, pipeline, requests);
            let rate = |time: f64| format!("{:.0}", f64::from(requests) / time);
            println!("| {} | {pipeline} | {} | {} |", row.name, rate(passed), rate(computed));
        }
    }
}

/// Sends `requests`. Returns the seconds that passed and that the server has computed.
fn measure(server: &Server, row: &Row, pipeline: u32, requests: u32) -> (f64, f64) {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &server.port.to_string(), "-c", CLIENTS, "-r", KEYS, "-q"]);
    command.args(["-P", &pipeline.to_string(), "-n", &requests.to_string()]);
    let script = if row.command[0] == "EVALSHA" { load(server) } else { String::new() };
    command.args(
        row.command.iter().map(|argument| if argument.is_empty() { script.as_str() } else { argument }),
    );
    let (begun, before) = (Instant::now(), server.computed());
    let output = command.stderr(Stdio::null()).output().expect("redis-benchmark can be started");
    assert!(output.status.success());
    (begun.elapsed().as_secs_f64(), server.computed() - before)
}

/// Loads the script, and returns its hash.
fn load(server: &Server) -> String {
    let port = server.port.to_string();
    let output = Command::new("redis-cli").args(["-p", &port, "SCRIPT", "LOAD", SCRIPT]).output();
    String::from_utf8_lossy(&output.expect("redis-cli can be started").stdout).trim().to_owned()
}

fn weir(data: Option<TempDir>) -> Server {
    let rules = env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    fs::create_dir_all(&rules).expect("a directory");
    fs::write(rules.join("rules.yaml"), "domain: d\n").expect("a file in it");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["serve", "--config"]).arg(&rules).args([
        "--grpc-port",
        "0",
        "--port",
        "0",
        "--debug-port",
        "0",
    ]);
    command
        .args(["--grpc-host", "127.0.0.1", "--host", "127.0.0.1", "--debug-host", "127.0.0.1"])
        .env_clear();
    // one thread, as the others have
    command.envs([("WEIR_REDIS_PORT", "0"), ("WEIR_REDIS_HOST", "127.0.0.1"), ("WEIR_WORKERS", "1")]);
    if let Some(data) = &data {
        command.env("BACKEND_TYPE", "disk").env("WEIR_DATA_DIR", data.path());
    }
    let mut child = command.stderr(Stdio::piped()).spawn().expect("weir can be started");
    let mut port = None;
    let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    while port.is_none() {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).expect("a line") > 0, "weir does not start");
        let address = line.split_whitespace().find_map(|part| part.strip_prefix("redis="));
        port = address.and_then(|address| address.rsplit(':').next()?.parse().ok());
    }
    thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    Server { child, port: port.expect("a port"), _data: data }
}

fn redis(arguments: &[&str]) -> Server {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let child = command.args(arguments).stdout(Stdio::null()).spawn().expect("redis-server can be started");
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "redis does not start");
        thread::sleep(Duration::from_millis(5));
    }
    Server { child, port, _data: None }
}

// === impl Server ===

impl Server {
    /// Returns the seconds that it has computed.
    fn computed(&self) -> f64 {
        /// Linux counts processor time in hundredths of a second.
        const TICKS: f64 = 100.0;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks =
            after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok());
        ticks.sum::<f64>() / TICKS
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
