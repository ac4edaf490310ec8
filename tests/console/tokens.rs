//! The form for a token.

use weir_testing::browser::{Browser, ENTER};

use crate::site::{SHOP, Site};

const TOKEN: &str = "a-token-of-at-least-32-characters-00";

fn site() -> Site {
    let tokens = format!("ops:full:{TOKEN}\n");
    let files = [("shop.yaml", SHOP), ("../tokens", &*tokens)];
    Site::with_files(&files, &[("WEIR_ADMIN_TOKEN_FILE", "{dir}/tokens")])
}

#[test]
fn a_token_opens_the_page_and_a_wrong_one_does_not() {
    let site = site();
    site.send("shop", &[("tenant", "globex")], 20);
    let browser = Browser::start();
    browser.resize(1_400, 900);
    browser.open(&site.view("hot"));
    browser.until_text("Who are you?");
    assert_eq!(browser.accessibility_faults(), [""; 0]);

    browser.type_into("#token", &format!("wrong{ENTER}"));
    browser.until("document.querySelector('.answer .problem')");
    browser.run("document.querySelector('#token').value = ''", &[]);
    browser.type_into("#token", &format!("{TOKEN}{ENTER}"));
    browser.until_text("tenant=globex");
    assert!(browser.text("footer").contains("ops may change"), "{}", browser.text("footer"));
    assert_eq!(browser.run("return document.cookie", &[]), "", "no script reads the cookie");
    assert_eq!(browser.run("return JSON.stringify({ ...localStorage, ...sessionStorage })", &[]), "{}");

    browser.click("footer button");
    browser.until_text("Who are you?");
    browser.open(&site.view("hot"));
    browser.until_text("Who are you?");
}
