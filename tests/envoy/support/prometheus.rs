//! A real Prometheus, and its tool.

use std::{
    fmt::Write as _,
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use weir_testing::repository;

use super::{
    http::{self, HttpRequest},
    process::Process,
    wait,
};

/// A running Prometheus that scrapes one target every second.
pub(crate) struct Prometheus {
    _process: Process,
    address: SocketAddr,
}

/// Returns a program that `make tools` installs: `prometheus` or `promtool`.
pub(crate) fn program(name: &str) -> PathBuf {
    let program = repository("target/tools/prometheus").join(name);
    assert!(program.exists(), "there is no {}: `make tools` installs it", program.display());
    program
}

/// Runs `promtool` in the repository's root, with a file as its input.
pub(crate) fn promtool(arguments: &[&str], input: Option<&Path>) -> Output {
    let input = input.map_or_else(Stdio::null, |path| fs::File::open(path).expect("the file").into());
    let mut command = Command::new(program("promtool"));
    command
        .args(arguments)
        .current_dir(repository(""))
        .stdin(input)
        .output()
        .expect("promtool can be started")
}

// === impl Prometheus ===

impl Prometheus {
    /// Scrapes `target` as job `weir`, and evaluates the chart's alerts. Writes its files to `folder`.
    pub(crate) fn start(target: SocketAddr, folder: &Path) -> Self {
        Self::start_with(target, "", folder)
    }

    /// Like [`Self::start`], with `labels` on every series, such as `a: b, c: d`.
    pub(crate) fn start_with(target: SocketAddr, labels: &str, folder: &Path) -> Self {
        let config = folder.join("prometheus.yaml");
        let alerts = repository("charts/weir/files/alerts.yaml");
        let text = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\n\
             rule_files: [{}]\n\
             scrape_configs: [{{ job_name: weir, static_configs: [{{ targets: [\"{target}\"], labels: {{ {labels} }} }}] }}]\n",
            alerts.display()
        );
        fs::write(&config, text).expect("a file");
        wait::until("Prometheus runs", || {
            // it cannot report a port that the system chooses: another program may take this one first, then the next
            // one is tried
            let address =
                TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
            let mut command = Command::new(program("prometheus"));
            command
                .arg(format!("--config.file={}", config.display()))
                .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
                .arg(format!("--web.listen-address={address}"));
            let mut process = Process::start("prometheus", &mut command, folder);
            let mut ready = false;
            while !ready && process.ended().is_none() {
                let response = http::try_send(address, &HttpRequest::get("/-/ready"));
                ready = response.is_ok_and(|response| response.status == 200);
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            ready.then_some(Self { _process: process, address })
        })
    }

    /// Asks a query. Returns the values of all series.
    pub(crate) fn query(&self, query: &str) -> Result<Vec<f64>, String> {
        let mut form = "query=".to_owned();
        for byte in query.bytes() {
            // writing to a string cannot fail
            let _ = write!(form, "%{byte:02X}");
        }
        let request = HttpRequest::post("/api/v1/query", form);
        let request = request.with("content-type", "application/x-www-form-urlencoded");
        let response = http::send(self.address, &request);
        let body: Value = serde_json::from_str(&response.body).expect("JSON");
        if body["status"] != "success" {
            return Err(body["error"].to_string());
        }
        let series = body["data"]["result"].as_array().expect("series").iter();
        Ok(series
            .map(|series| series["value"][1].as_str().expect("a number").parse().expect("a number"))
            .collect())
    }

    /// Gets a page of the API.
    pub(crate) fn get(&self, path: &str) -> Value {
        serde_json::from_str(&http::send(self.address, &HttpRequest::get(path)).body).expect("JSON")
    }
}
