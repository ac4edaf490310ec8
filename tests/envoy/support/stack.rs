//! weir and an Envoy in front of it, for one test.

use std::{fs, net::SocketAddr};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_testing::repository;

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
    pub(crate) envoy: Envoy,
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
        Self::with_settings_and_bootstrap(descriptors, settings, |weir| bootstrap.to_json(weir))
    }

    /// Like [`Self::with_settings`], with a bootstrap made from weir's address.
    pub(crate) fn with_settings_and_bootstrap(
        descriptors: &str,
        settings: &[(&str, &str)],
        bootstrap: impl FnOnce(SocketAddr) -> Value,
    ) -> Self {
        let folder = TempDir::new().expect("a folder");
        fs::create_dir(folder.path().join("config")).expect("a folder");
        let config = folder.path().join("config");
        fs::write(config.join("rules.yaml"), in_domain(descriptors)).expect("a file");
        let weir = Weir::start(&config, settings, folder.path());
        let bootstrap_file = folder.path().join("envoy.json");
        fs::write(&bootstrap_file, bootstrap(weir.grpc).to_string()).expect("a file");
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

    /// Starts both programs with the rules and the bootstrap of an example, on free ports and with a longer timeout.
    pub(crate) fn from_example(config: &str, bootstrap: &str) -> Self {
        Self::from_example_with(config, bootstrap, &[], |text| text)
    }

    /// Like [`Self::from_example`], with `settings` as weir's environment variables, and a bootstrap changed by
    /// `adapt`.
    pub(crate) fn from_example_with(
        config: &str,
        bootstrap: &str,
        settings: &[(&str, &str)],
        adapt: impl FnOnce(String) -> String,
    ) -> Self {
        let folder = TempDir::new().expect("a folder");
        let weir = Weir::start(&repository(config), settings, folder.path());
        let mut text = adapt(fs::read_to_string(repository(bootstrap)).expect("the bootstrap"));
        for (old, new) in [
            ("port_value: 8081 ", &*format!("port_value: {} ", weir.grpc.port())),
            ("port_value: 9901 ", "port_value: 0 "),
            ("port_value: 10000 ", "port_value: 0 "),
            // a busy machine is no failure of weir
            ("timeout: 0.05s", "timeout: 30s"),
        ] {
            text = replace_once(&text, old, new);
        }
        let bootstrap_file = folder.path().join("envoy.yaml");
        fs::write(&bootstrap_file, text).expect("a file");
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

    /// Returns the address of Envoy, for a program.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.envoy.address)
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

    /// Queries weir directly for the limit of one entry, without counting: returns the remaining requests, or none if a
    /// request would be rejected.
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

/// Replaces a text that occurs once.
pub(crate) fn replace_once(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old}");
    text.replace(old, new)
}

fn in_domain(descriptors: &str) -> String {
    format!("domain: test\ndescriptors:\n{descriptors}")
}
