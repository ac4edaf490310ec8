//! A weir with a console, and requests for it.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::PathBuf, rc::Rc};

use serde_json::json;
use tempfile::TempDir;
use weir_store::clock::{Clock as _, SystemClock};
use weir_testing::{
    child::Serving,
    http::{self, HttpRequest},
    wait,
};

/// Limits of days, so that windows seldom end in the middle of a test.
pub(crate) const SHOP: &str = "domain: shop
descriptors:
  - key: tenant
    rate_limit: {requests: 100, per: 1d}
  - key: tenant
    value: acme
    descriptors:
      - key: path
        rate_limit:
          tiers:
            - {requests: 20, per: 1d}
            - {requests: 500, per: 365d}
  - key: remote_address
    rate_limit: {requests: 10, per: 1h, algorithm: token_bucket, burst: 40}
  - key: plan
    value: free
    shadow_mode: true
    rate_limit: {requests: 1000, per: 1d}
";

const MODELS: &str = "domain: models
descriptors:
  - key: model
    value: large
    descriptors:
      - key: team
        rate_limit: {requests: 2000000, per: 1d}
";

/// A running weir.
pub(crate) struct Site {
    pub(crate) weir: Serving,
    folder: Rc<TempDir>,
}

/// Longer than most tests take.
const MARGIN_SECONDS: u64 = 50;

fn seconds_left_of_the_day() -> u64 {
    let now = SystemClock.now().as_nanos() / weir_limit::NANOS_PER_SECOND;
    86_400 - now % 86_400
}

// === impl Site ===

impl Site {
    /// Serves rules of two domains, with `settings` as environment variables in which `{dir}` is a folder of the test.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        Self::with_files(&[("shop.yaml", SHOP), ("models.yaml", MODELS)], settings)
    }

    pub(crate) fn with_files(files: &[(&str, &str)], settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config");
        fs::create_dir(&config).expect("a folder in it");
        for (name, text) in files {
            let file = config.join(name);
            fs::write(&file, text).expect("a file in that");
            // files of tokens are nobody else's
            fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("its mode");
        }
        Self::in_folder(Rc::new(folder), settings)
    }

    /// Starts another one with the same files.
    pub(crate) fn another(&self, settings: &[(&str, &str)]) -> Self {
        Self::in_folder(Rc::clone(&self.folder), settings)
    }

    fn in_folder(folder: Rc<TempDir>, settings: &[(&str, &str)]) -> Self {
        wait::until_blocking("the next day", || seconds_left_of_the_day() > MARGIN_SECONDS);
        let dir = folder.path().to_str().expect("a path in UTF-8");
        let settings: Vec<_> =
            settings.iter().map(|(name, value)| (*name, value.replace("{dir}", dir))).collect();
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let weir = Serving::start(&format!("{dir}/config"), &settings);
        Self { weir, folder }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("config").join(name)
    }

    /// Returns the address of a view.
    pub(crate) fn view(&self, state: &str) -> String {
        format!("http://{}/#/{state}", self.weir.address("debug"))
    }

    /// Sends `times` requests with one descriptor.
    pub(crate) fn send(&self, domain: &str, entries: &[(&str, &str)], times: usize) {
        let address: SocketAddr = self.weir.address("http").parse().expect("an address");
        let entries: Vec<_> =
            entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        let request = json!({ "domain": domain, "descriptors": [{ "entries": entries }] });
        for _ in 0..times {
            let status = http::send(address, &HttpRequest::post("/json", request.to_string())).status;
            assert!(status == 200 || status == 429, "{status}");
        }
    }

    /// Sends what a shop's gateway would: many tenants, some of them over their limits, and a key that no rule has.
    pub(crate) fn send_traffic(&self) {
        for (tenant, times) in
            [("acme", 40), ("globex", 120), ("initech", 60), ("umbrella", 30), ("hooli", 12)]
        {
            self.send("shop", &[("tenant", tenant)], times);
        }
        self.send("shop", &[("tenant", "acme"), ("path", "/v1/search")], 28);
        self.send("shop", &[("tenant", "acme"), ("path", "/v1/orders")], 9);
        self.send("shop", &[("remote_address", "192.0.2.7")], 44);
        self.send("models", &[("model", "large"), ("team", "research")], 25);
        self.send("shop", &[("tennant", "acme")], 3);
    }
}
