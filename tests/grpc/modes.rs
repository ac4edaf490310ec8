//! Shadow, quota, replaced and unlimited rules.

use weir::proto::envoy::service::ratelimit::v3::rate_limit_response::Code::{Ok, OverLimit};

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
    weir.answer(shadow()).await;
    let over = weir.answer(shadow()).await;
    assert_eq!(gist(&over), (Ok, vec![(Ok, 0)]));
    assert!(over.statuses[0].current_limit.is_some());
}

#[tokio::test]
async fn nothing_is_left_of_a_limit_that_is_over_even_where_it_was_not_counted() {
    let mut weir = Weir::start_with(RULES, &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")]).await;
    for (key, code) in [("shadow", Ok), ("limit", OverLimit)] {
        let two = weir.answer(request("d", [hits(2, descriptor([(key, "x")]))])).await;
        assert_eq!(gist(&two), (code, vec![(code, 0)]), "as the reference, though one would have fitted");
        assert_eq!(gist(&weir.answer(request("d", [descriptor([(key, "x")])])).await), (Ok, vec![(Ok, 0)]));
    }
}

#[tokio::test]
async fn a_service_in_shadow_mode_changes_the_code_only() {
    let mut weir = Weir::start_with(RULES, &[("SHADOW_MODE", "true")]).await;
    let limit = || request("d", [descriptor([("limit", "x")])]);
    weir.answer(limit()).await;
    assert_eq!(gist(&weir.answer(limit()).await), (Ok, vec![(OverLimit, 0)]));
}

#[tokio::test]
async fn quotas_close_a_request_when_all_of_them_are_over() {
    let mut weir = Weir::start(RULES).await;
    let both = || request("d", [descriptor([("quota", "x")]), descriptor([("quota2", "x")])]);
    assert_eq!(gist(&weir.answer(both()).await), (Ok, vec![(Ok, 0), (Ok, 1)]));
    assert_eq!(gist(&weir.answer(both()).await), (Ok, vec![(OverLimit, 0), (Ok, 0)]));
    assert_eq!(gist(&weir.answer(both()).await), (OverLimit, vec![(OverLimit, 0), (OverLimit, 0)]));
}

#[tokio::test]
async fn a_limit_closes_a_request_whatever_its_quotas_say() {
    let mut weir = Weir::start(RULES).await;
    let mixed = || request("d", [descriptor([("quota2", "y")]), descriptor([("limit", "y")])]);
    assert_eq!(gist(&weir.answer(mixed()).await).0, Ok);
    assert_eq!(gist(&weir.answer(mixed()).await), (OverLimit, vec![(Ok, 0), (OverLimit, 0)]));
    let quota = || request("d", [descriptor([("quota", "z")]), descriptor([("limit", "z")])]);
    assert_eq!(gist(&weir.answer(quota()).await).0, Ok);
    let alone = request("d", [descriptor([("quota", "z")]), descriptor([("nobody", "z")])]);
    assert_eq!(
        gist(&weir.answer(alone).await),
        (OverLimit, vec![(OverLimit, 0), (Ok, 0)]),
        "what has no rule is no quota that could be left"
    );
}

#[tokio::test]
async fn a_service_in_quota_mode_makes_all_but_the_unlimited_quotas() {
    let mut weir = Weir::start_with(RULES, &[("QUOTA_MODE", "true")]).await;
    let limit = || descriptor([("limit", "x")]);
    let free = || descriptor([("free", "x")]);
    let nobody = || descriptor([("nobody", "x")]);
    weir.answer(request("d", [limit()])).await;
    assert_eq!(gist(&weir.answer(request("d", [limit()])).await).0, OverLimit);
    assert_eq!(
        gist(&weir.answer(request("d", [limit(), free()])).await).0,
        OverLimit,
        "unlimited is no quota"
    );
    assert_eq!(
        gist(&weir.answer(request("d", [limit(), nobody()])).await).0,
        Ok,
        "no rule is a quota that is left"
    );
}

#[tokio::test]
async fn a_rule_replaces_others_wherever_they_stand() {
    let rules = "
domain: d
descriptors:
  - key: base
    rate_limit: { name: base, unit: minute, requests_per_unit: 1 }
  - key: special
    rate_limit: { unit: minute, requests_per_unit: 9, replaces: [{ name: base }] }
  - key: vip
    rate_limit: { unlimited: true, replaces: [{ name: base }, { name: nobody }] }
";
    let mut weir = Weir::start(rules).await;
    let base = || descriptor([("base", "x")]);
    let special = || descriptor([("special", "x")]);
    let vip = || descriptor([("vip", "x")]);
    for remaining in [8, 7] {
        let answer = weir.answer(request("d", [base(), special()])).await;
        assert_eq!(gist(&answer), (Ok, vec![(Ok, 0), (Ok, remaining)]));
        assert!(answer.statuses[0].current_limit.is_none());
    }
    assert_eq!(gist(&weir.answer(request("d", [special(), base()])).await), (Ok, vec![(Ok, 6), (Ok, 0)]));
    let free = weir.answer(request("d", [base(), vip()])).await;
    assert_eq!(gist(&free), (Ok, vec![(Ok, 0), (Ok, u32::MAX)]));
    let alone = weir.answer(request("d", [base()])).await;
    assert_eq!(gist(&alone), (Ok, vec![(Ok, 0)]));
    assert!(alone.statuses[0].current_limit.is_some(), "it was not counted while it was replaced");
    assert_eq!(gist(&weir.answer(request("d", [base()])).await).0, OverLimit);
}
