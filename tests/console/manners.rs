//! What one expects of a page: keys, a lost connection, several windows, a reset that asks.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};

use weir_testing::{
    browser::{Browser, DOWN, ENTER, TAB},
    wait,
};

use crate::site::Site;

#[test]
fn a_slash_searches_rules_and_keys() {
    let site = Site::start(&[]);
    site.send_traffic();
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("hot"));
    browser.until_text("tenant=globex");

    browser.press("/");
    browser.until("document.activeElement.id === 'search'");
    browser.press("globex");
    browser
        .until("document.querySelector('#found [aria-selected=true]')?.innerText.includes('tenant=globex')");
    browser.press(ENTER);
    browser.until_text("100 of 100 used");

    browser.press("/");
    browser.press("shop");
    browser.until("document.querySelectorAll('#found [data-href]').length > 1");
    browser.press(&format!("{DOWN}{ENTER}"));
    browser.until("location.hash.startsWith('#/rules?')");
    browser.until_text("Since the start");
}

#[test]
fn all_views_are_reached_by_the_keyboard_alone() {
    let site = Site::start(&[]);
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("overview"));
    browser.until_text("Attention");

    for title in ["Rules", "Hot keys", "A key", "Why", "What if", "Instances", "Overview"] {
        browser.run("document.body.tabIndex = -1; document.body.focus()", &[]);
        for _ in 0..20 {
            if browser.run("return document.activeElement.innerText", &[]) == title {
                break;
            }
            browser.press(TAB);
        }
        browser.press(ENTER);
        browser.until(&format!("document.querySelector('h1').innerText === '{title}'"));
        browser.until("document.activeElement === document.querySelector('h1')");
    }
}

#[test]
fn the_page_goes_on_after_a_lost_connection() {
    let site = Site::start(&[]);
    site.send_traffic();
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("hot"));
    browser.until_text("tenant=globex");

    site.weir.signal("STOP");
    browser.until("document.querySelector('#banner').innerText.startsWith('No connection since')");
    assert_eq!(browser.accessibility_faults(), [""; 0]);
    let name = "getComputedStyle(document.querySelector('td')).color === getComputedStyle(document.querySelector('caption')).color";
    browser.until(name);
    browser.until_text("tenant=globex");

    site.weir.signal("CONT");
    browser.until("document.querySelector('#banner').innerText === ''");
    site.send("shop", &[("tenant", "later")], 20);
    browser.until_text("tenant=later");
}

#[test]
fn many_windows_need_one_stream() {
    let site = Site::start(&[]);
    site.send_traffic();
    let browser = Browser::start();
    browser.open(&site.view("hot"));
    browser.until_text("tenant=globex");
    // an address has four streams
    for _ in 0..6 {
        browser.open_window(&site.view("hot"));
        browser.until_text("tenant=globex");
    }
    site.send("shop", &[("tenant", "later")], 20);
    for window in browser.windows() {
        browser.switch_to(&window);
        browser.until("document.hidden || document.body.innerText.includes('tenant=later')");
        assert_eq!(browser.text("#banner"), "", "no window is without the stream");
    }
}

/// Opens a stream. Returns its status, and the stream.
fn stream(site: &Site) -> (String, TcpStream) {
    let address = site.weir.address("debug");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("GET /v1/stream?topics=instance HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it takes it");
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).expect("a status");
    (line.split(' ').nth(1).unwrap_or_default().to_owned(), stream)
}

#[test]
fn a_hidden_page_has_no_stream() {
    let site = Site::start(&[]);
    let browser = Browser::start();
    browser.open(&site.view("overview"));
    browser.until_text("Attention");
    let three = [(); 3].map(|()| stream(&site));
    assert!(three.iter().all(|(status, _)| status == "200"));
    browser.until("document.querySelectorAll('.facts dd').length > 0");
    wait::until_blocking("the page has the fourth stream", || stream(&site).0 == "429");

    browser.open_tab();
    wait::until_blocking("the page has closed its stream", || stream(&site).0 == "200");
}

#[test]
fn ten_thousand_rules_are_shown_in_parts() {
    let mut rules = "domain: many\ndescriptors:\n".to_owned();
    for rule in 0..10_000 {
        // writing to a string cannot fail
        let _ = write!(
            rules,
            "  - key: service\n    value: s{rule}\n    rate_limit: {{requests: {}, per: 1h}}\n",
            rule + 1
        );
    }
    let site = Site::with_files(&[("many.yaml", &rules)], &[]);
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("rules"));
    browser.until_text("10\u{202f}000 rules of many");
    browser.until("document.querySelectorAll('tbody tr').length === 100");
    browser.click("section button");
    browser.until("document.querySelectorAll('tbody tr').length === 200");
    browser.type_into("#filter", "s9999");
    browser.until_text("1 rule of many");
    browser.until_text("service = s9999");
    browser.open(&site.view("rules?rule=many.service_s7777"));
    browser.until_text("Since the start 0 hits were admitted");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_reset_asks_once_and_names_the_key() {
    let site = Site::start(&[("WEIR_ADMIN", "full")]);
    site.send_traffic();
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("key?domain=shop&entry=tenant%3Dglobex"));
    browser.until_text("100 of 100 used, 0 left");

    browser.click(".reset button");
    assert!(browser.text("dialog").contains("tenant=globex in domain shop"), "{}", browser.text("dialog"));
    assert_eq!(browser.accessibility_faults(), [""; 0]);
    browser.click("dialog button:not(.danger)");
    browser.until("!document.querySelector('dialog')");
    browser.until_text("100 of 100 used, 0 left");

    browser.click(".reset button");
    browser.click("dialog button.danger");
    browser.until_text("Before: 100 of 100.");
    browser.until_text("0 of 100 used, 100 left");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn who_may_only_read_is_told_so() {
    let site = Site::start(&[]);
    site.send_traffic();
    let browser = Browser::start();
    browser.open(&site.view("key?domain=shop&entry=tenant%3Dglobex"));
    browser.until_text("A reset needs the level full");
    browser.until("!document.querySelector('.reset')");
}

#[test]
fn empty_views_say_what_to_do() {
    let site = Site::with_files(&[("shop.yaml", "domain: shop\n")], &[]);
    let browser = Browser::start();
    for (state, text) in [
        ("hot", "weir call --domain DOMAIN KEY=VALUE"),
        ("hot?by=rejected", "Nothing was rejected in this time."),
        ("why", "a line for each descriptor"),
        ("key?domain=shop&entry=a%3Db", "There is no counter"),
    ] {
        browser.open(&site.view(state));
        browser.until_text(text);
    }
}
