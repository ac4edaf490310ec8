//! Why, and What if.

use std::fs;

use weir_testing::browser::{Browser, ENTER};

use crate::site::Site;

#[test]
fn why_answers_descriptors_requests_and_lines_of_the_log() {
    let site = Site::start(&[("WEIR_LOG_VALUES", "true")]);
    site.send_traffic();
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("why"));
    browser.until("document.querySelector('select[name=domain]')?.value");
    browser.run("document.querySelector('select[name=domain]').value = 'shop'", &[]);
    browser.type_into("#text", &format!("tenant=acme path=/v1/search{ENTER}"));
    browser.until_text("20 of 20 used");
    assert!(browser.text(".verdict").starts_with("Rejected"), "{}", browser.text(".verdict"));

    let request = r#"{"domain": "models", "descriptors": [{"entries": [{"key": "model", "value": "large"}, {"key": "team", "value": "research"}]}]}"#;
    ask(&browser, request);
    browser.until_text("25 of 2\u{202f}000\u{202f}000 used");
    assert!(browser.text(".verdict").starts_with("Admitted"), "{}", browser.text(".verdict"));

    let line = "WARN weir_server::rejections: rejected domain=shop rule=shop.tenant descriptor=tenant=globex \
                hits=1 limit=100 requests per 1d retry_after=12.3s mode=local reason=limit";
    ask(&browser, line);
    browser.until_text("exceeded 100 requests per 1d");
    assert!(browser.text(".verdict").starts_with("Rejected"), "{}", browser.text(".verdict"));

    ask(&browser, "neither this nor that");
    browser.until_text("No limit");
    assert_eq!(browser.complaints(), [""; 0]);
}

fn ask(browser: &Browser, text: &str) {
    browser.run("document.querySelector('#text').value = ''", &[]);
    browser.type_into("#text", &format!("{text}{ENTER}"));
    browser.until("document.querySelector('.answer')");
}

#[test]
fn what_if_shows_messages_at_their_lines_and_changes_nothing() {
    let site = Site::start(&[]);
    let before = fs::read_to_string(site.file("shop.yaml")).expect("the file");
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("whatif?file=shop.yaml"));
    browser.until_text("These rules are good.");

    browser.run("const text = document.querySelector('#yaml'); text.focus(); text.setSelectionRange(text.value.length, text.value.length)", &[]);
    browser.press("  - key: user");
    browser.press(ENTER);
    browser.press("    rate_limit: {requets: 1, per: 1h}");
    browser.until_text("These rules would be rejected.");
    browser.until("document.querySelector('.marks .error')?.innerText.includes('requests')");
    let marked = browser.text(".gutter .error");
    assert!(
        browser.text(".messages").contains(&format!("shop.yaml:{marked}:")),
        "{}",
        browser.text(".messages")
    );
    assert_eq!(browser.accessibility_faults(), [""; 0]);

    browser.click(".messages button");
    browser.until("document.activeElement.id === 'yaml'");
    assert_eq!(fs::read_to_string(site.file("shop.yaml")).expect("the file"), before);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn what_if_compares_a_recording_under_old_and_new_rules() {
    let site = Site::start(&[("WEIR_RECORD", "15m")]);
    site.send("shop", &[("tenant", "initech")], 80);
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("whatif?file=shop.yaml"));
    browser.until_text("These rules are good.");
    browser.until_text("0 newly rejected");

    let lower = "const text = document.querySelector('#yaml');
        text.value = text.value.replace('requests: 100,', 'requests: 50,');
        text.dispatchEvent(new Event('input'))";
    browser.run(lower, &[]);
    browser.until_text("30 newly rejected");
    browser.until("[...document.querySelectorAll('tr')].some((row) => row.innerText.includes('tenant=initech') && row.innerText.includes('30 more rejected'))");
    assert_eq!(browser.accessibility_faults(), [""; 0]);
    browser.resize(400, 900);
    assert_eq!(browser.accessibility_faults(), [""; 0]);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_recording_is_started_from_the_page() {
    let site = Site::start(&[("WEIR_ADMIN", "full")]);
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("whatif?file=shop.yaml"));
    browser.until_text("Record for five minutes");
    browser.click("main section > button");
    browser.until_text("Recording on all instances for 5 minutes.");
    browser.open(&site.view("overview"));
    browser.until_text("Started a recording");
    browser.until(
        "[...document.querySelectorAll('.facts > div')].some((fact) => fact.innerText.startsWith('Recording\\non'))",
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_rule_leads_to_its_line() {
    let site = Site::start(&[]);
    site.send_traffic();
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("rules?rule=shop.remote_address"));
    browser.until(
        "[...document.querySelectorAll('main a')].some((link) => link.innerText === 'Edit in What if')",
    );
    browser.run("[...document.querySelectorAll('main a')].find((link) => link.innerText === 'Edit in What if').click()", &[]);
    browser.until("document.activeElement.id === 'yaml'");
    browser.until("document.activeElement.value.slice(0, document.activeElement.selectionStart).split('\\n').at(-1) === '' \
         && document.activeElement.value.slice(document.activeElement.selectionStart).startsWith('    rate_limit: {requests: 10,')");
}
