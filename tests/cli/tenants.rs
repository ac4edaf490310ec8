//! `weir token`, and what its owner sees of a running weir.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_testing::{
    child::{Serving, run, stderr, stdout},
    http::{self, HttpRequest},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { tiers: [{ requests: 10, per: 1h }, { requests: 1000, per: 1d }] }
    descriptors:
      - key: path
        rate_limit: { requests: 5, per: 1h }
";

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

fn ask(serving: &Serving, request: HttpRequest, token: &str) -> (u16, Value) {
    let address = serving.address("http").parse().expect("an address");
    let response = http::send(address, &request.with("authorization", &format!("Bearer {token}")));
    (response.status, serde_json::from_str(&response.body).unwrap_or_default())
}

fn take(serving: &Serving, entries: &[(&str, &str)]) {
    let entries: Vec<Value> =
        entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
    let body = json!({ "domain": "shop", "descriptors": [{ "entries": entries }] }).to_string();
    assert_eq!(ask(serving, HttpRequest::post("/json", body), "").0, 200);
}

struct Tenants {
    serving: Serving,
    dir: TempDir,
}

impl Tenants {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("rules")).expect("a directory in it");
        fs::write(path("rules/shop.yaml"), RULES).expect("a file in that");
        write(&path("keys"), "0123456789abcdef0123456789abcdef\n");
        write(&path("revoked"), "# none\n");
        let text = |name: &str| path(name).display().to_string();
        let variables =
            [("WEIR_TOKEN_KEY_FILE", &*text("keys")), ("WEIR_TOKEN_REVOKED_FILE", &*text("revoked"))];
        let serving = Serving::start(&text("rules"), &variables);
        Self { serving, dir }
    }

    fn token(&self, arguments: &[&str]) -> String {
        let keys = self.dir.path().join("keys").display().to_string();
        let output = run(&[&["token", "--key-file", &keys][..], arguments].concat(), &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).trim().to_owned()
    }

    fn headroom(&self, token: &str, query: &str) -> (u16, Value) {
        ask(&self.serving, HttpRequest::get(&format!("/v1/headroom{query}")), token)
    }
}

#[test]
fn a_tenant_sees_its_own_counters_and_nothing_else() {
    let tenants = Tenants::start();
    for _ in 0..3 {
        take(&tenants.serving, &[("tenant", "acme")]);
    }
    take(&tenants.serving, &[("tenant", "acme"), ("path", "/a")]);
    take(&tenants.serving, &[("tenant", "other")]);
    let token = tenants.token(&["--domain", "shop", "--for", "1h", "tenant=acme"]);
    let (status, answer) = tenants.headroom(&token, "");
    assert_eq!((status, &answer["domain"]), (200, &json!("shop")), "{answer}");
    let tiers = &answer["items"][0]["tiers"];
    assert_eq!(
        (&tiers[0]["used"], &tiers[0]["remaining"], &tiers[1]["remaining"]),
        (&json!(3), &json!(7), &json!(997))
    );
    let text = answer.to_string();
    assert!(text.contains("/a") && !text.contains("other"), "{text}");
    // below its own entries, and nowhere else
    let (status, below) = tenants.headroom(&token, "?entry=tenant%3Dacme&entry=path%3D%2Fa");
    assert_eq!((status, &below["items"][0]["tiers"][0]["used"]), (200, &json!(1)), "{below}");
    for query in ["?entry=tenant%3Dother", "?entry=path%3D%2Fa", "?domain=else", "?entry=tenant%3Dacme2"] {
        assert_eq!(tenants.headroom(&token, query).0, 403, "{query}");
    }
    // it opens nothing else
    for path in ["/v1/counters?domain=shop&entry=tenant%3Dacme", "/v1/instance", "/v1/rules"] {
        assert_eq!(ask(&tenants.serving, HttpRequest::get(path), &token).0, 404, "{path}");
    }
}

#[test]
fn tokens_that_ended_or_are_not_of_weir_open_nothing() {
    let tenants = Tenants::start();
    let token = tenants.token(&["--domain", "shop", "tenant=acme"]);
    let mut forged = token.clone();
    forged.truncate(token.rfind('.').expect("three parts") + 1);
    for wrong in ["", "x", "a.b.c", &forged, &format!("{token}x")] {
        let (status, problem) = tenants.headroom(wrong, "");
        assert_eq!(status, 401, "{wrong}: {problem}");
    }
    let short = tenants.token(&["--domain", "shop", "--for", "1s", "tenant=acme"]);
    let ends = std::time::Instant::now();
    while tenants.headroom(&short, "").0 == 200 || tenants.headroom(&short, "").0 == 429 {
        assert!(ends.elapsed() < Duration::from_secs(30), "it ends after a second");
        std::thread::sleep(Duration::from_millis(150));
    }
    // one that is used too often is told so
    let statuses: Vec<u16> = (0..30).map(|_| tenants.headroom(&token, "").0).collect();
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
}

#[test]
fn wrong_arguments_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys");
    let keys_text = keys.display().to_string();
    let of =
        |arguments: &[&str]| stderr(&run(&[&["token", "--domain", "shop"][..], arguments].concat(), &[]));
    assert!(of(&["tenant=acme"]).contains("--key-file FILE, or set WEIR_TOKEN_KEY_FILE"));
    assert!(of(&["--key-file", &keys_text, "tenant=acme"]).contains("cannot read it"));
    write(&keys, "short\n");
    assert!(of(&["--key-file", &keys_text, "tenant=acme"]).contains("at least 32 bytes"));
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).expect("its mode");
    assert!(of(&["--key-file", &keys_text, "tenant=acme"]).contains("chmod o-rwx"));
    assert!(of(&["--key-file", &keys_text, "tenant"]).contains("such as tenant=acme"));
    assert!(of(&["--key-file", &keys_text, "--for", "2y", "tenant=acme"]).contains("such as 12h or 30d"));
}
