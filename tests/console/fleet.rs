//! The instances that share a store.

use weir_testing::{browser::Browser, redis_server};

use crate::site::{SHOP, Site};

#[test]
fn instances_are_compared_and_their_keys_are_added_up() {
    let redis = redis_server::Server::start();
    let url = format!("127.0.0.1:{}", redis.port());
    let settings = [
        ("BACKEND_TYPE", "redis"),
        ("REDIS_URL", &*url),
        ("WEIR_ADMIN", "full"),
        // a busy machine is no failure of the store
        ("WEIR_DECISION_BUDGET", "10s"),
    ];
    let one = Site::start(&settings);
    let other = one.another(&settings);
    one.send("shop", &[("tenant", "globex")], 20);
    other.send("shop", &[("tenant", "globex")], 15);
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&one.view("instances"));
    browser.until_text("All 2 instances agree.");
    assert_eq!(browser.accessibility_faults(), [""; 0]);

    let different = Site::with_files(&[("shop.yaml", &SHOP.replace("100", "200"))], &settings);
    browser.until_text("1 instance of 3 differs from the others.");
    browser.until(
        "[...document.querySelectorAll('td .warning')].map((mark) => mark.innerText).join() === 'rules'",
    );
    drop(different);
    browser.until_text("All 2 instances agree.");

    browser.open(&one.view("hot"));
    browser.until("[...document.querySelectorAll('tr')].some((row) => row.innerText.includes('globex') && row.innerText.includes('35'))");
    browser.open(&one.view("key?domain=shop&entry=tenant%3Dglobex"));
    browser.until_text("35 of 100 used");
    browser.until_text("Counts are from the shared store");

    browser.click(".reset button");
    browser.click("dialog button.danger");
    browser.until_text("Reset on all instances");
    browser.open(&other.view("key?domain=shop&entry=tenant%3Dglobex"));
    browser.until_text("0 of 100 used");
    assert_eq!(browser.complaints(), [""; 0]);
}
