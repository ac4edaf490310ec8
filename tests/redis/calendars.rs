//! Windows of the calendar of weirs whose databases of time zones differ.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::support::{Server, Weir, until};

const RULES: &str = "\
domain: shop
timezone: Europe/Berlin
descriptors:
  - key: day
    rate_limit: { requests: 5, per: calendar day, coordination: strict }
";

/// Writes a database in which Berlin has `rule`, of POSIX' variable `TZ`.
fn write_berlin(dir: &Path, rule: &str) {
    // RFC 9636: a header of counts, then one type of local time, twice, then the rule
    let header = [b"TZif2".as_slice(), &[0; 15], &[0; 16], &[0, 0, 0, 1], &[0, 0, 0, 4]].concat();
    let local_time = [[0; 6].as_slice(), b"LMT\0"].concat();
    let file = [&header[..], &local_time, &header, &local_time, b"\n", rule.as_bytes(), b"\n"].concat();
    fs::create_dir_all(dir.join("Europe")).expect("a directory");
    fs::write(dir.join("new"), file).expect("a file in it");
    fs::rename(dir.join("new"), dir.join("Europe/Berlin")).expect("the file is replaced");
}

/// Instances compare their calendars ten seconds after their start.
const COMPARED: Duration = Duration::from_secs(13);

async fn admitted(weir: &Weir, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(weir.send("day").await);
    }
    admitted
}

/// Their counts are apart, they say so, and rules that are loaded again have the zones of a new database.
#[tokio::test(flavor = "multi_thread")]
async fn instances_with_other_time_zones_say_so_until_their_databases_are_the_same() {
    let (server, rules) = (Server::start(), tempfile::tempdir().expect("a directory"));
    fs::write(rules.path().join("shop.yaml"), RULES).expect("a file in it");
    let databases = [tempfile::tempdir(), tempfile::tempdir()].map(|dir| dir.expect("a directory"));
    let mut weirs = Vec::new();
    for (dir, rule) in databases.iter().zip(["JST-9", "MST7"]) {
        write_berlin(dir.path(), rule);
        let text = |dir: &TempDir| dir.path().to_str().expect("a plain path").to_owned();
        let weir = Weir::start_with(&server, &text(&rules), &[("WEIR_TZDIR", &text(dir))]).await;
        let database = format!("weir_timezone_database_info{{version=\"unknown\",source=\"{}\"}}", text(dir));
        assert_eq!(weir.metric(&database), 1, "{}", weir.page("/metrics").1);
        weirs.push(weir);
    }
    until("both know each other", async || weirs.iter().all(|weir| weir.metric("weir_instances") == 2)).await;
    let begun = Instant::now();
    assert_eq!(admitted(&weirs[0], 7).await, 5);
    assert_eq!(admitted(&weirs[1], 3).await, 3, "another window");
    until("both have compared their calendars", async || begun.elapsed() > COMPARED).await;

    write_berlin(databases[0].path(), "MST7");
    fs::write(rules.path().join("shop.yaml"), format!("{RULES}# again\n")).expect("a file in it");
    let loads = "ratelimit_service_config_load_success";
    until("the rules are loaded again", async || weirs.iter().all(|weir| weir.metric(loads) > 1)).await;
    assert_eq!(admitted(&weirs[0], 7).await, 2, "what the other one left of the same window");

    for output in weirs.into_iter().map(Weir::stop) {
        let says = "another instance ends windows of a calendar at another time";
        assert!(output.contains(says) && output.contains("calendar day in Europe/Berlin"), "{output}");
    }
}
