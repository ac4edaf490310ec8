//! Each view, on a wide and on a narrow screen, light and dark.

use weir_testing::browser::Browser;

use crate::site::Site;

/// The views: a name, its state in the URL, and texts that it shows.
const VIEWS: [(&str, &str, &[&str]); 9] = [
    ("overview", "overview", &["Attention", "Hits a second", "memory", "tennant"]),
    (
        "rules",
        "rules?rule=shop.tenant",
        &["tenant", "shop.yaml:4", "100 requests per 1d", "Hot keys", "tennant"],
    ),
    ("hot", "hot", &["tenant=globex", "shop.tenant", "tenant=acme,path=/v1/search"]),
    (
        "key",
        "key?domain=shop&entry=tenant%3Dglobex",
        &["100 of 100 used, 0 left", "a hit fits in", "shop.yaml:4"],
    ),
    ("look-up", "key", &["Look up"]),
    (
        "why",
        "why?domain=shop&text=tenant%3Dglobex",
        &["Rejected", "matches", "shop.tenant", "100 of 100 used"],
    ),
    ("why-not", "why?domain=shop&text=tennant%3Dacme", &["No limit", "Did you mean tenant?"]),
    ("what-if", "whatif?file=shop.yaml", &["shop.yaml", "models.yaml", "These rules are good."]),
    ("instances", "instances", &["this one", "One instance reports."]),
];

#[test]
fn each_view_is_whole_on_wide_screens() {
    look_at_all_views(1_400);
}

#[test]
fn each_view_is_whole_on_narrow_screens() {
    look_at_all_views(400);
}

fn look_at_all_views(width: u32) {
    let site = Site::start(&[]);
    site.send_traffic();
    let browser = Browser::start();
    browser.resize(width, 900);
    for theme in ["light", "dark"] {
        browser.theme(theme);
        for (name, state, texts) in VIEWS {
            let seen = format!("{name} at {width} px, {theme}");
            browser.open(&site.view(state));
            for text in texts {
                browser.until_text(text);
            }
            assert_whole(&browser, &seen);
        }
    }
}

/// Nothing is cut off, nobody is excluded, and the browser complains of nothing.
fn assert_whole(browser: &Browser, seen: &str) {
    let beyond = "return [...document.body.querySelectorAll('main *, header *')]
        .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest('.editor, thead'))
        .map((element) => element.outerHTML)";
    assert_eq!(browser.run(beyond, &[]), serde_json::json!([]), "{seen}: beyond the edge");
    assert_eq!(browser.accessibility_faults(), [""; 0], "{seen}");
    assert_eq!(browser.complaints(), [""; 0], "{seen}");
}
