//! The console shows what Envoy asks.

use serde_json::json;
use weir_testing::browser::Browser;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
    wait::{self, HOUR},
};

const ELEMENT: &str = "<img src=x onerror=document.title='owned'>";

#[test]
fn the_console_shows_requests_of_envoy() {
    let stack = Stack::start(
        "  - key: user
    rate_limit: { unit: hour, requests_per_unit: 5 }
",
        &Bootstrap::limiting(json!([from_header("user", "x-user")])),
    );
    wait::away_from_the_end_of(HOUR);
    for user in ["alice", ELEMENT] {
        let admitted = (0..12).filter(|_| stack.get_with("x-user", user).status == 200).count();
        assert_eq!(admitted, 5);
    }

    let browser = Browser::start();
    browser.resize(1_400, 900);
    let open = |state: &str| browser.open(&format!("http://{}/#/{state}", stack.weir.debug));
    open("hot?by=rejected");
    browser.until_text("user=alice");
    browser.until_text(&format!("user={ELEMENT}"));
    open("rules?rule=test.user");
    browser.until_text("Since the start 10 hits were admitted and 14 rejected.");
    open("key?domain=test&entry=user%3Dalice");
    // such a limit counts rejected requests, too
    browser.until_text("12 of 5 used, 0 left");
    open("overview");
    browser.until_text("user=alice");
    browser.until("!document.querySelector('img') && !document.title.includes('owned')");
    assert_eq!(browser.complaints(), [""; 0]);
}
