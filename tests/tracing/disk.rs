//! The waits for the disk, and commands of Redis' protocol.

use redis::AsyncTypedCommands as _;

use crate::{
    collector::{Collector, attribute, error},
    in_process::until,
    traced::weir,
    waits::{Decided, Traced, one},
};

fn read(decided: &Decided) -> u64 {
    decided.commands("Disk Wait", "disk")
}

#[tokio::test]
async fn a_decision_that_waits_for_the_disk_has_a_child() {
    let data = tempfile::tempdir().expect("a directory");
    let dir = data.path().join("data");
    let dir = dir.to_str().expect("a plain path");
    let mut traced = Traced::start(&[("WEIR_DATA_DIR", dir)]).await;
    let first = traced.decide(one("local")).await;
    assert_eq!((read(&first), error(&first.children[0])), (1, None));
    assert_eq!(first.attribute("weir.coordination").as_deref(), Some("local"));
    // it is in memory now
    assert!(traced.decide(one("local")).await.children.is_empty());
}

#[tokio::test]
async fn commands_about_rules_have_spans() {
    let collector = Collector::http().await;
    let variables = [("WEIR_REDIS_PORT", "0"), ("WEIR_REDIS_HOST", "127.0.0.1")];
    let weir = weir(&collector, &variables).await;
    let address = weir.addresses.redis.as_ref().expect("the port is on");
    let client = redis::Client::open(format!("redis://{address}")).expect("an address");
    let mut client = client.get_multiplexed_async_connection().await.expect("it listens");
    client.ping().await.expect("a reply");
    for command in ["WEIR.TAKE", "WEIR.TAKE", "WEIR.PEEK", "WEIR.RESET"] {
        let asked = redis::cmd(command).arg("shop").arg("tenant").arg("acme").to_owned();
        let reply = asked.query_async::<redis::Value>(&mut client).await;
        assert_eq!(reply.is_err(), command == "WEIR.RESET", "{reply:?}");
    }
    until("the spans", async || collector.spans().len() >= 4).await;
    let spans = collector.spans();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["WEIR.TAKE", "WEIR.TAKE", "WEIR.PEEK", "WEIR.RESET"]);
    for (span, hits) in spans.iter().zip(["1", "1", "0"]) {
        let of = |name| attribute(&span.attributes, name);
        assert_eq!(of("weir.domain").as_deref(), Some("shop"));
        assert_eq!(of("weir.outcome").as_deref(), Some("OK"));
        assert_eq!(of("weir.rules").as_deref(), Some("shop.tenant"));
        assert_eq!(of("weir.hits").as_deref(), Some(hits));
        assert_eq!(of("rpc.method").as_deref(), Some(span.name.as_str()));
        assert!(span.parent_span_id.is_empty() && error(span).is_none());
    }
    let refused = error(&spans[3]).expect("an error");
    assert!(refused.contains("WEIR_REDIS_RESET=true turns it on"), "{refused}");
}
