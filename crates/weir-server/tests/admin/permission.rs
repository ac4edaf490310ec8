//! Who may.

use std::{sync::Arc, time::Duration};

use futures_util::stream;
use tokio::sync::mpsc;
use weir_server::http::admin::{AdminLevel, AdminSettings};

use crate::client::{Admin, Ask, OPERATOR, Operation, READER, SIDECAR, WRONG, operations, write_tokens};

/// Pages that follow the API.
const PAGES: [&str; 2] = ["/hot", "/rules"];

/// Pages of envoyproxy/ratelimit, which follow it once somebody has said who may.
const OF_REFERENCE: [&str; 2] = ["/stats", "/rlconfig"];

const OPEN: [&str; 2] = ["/", "/metrics"];

fn level(level: AdminLevel) -> AdminSettings {
    AdminSettings { level: Some(level), ..AdminSettings::default() }
}

/// Every route that somebody may be kept out of, and an operation that there is not.
fn guarded() -> Vec<Operation> {
    let page = |path: &str| Operation {
        method: "GET".into(),
        path: path.into(),
        level: "read".into(),
        body: String::new(),
    };
    let mut all = operations();
    all.retain(|operation| operation.level != "open");
    all.extend(PAGES.map(page));
    all.extend(["/v1/none", "/v1/none/such"].map(page));
    all
}

#[tokio::test]
async fn without_settings_this_host_may_read_and_no_other_may_anything() {
    let admin = Admin::start(AdminSettings::default()).await;
    for operation in guarded() {
        let ask = Ask::of(&operation);
        let status = admin.status(&ask).await;
        assert_eq!(status == 403, operation.level == "full", "{operation:?}: {status}");
        assert_ne!(status, 401, "{operation:?}");
        for name in ["localhost:6070", "127.0.0.1", "[::1]:6070"] {
            assert_eq!(admin.status(&ask.clone().host(name)).await, status, "{operation:?} at {name}");
        }
        // what everybody in a mesh is, and a proxy on this host
        for other in [
            ask.clone().from(SIDECAR),
            ask.clone().header("x-forwarded-for: 192.0.2.1"),
            ask.clone().header("forwarded: for=192.0.2.1"),
            ask.clone().header("via: 1.1 proxy"),
            ask.clone().header("x-envoy-external-address: 192.0.2.1"),
            ask.clone().host("192.0.2.1:6070"),
        ] {
            let answer = admin.ask(&other).await;
            assert_eq!(answer.status, 403, "{other:?}: {answer:?}");
            let detail = answer.detail();
            assert!(detail.contains("WEIR_ADMIN") || detail.contains("Origin"), "{detail}");
        }
    }
    for page in OPEN.into_iter().chain(OF_REFERENCE) {
        let ask = Ask::get(page).from(SIDECAR).host("weir.svc");
        assert_eq!(admin.status(&ask).await, 200, "{page}");
    }
}

#[tokio::test]
async fn other_names_and_other_sites_are_refused() {
    let names = vec!["console.example".into()];
    let open = AdminSettings { hosts: names.clone(), ..AdminSettings::default() };
    let admin = Admin::start(open).await;
    let with_tokens = Admin::with_tokens(AdminSettings { hosts: names, ..AdminSettings::default() }).await;
    for operation in guarded().into_iter().chain(operations()) {
        for (admin, ask) in
            [(&admin, Ask::of(&operation)), (&with_tokens, Ask::of(&operation).token(OPERATOR))]
        {
            let own = format!("origin: http://{}", admin.server.address);
            let good = admin.status(&ask.clone().header(&own)).await;
            assert_eq!(admin.status(&ask).await, good, "{operation:?}: its own origin changes nothing");
            for bad in [
                ask.clone().host("evil.example"),
                ask.clone().host(""),
                ask.clone().header("origin: http://evil.example"),
                ask.clone().header("origin: null"),
                ask.clone().header("origin: http://127.0.0.1:1"),
                ask.clone().header("sec-fetch-site: cross-site").header("sec-fetch-mode: cors"),
                ask.clone().header(&own).header("origin: http://evil.example"),
            ] {
                let answer = admin.ask(&bad).await;
                assert_eq!(answer.status, 403, "{bad:?}: {answer:?}");
                assert!(answer.detail().contains("WEIR_ADMIN_HOSTS"), "{answer:?}");
            }
        }
        let listed = Ask::of(&operation).token(OPERATOR).host("console.example:6070");
        let listed = listed.header("origin: https://console.example");
        assert_ne!(with_tokens.status(&listed).await, 403, "{listed:?}");
    }
}

