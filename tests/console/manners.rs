//! What one expects of a page: keys, a lost connection, several windows, a reset that asks.

use weir_testing::browser::{Browser, DOWN, ENTER, TAB};

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
