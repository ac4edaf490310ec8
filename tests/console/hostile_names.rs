//! Names that callers choose are text, whatever they contain.

use weir_testing::browser::Browser;

use crate::site::Site;

const ELEMENT: &str = "<img src=x onerror=document.title='owned'>";
const ESCAPE: &str = "\u{1b}[31mred\u{1b}[0m";
const BACKWARDS: &str = "abc\u{202e}gnp.exe";

/// Four kilobytes.
fn long() -> String {
    "x".repeat(4_096)
}

fn site() -> Site {
    let site = Site::start(&[]);
    for value in [ELEMENT, ESCAPE, BACKWARDS, &long()] {
        site.send("shop", &[("tenant", value)], 20);
    }
    site
}

/// Nothing that a name contains has become an element, a script or an address outside.
fn assert_text_alone(browser: &Browser) {
    browser.until("!document.querySelector('img, iframe, object, main script, main style')");
    browser.until("!document.title.includes('owned')");
    browser.until("document.documentElement.scrollWidth <= innerWidth");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn hot_keys_show_hostile_names_as_text() {
    let site = site();
    let browser = Browser::start();
    for width in [1_400, 400] {
        browser.resize(width, 900);
        browser.open(&site.view("hot"));
        browser.until_text(&format!("tenant={ELEMENT}"));
        browser.until_text("tenant=U+001B[31mredU+001B[0m");
        browser.until_text("tenant=abcU+202Egnp.exe");
        browser.until_text("tenant=xxxxxxxx");
        assert_text_alone(&browser);
    }
}

#[test]
fn links_open_keys_with_hostile_names() {
    let site = site();
    let browser = Browser::start();
    browser.resize(1_400, 900);
    for (value, shown) in [(ELEMENT, ELEMENT), (ESCAPE, "U+001B[31mred"), (BACKWARDS, "abcU+202Egnp.exe")] {
        browser.open(&site.view("hot"));
        let link = format!(
            "[...document.querySelectorAll('main a')].find((link) => link.innerText.includes({}))",
            serde_json::json!(shown)
        );
        browser.until(&link);
        browser.run(&format!("{link}.click()"), &[]);
        browser.until_text(&format!("tenant={shown}"));
        browser.until_text("20 of 100 used, 80 left");
        let entry = browser.run("return new URLSearchParams(location.hash.split('?')[1]).get('entry')", &[]);
        assert_eq!(entry, format!("tenant={value}"), "the address has the name itself");
        assert_text_alone(&browser);
    }
}

#[test]
fn a_key_of_four_kilobytes_can_be_asked_for() {
    let site = site();
    let browser = Browser::start();
    for state in ["key?domain=shop&entry=tenant%3D", "why?domain=shop&text=tenant%3D"] {
        for width in [1_400, 400] {
            browser.resize(width, 900);
            browser.open(&site.view(&format!("{state}{}", long())));
            browser.until_text("20 of 100 used, 80 left");
            assert_text_alone(&browser);
        }
    }
}

#[test]
fn answers_that_quote_hostile_names_are_text() {
    let site = Site::start(&[]);
    site.send("shop", &[(ELEMENT, "x")], 2);
    let browser = Browser::start();
    browser.resize(1_400, 900);
    for state in ["overview", "rules"] {
        browser.open(&site.view(state));
        browser.until_text("<img src=x");
        assert_text_alone(&browser);
    }
    browser.open(&site.view("why?domain=shop&text=%3Cscript%3Edocument.title%3D'owned'%3C%2Fscript%3E%3Dx"));
    browser.until_text("No limit");
    assert_text_alone(&browser);
}
