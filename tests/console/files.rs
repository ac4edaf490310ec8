//! The files of the page: few bytes, nothing from elsewhere, nothing that turns text into elements.

use std::fs;

use weir_testing::{
    http::{self, HttpRequest},
    repository,
};

use crate::site::Site;

const MAX_BYTES: usize = 150_000;

/// What would turn text into elements or scripts, or ask another host.
const FORBIDDEN: [&str; 8] = [
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "style=",
    "://",
];

/// Names and texts of all files.
fn files() -> Vec<(String, String)> {
    let folder = repository("crates/weir-server/src/http/console");
    let entries = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("a file"));
    entries
        .map(|entry| {
            let text = fs::read_to_string(entry.path()).expect("text");
            (entry.file_name().into_string().expect("a name in UTF-8"), text)
        })
        .collect()
}

#[test]
fn the_page_is_small() {
    let bytes: usize = files().iter().map(|(_, text)| text.len()).sum();
    assert!(bytes < MAX_BYTES, "{bytes} bytes");
}

#[test]
fn the_page_has_nothing_that_makes_elements_of_text() {
    for (name, text) in files() {
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for forbidden in FORBIDDEN {
            assert!(!text.contains(forbidden), "{name} has {forbidden}");
        }
    }
}

#[test]
fn each_file_is_served_under_the_policy() {
    let site = Site::start(&[]);
    let address = site.weir.address("debug").parse().expect("an address");
    for (name, text) in files() {
        let path = if name == "index.html" { "/".to_owned() } else { format!("/console/{name}") };
        let answer = http::send(address, &HttpRequest::get(&path).to(site.weir.address("debug")));
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body == text, "{path} is another file");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("default-src 'self'"), "{path}: {policy}");
        assert!(policy.contains("require-trusted-types-for 'script'"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{path}");
    }
}
