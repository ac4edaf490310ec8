//! `MERGE_DOMAIN_CONFIG`, as for files.

use crate::{
    control_plane::{ControlPlane, config},
    service::Starting,
    wire::{descriptor, request},
};

#[tokio::test]
async fn resources_of_one_domain_are_merged_in_the_order_of_their_names() {
    let mut control_plane = ControlPlane::start().await;
    let starting = Starting::new(&control_plane, &[("MERGE_DOMAIN_CONFIG", "true")]);
    let mut stream = control_plane.stream().await;
    stream.request().await;
    let named = |name: &str, key: &str, limit| {
        let mut config = config("shop", key, limit);
        config.name = name.into();
        config
    };
    stream.accepted("1", "a", &[named("b", "user", 20), named("a", "tenant", 10)]).await;
    let mut weir = starting.ready().await;
    for (key, remaining) in [("tenant", 9), ("user", 19)] {
        let decided = weir.decide(request("shop", [descriptor([(key, "x")])])).await.expect("a decision");
        assert_eq!(decided.statuses[0].limit_remaining, remaining, "{key}");
    }
    let rules = weir.rules().await;
    let place = |text: &str| rules.find(text).unwrap_or_else(|| panic!("no {text}: {rules}"));
    assert!(place("shop.tenant") < place("shop.user"), "{rules}");
    // what is there twice is an error, as in files
    stream.send("2", "b", &[named("b", "user", 20), named("a", "user", 10)]);
    let message = stream.rejected("1", "b").await;
    assert!(
        message.contains("b: duplicate descriptor composite key 'shop.user'; the first is at a"),
        "{message}"
    );
}
