//! Writes the pictures of the documentation: the page of a weir that has had traffic for some minutes.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use weir_testing::{browser::Browser, repository};

use crate::site::Site;

/// The views: a name, its state in the URL, and a text that it shows.
const PICTURES: [(&str, &str, &str); 4] = [
    ("overview", "overview", "Hits a second"),
    ("hot", "hot", "tenant=globex"),
    ("key", "key?domain=shop&entry=tenant%3Dhooli", "of 100 used"),
    ("why", "why?domain=shop&text=tenant%3Dacme%20path%3D%2Fv1%2Fsearch", "20 of 20 used"),
];

/// Enough for lines.
const TRAFFIC: Duration = Duration::from_mins(5);

#[test]
#[ignore = "takes five minutes, and writes files: `make pictures`"]
fn write_the_pictures() {
    let site = Site::start(&[("WEIR_ADMIN", "full")]);
    let begun = Instant::now();
    while begun.elapsed() < TRAFFIC {
        send_a_second_of_traffic(&site, begun.elapsed().as_secs());
    }
    let folder = repository("docs/images");
    fs::create_dir_all(&folder).expect("a folder");
    let browser = Browser::start();
    browser.theme("light");
    for (name, state, text) in PICTURES {
        browser.resize(1_400, 600);
        browser.open(&site.view(state));
        browser.until_text(text);
        let height = browser.run("return document.documentElement.scrollHeight", &[]).as_u64().unwrap_or(900);
        browser.resize(1_400, u32::try_from(height).expect("a height"));
        fs::write(folder.join(format!("console-{name}.png")), browser.picture()).expect("a file");
    }
}

/// Waves of requests, most of them of few tenants.
fn send_a_second_of_traffic(site: &Site, second: u64) {
    let wave = usize::try_from(second % 60).expect("a small number").abs_diff(30);
    for (tenant, weight) in [("globex", 8), ("initech", 4), ("umbrella", 2), ("stark", 1), ("wayne", 1)] {
        site.send("shop", &[("tenant", tenant)], (wave * weight).div_ceil(40));
    }
    if second.is_multiple_of(5) {
        site.send("shop", &[("tenant", "hooli")], 1);
        site.send("shop", &[("tenant", "acme"), ("path", "/v1/search")], 2);
        site.send("shop", &[("tennant", "acme")], 1);
    }
    site.send("shop", &[("remote_address", "192.0.2.7")], wave.div_ceil(20));
    site.send("models", &[("model", "large"), ("team", "research")], wave.div_ceil(3) + 8);
    thread::sleep(Duration::from_secs(1));
}
