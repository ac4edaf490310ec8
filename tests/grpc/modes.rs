//! Shadow, quota, replaced and unlimited rules.

use weir_proto::envoy::service::ratelimit::v3::rate_limit_response::Code::{Ok, OverLimit};

use crate::{
    in_process::Weir,
    wire::{descriptor, gist, hits, request},
};

const RULES: &str = "
domain: d
descriptors:
  - key: limit
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: quota
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: quota2
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
  - key: free
    rate_limit: { unlimited: true }
";

#[tokio::test]
async fn a_shadow_rule_reports_ok_and_nothing_left() {
    let mut weir = Weir::start(RULES).await;
    let shadow = || request("d", [descriptor([("shadow", "x")])]);
    weir.decide(shadow()).await;
    let over = weir.decide(shadow()).await;
    assert_eq!(gist(&over), (Ok, vec![(Ok, 0)]));
    assert!(over.statuses[0].current_limit.is_some());
}

#[tokio::test]
async fn nothing_remains_of_an_exceeded_limit_even_if_the_hits_were_not_counted() {
    let mut weir = Weir::start_with(RULES, &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")]).await;
    for (key, code) in [("shadow", Ok), ("limit", OverLimit)] {
        let two = weir.decide(request("d", [hits(2, descriptor([(key, "x")]))])).await;
        assert_eq!(
            gist(&two),
            (code, vec![(code, 0)]),
            "like envoyproxy/ratelimit, though one hit would have fitted"
        );
        assert_eq!(gist(&weir.decide(request("d", [descriptor([(key, "x")])])).await), (Ok, vec![(Ok, 0)]));
    }
}

#[tokio::test]
async fn a_service_in_shadow_mode_changes_the_code_only() {
    let mut weir = Weir::start_with(RULES, &[("SHADOW_MODE", "true")]).await;
    let limit = || request("d", [descriptor([("limit", "x")])]);
    weir.decide(limit()).await;
    assert_eq!(gist(&weir.decide(limit()).await), (Ok, vec![(OverLimit, 0)]));
}

#[tokio::test]
async fn quotas_reject_a_request_when_all_of_them_are_over() {
    let mut weir = Weir::start(RULES).await;
    let both = || request("d", [descriptor([("quota", "x")]), descriptor([("quota2", "x")])]);
    assert_eq!(gist(&weir.decide(both()).await), (Ok, vec![(Ok, 0), (Ok, 1)]));
    assert_eq!(gist(&weir.decide(both()).await), (Ok, vec![(OverLimit, 0), (Ok, 0)]));
    assert_eq!(gist(&weir.decide(both()).await), (OverLimit, vec![(OverLimit, 0), (OverLimit, 0)]));
}

#[tokio::test]
async fn a_limit_rejects_a_request_whatever_its_quotas_say() {
    let mut weir = Weir::start(RULES).await;
    let mixed = || request("d", [descriptor([("quota2", "y")]), descriptor([("limit", "y")])]);
    assert_eq!(gist(&weir.decide(mixed()).await).0, Ok);
    assert_eq!(gist(&weir.decide(mixed()).await), (OverLimit, vec![(Ok, 0), (OverLimit, 0)]));
    let quota = || request("d", [descriptor([("quota", "z")]), descriptor([("limit", "z")])]);
    assert_eq!(gist(&weir.decide(quota()).await).0, Ok);
    let quota_only = request("d", [descriptor([("quota", "z")]), descriptor([("unmatched", "z")])]);
    assert_eq!(
        gist(&weir.decide(quota_only).await),
        (OverLimit, vec![(OverLimit, 0), (Ok, 0)]),
        "a descriptor without a rule is not a quota"
    );
}

#[tokio::test]
async fn in_quota_mode_all_rules_but_unlimited_ones_are_quotas() {
    let mut weir = Weir::start_with(RULES, &[("QUOTA_MODE", "true")]).await;
    let limit = || descriptor([("limit", "x")]);
    let free = || descriptor([("free", "x")]);
    let unmatched = || descriptor([("unmatched", "x")]);
    weir.decide(request("d", [limit()])).await;
    assert_eq!(gist(&weir.decide(request("d", [limit()])).await).0, OverLimit);
    assert_eq!(
        gist(&weir.decide(request("d", [limit(), free()])).await).0,
        OverLimit,
        "an unlimited rule is not a quota"
    );
    assert_eq!(
        gist(&weir.decide(request("d", [limit(), unmatched()])).await).0,
        Ok,
        "a descriptor without a rule is a quota with something left"
    );
}

#[tokio::test]
async fn a_rule_replaces_others_in_any_order() {
    let rules = "
domain: d
descriptors:
  - key: base
    rate_limit: { name: base, unit: minute, requests_per_unit: 1 }
  - key: special
    rate_limit: { unit: minute, requests_per_unit: 9, replaces: [{ name: base }] }
  - key: vip
    rate_limit: { unlimited: true, replaces: [{ name: base }, { name: missing }] }
";
    let mut weir = Weir::start(rules).await;
    let base = || descriptor([("base", "x")]);
    let special = || descriptor([("special", "x")]);
    let vip = || descriptor([("vip", "x")]);
    for remaining in [8, 7] {
        let response = weir.decide(request("d", [base(), special()])).await;
        assert_eq!(gist(&response), (Ok, vec![(Ok, 0), (Ok, remaining)]));
        assert!(response.statuses[0].current_limit.is_none());
    }
    assert_eq!(gist(&weir.decide(request("d", [special(), base()])).await), (Ok, vec![(Ok, 6), (Ok, 0)]));
    let free = weir.decide(request("d", [base(), vip()])).await;
    assert_eq!(gist(&free), (Ok, vec![(Ok, 0), (Ok, u32::MAX)]));
    let base_only = weir.decide(request("d", [base()])).await;
    assert_eq!(gist(&base_only), (Ok, vec![(Ok, 0)]));
    assert!(base_only.statuses[0].current_limit.is_some(), "a replaced rule does not count");
    assert_eq!(gist(&weir.decide(request("d", [base()])).await).0, OverLimit);
}