/// What a form can send: three media types, the cookies of the site, and its own origin.
#[tokio::test]
async fn a_form_of_another_site_changes_nothing() {
    let open = Admin::start(level(AdminLevel::Full)).await;
    let closed = Admin::with_tokens(AdminSettings::default()).await;
    let cookie = logged_in(&closed, OPERATOR).await;
    for operation in operations().into_iter().filter(|operation| operation.method == "POST") {
        for kind in ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"] {
            for admin in [&open, &closed] {
                let form =
                    Ask::of(&operation).without("content-type").header(&format!("content-type: {kind}"));
                let form = form.header(&format!("cookie: {cookie}"));
                let status = admin.status(&form.clone().header("origin: http://evil.example")).await;
                assert_eq!(status, 403, "{operation:?}");
                assert_eq!(admin.status(&form).await, 415, "{operation:?}");
            }
        }
        // a page that a browser without origins shows
        let bare = Ask::of(&operation).without("content-type").from(SIDECAR);
        assert_eq!(open.status(&bare).await, 415, "{operation:?}");
        let no_token = Ask::of(&operation).from(SIDECAR);
        assert_eq!(open.status(&no_token).await, 403, "{operation:?}");
    }
}

#[tokio::test]
async fn with_tokens_one_is_needed_from_everywhere() {
    let admin = Admin::with_tokens(AdminSettings::default()).await;
    for operation in guarded() {
        let ask = Ask::of(&operation);
        let answer = admin.ask(&ask).await;
        assert_eq!(answer.status, 401, "{operation:?}: {answer:?}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{answer:?}");
        assert!(answer.detail().contains("WEIR_ADMIN_TOKEN_FILE"), "{answer:?}");
        assert!(answer.head.contains("cache-control: no-store"), "{answer:?}");
        let full = admin.status(&ask.clone().token(OPERATOR)).await;
        assert!(![401, 403].contains(&full), "{operation:?}: {full}");
        let read = admin.ask(&ask.clone().token(READER)).await;
        assert_eq!(read.status == 403, operation.level == "full", "{operation:?}: {read:?}");
        if read.status == 403 {
            assert!(read.detail().contains("token ci has the level read"), "{read:?}");
        }
        for scheme in [format!("Basic {OPERATOR}"), OPERATOR.to_owned(), "Bearer".to_owned()] {
            let ask = ask.clone().header(&format!("authorization: {scheme}"));
            assert!([401, 429].contains(&admin.status(&ask).await), "{operation:?}: {scheme}");
        }
    }
    for page in OF_REFERENCE {
        assert_eq!(admin.status(&Ask::get(page)).await, 401, "{page}");
        assert_eq!(admin.status(&Ask::get(page).token(READER)).await, 200, "{page}");
    }
    for page in OPEN {
        assert_eq!(admin.status(&Ask::get(page).from(SIDECAR).host("weir.svc")).await, 200, "{page}");
    }
}

#[tokio::test]
async fn a_token_of_another_host_needs_tls_or_a_word_for_it() {
    let closed = Admin::with_tokens(AdminSettings::default()).await;
    let plain = AdminSettings { allows_plain: true, ..AdminSettings::default() };
    let open = Admin::with_tokens(plain).await;
    for token in [OPERATOR, WRONG] {
        let ask = Ask::get("/v1/openapi.json").from(SIDECAR).token(token);
        let answer = closed.ask(&ask).await;
        assert_eq!(answer.status, 403);
        assert!(answer.detail().contains("WEIR_ADMIN_PLAIN"), "{answer:?}");
        assert_eq!(open.status(&ask).await != 401, token == OPERATOR);
    }
}

#[tokio::test]
async fn after_ten_wrong_tokens_a_right_one_still_passes() {
    let plain = AdminSettings { allows_plain: true, ..AdminSettings::default() };
    let admin = Admin::with_tokens(plain).await;
    let wrong = Ask::get("/v1/none").token(WRONG).from(SIDECAR);
    for _ in 0..10 {
        assert_eq!(admin.status(&wrong).await, 401);
    }
    for ask in [
        wrong.clone(),
        Ask::new("POST", "/v1/login")
            .from(SIDECAR)
            .token("x")
            .header("content-type: application/json")
            .body(&format!("{{\"token\": \"{WRONG}\"}}")),
    ] {
        let answer = admin.ask(&ask).await;
        assert_eq!(answer.status, 429, "{answer:?}");
        let seconds = answer.head.split("retry-after: ").nth(1).and_then(|rest| rest.lines().next());
        assert!((1..=60).contains(&seconds.expect("a time").parse::<u64>().expect("seconds")), "{answer:?}");
    }
    assert_eq!(admin.status(&wrong.clone().without("authorization").token(READER)).await, 404);
    // addresses share places by chance, and not all of these
    let mut others = 0;
    for last in 10..20 {
        others += u32::from(admin.status(&wrong.clone().from([127, 0, 0, last].into())).await == 401);
    }
    assert!(others >= 8, "{others}");
}

