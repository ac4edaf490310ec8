//! weir and an Envoy in front of it, for one test.

use std::{fs, net::SocketAddr, path::PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    bootstrap::Bootstrap,
    envoy::Envoy,
    http::{self, HttpRequest, HttpResponse},
    wait,
    weir::Weir,
};

/// Both programs, and the folder with all their files.
pub(crate) struct Stack {
    // dropped in this order: the folder last, when no process uses it
    envoy: Envoy,
    pub(crate) weir: Weir,
    folder: TempDir,
}

impl Stack {
    /// Starts both programs, with `descriptors` as the rules of the domain `test`.
    pub(crate) fn start(descriptors: &str, bootstrap: &Bootstrap) -> Self {
        Self::with_settings(descriptors, &[], bootstrap)
    }

    /// Like [`Self::start`], with `settings` as weir's environment variables.
    pub(crate) fn with_settings(descriptors: &str, settings: &[(&str, &str)], bootstrap: &Bootstrap) -> Self {
        let folder = TempDir::new().expect("a folder");
        fs::create_dir(folder.path().join("config")).expect("a folder");
        let config = folder.path().join("config");
        fs::write(config.join("rules.yaml"), in_domain(descriptors)).expect("a file");
        let weir = Weir::start(&config, settings, folder.path());
        let bootstrap_file = folder.path().join("envoy.json");
        fs::write(&bootstrap_file, bootstrap.to_json(weir.grpc).to_string()).expect("a file");
        let envoy = Envoy::start(&bootstrap_file, folder.path());
        Self { envoy, weir, folder }
    }

    /// Starts both programs with the text of a rule file, and a bootstrap made from weir's address.
    pub(crate) fn with_bootstrap(rules: &str, bootstrap: impl FnOnce(SocketAddr) -> Value) -> Self {
        let folder = TempDir::new().expect("a folder");
        let config = folder.path().join("config");
        fs::create_dir(&config).expect("a folder");
        fs::write(config.join("rules.yaml"), rules).expect("a file");
        let weir = Weir::start(&config, &[], folder.path());
        let bootstrap_file = folder.path().join("envoy.json");
        fs::write(&bootstrap_file, bootstrap(weir.grpc).to_string()).expect("a file");
        let envoy = Envoy::start(&bootstrap_file, folder.path());
        Self { envoy, weir, folder }
    }

    /// Starts both programs with rules and a bootstrap from files. `adapt` sets the ports of the bootstrap; it gets weir's.
    pub(crate) fn from_files(
        config: &str,
        bootstrap: &str,
        adapt: impl FnOnce(String, u16) -> String,
    ) -> Self {
        let project = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let folder = TempDir::new().expect("a folder");
        let weir = Weir::start(&project.join(config), &[], folder.path());
        let text = fs::read_to_string(project.join(bootstrap)).expect("the bootstrap");
        let bootstrap_file = folder.path().join("envoy.yaml");
        fs::write(&bootstrap_file, adapt(text, weir.grpc.port())).expect("a file");
        let envoy = Envoy::start(&bootstrap_file, folder.path());
        Self { envoy, weir, folder }
    }

    /// Replaces the descriptors atomically. weir notices the change some time later.
    pub(crate) fn rewrite(&self, descriptors: &str) {
        let rules = self.folder.path().join("config/rules.yaml");
        let new = self.folder.path().join("new.yaml");
        fs::write(&new, in_domain(descriptors)).expect("a file");
        fs::rename(new, rules).expect("it can be replaced");
    }

    /// Sends a request through Envoy.
    pub(crate) fn send(&self, request: &HttpRequest) -> HttpResponse {
        http::send(self.envoy.address, request)
    }

    /// Sends `GET /` through Envoy with one header.
    pub(crate) fn get_with(&self, header: &str, value: &str) -> HttpResponse {
        self.send(&HttpRequest::get("/").with(header, value))
    }

    /// Sends `GET /` through Envoy.
    pub(crate) fn get(&self) -> HttpResponse {
        self.send(&HttpRequest::get("/"))
    }

    /// Queries weir directly for the limit of one entry, without counting: returns the remaining requests, or none if a request
    /// would be rejected.
    pub(crate) fn budget(&self, key: &str, value: &str) -> Option<u64> {
        let request = json!({
            "domain": "test",
            "descriptors": [{ "entries": [{ "key": key, "value": value }], "hitsAddend": "0" }],
        });
        let response = http::send(self.weir.http, &HttpRequest::post("/json", request.to_string()));
        let body: Value = serde_json::from_str(&response.body).expect("JSON");
        assert!(body.pointer("/statuses/0/currentLimit").is_some(), "no limit for {key}={value}: {body}");
        match response.status {
            // protobuf's JSON mapping omits zeros
            200 => Some(body.pointer("/statuses/0/limitRemaining").and_then(Value::as_u64).unwrap_or(0)),
            429 => None,
            other => panic!("status {other}: {body}"),
        }
    }

    /// Waits until [`Self::budget`] is `budget`: hits counted at the end of a stream arrive after its response.
    pub(crate) fn await_budget(&self, key: &str, value: &str, budget: Option<u64>) {
        wait::until(&format!("the budget of {key}={value} is {budget:?}"), || {
            (self.budget(key, value) == budget).then_some(())
        });
    }

    /// Waits until weir has logged `text`.
    pub(crate) fn await_log(&self, text: &str) {
        wait::until(&format!("weir logs {text:?}"), || self.weir.output().contains(text).then_some(()));
    }
}

fn in_domain(descriptors: &str) -> String {
    format!("domain: test\ndescriptors:\n{descriptors}")
}