#[tokio::test]
async fn nobody_may_what_weir_admin_forbids() {
    let off = Admin::with_tokens(level(AdminLevel::Off)).await;
    let read = Admin::with_tokens(level(AdminLevel::Read)).await;
    let open = Admin::start(level(AdminLevel::Full)).await;
    for operation in guarded() {
        let ask = Ask::of(&operation);
        for ask in [ask.clone(), ask.clone().token(OPERATOR)] {
            let answer = off.ask(&ask).await;
            assert_eq!(answer.status, 403, "{operation:?}: {answer:?}");
            assert!(answer.detail().contains("WEIR_ADMIN=off"), "{answer:?}");
        }
        let answer = read.ask(&ask.clone().token(OPERATOR)).await;
        assert_eq!(answer.status == 403, operation.level == "full", "{operation:?}: {answer:?}");
        assert!(answer.status != 403 || answer.detail().contains("WEIR_ADMIN=read"), "{answer:?}");
        assert!(![401, 403].contains(&open.status(&ask).await), "{operation:?}");
    }
    // a change by a stranger needs more than that: it may be somebody's browser
    for operation in operations().into_iter().filter(|operation| operation.method != "GET") {
        let ask = Ask::of(&operation).from(SIDECAR);
        assert_eq!(open.status(&ask).await, 403, "{operation:?}");
        let origin = format!("origin: http://{}", open.server.address);
        assert_ne!(open.status(&ask.header(&origin)).await, 403, "{operation:?}");
    }
}

async fn logged_in(admin: &Admin, token: &str) -> String {
    let origin = format!("origin: http://{}", admin.server.address);
    let ask = Ask::new("POST", "/v1/login").header(&origin).header("content-type: application/json");
    let answer = admin.ask(&ask.body(&format!("{{\"token\": \"{token}\"}}"))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let cookie = answer.head.split("set-cookie: ").nth(1).expect("a cookie");
    assert!(cookie.contains("; httponly; samesite=strict"), "{cookie}");
    // the head is in lower case, as the cookie is anyway
    cookie.split(';').next().expect("its value").to_owned()
}

#[tokio::test]
async fn a_browser_has_a_cookie_for_a_token() {
    let admin = Admin::with_tokens(AdminSettings::default()).await;
    let cookie = format!("cookie: theme=dark; {}", logged_in(&admin, READER).await);
    assert_eq!(admin.status(&Ask::get("/hot").header(&cookie)).await, 200);
    assert_eq!(admin.status(&Ask::get("/hot").header(&cookie).from(SIDECAR)).await, 403, "in plain text");
    // another instance with the same file takes it, and one with other tokens does not
    let other = Admin::with_tokens(AdminSettings::default()).await;
    assert_eq!(other.status(&Ask::get("/hot").header(&cookie)).await, 200);
    let (tokens, path) = other.tokens();
    let (notice, noticed) = mpsc::channel::<()>(1);
    let changes = stream::unfold(noticed, async |mut noticed| Some((noticed.recv().await?, noticed)));
    let follow = tokio::spawn(Arc::clone(tokens).follow(Box::pin(changes)));
    write_tokens(path, &format!("ci:read:{WRONG}\n"));
    notice.send(()).await.expect("it follows");
    let until = async {
        while other.status(&Ask::get("/hot").header(&cookie)).await != 401 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::support::test_server::DEADLINE, until)
        .await
        .expect("the old token has ended");
    assert_eq!(other.status(&Ask::get("/hot").token(WRONG)).await, 200);
    // a file with errors leaves the tokens as they are
    write_tokens(path, "nonsense\n");
    notice.send(()).await.expect("it follows");
    drop(notice);
    follow.await.expect("it ends");
    assert_eq!(other.status(&Ask::get("/hot").token(WRONG)).await, 200);
    // 12 hours
    admin.service.clock.advance(weir_limit::Period::from_secs(12 * 3_600 - 1));
    assert_eq!(admin.status(&Ask::get("/hot").header(&cookie)).await, 200);
    admin.service.clock.advance(weir_limit::Period::from_secs(1));
    assert_eq!(admin.status(&Ask::get("/hot").header(&cookie)).await, 401);
    let bye = Ask::new("DELETE", "/v1/login").header(&format!("origin: http://{}", admin.server.address));
    let answer = admin.ask(&bye).await;
    assert!(answer.status == 204 && answer.head.contains("max-age=0"), "{answer:?}");
}

#[tokio::test]
async fn a_malformed_login_is_told() {
    let admin = Admin::with_tokens(AdminSettings::default()).await;
    let none = Admin::start(AdminSettings::default()).await;
    let login = Ask::new("POST", "/v1/login").header("content-type: application/json");
    for (body, status, expected) in [
        ("{", 400, "not JSON"),
        ("[]", 400, "is not {\"token\""),
        ("{\"token\": 1}", 400, "is not {\"token\""),
        ("{\"token\": \"\"}", 401, "wrong"),
        (&*format!("{{\"token\": \"{}\"}}", "x".repeat(5_000)), 413, "exceeds 4096 bytes"),
    ] {
        let answer = admin.ask(&login.clone().body(body)).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.detail().contains(expected), "{answer:?}");
    }
    let answer = none.ask(&login.clone().body(&format!("{{\"token\": \"{READER}\"}}"))).await;
    assert_eq!(answer.status, 404, "{answer:?}");
}
