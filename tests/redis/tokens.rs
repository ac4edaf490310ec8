//! Budgets in Redis, of which many gateways reserve tokens at once, and give them back themselves.

use tokio::task::JoinSet;
use weir_proto::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};

use crate::{
    support::Weirs,
    wire::{descriptor, hits, refund, request},
};

const BUDGET: u64 = 100_000;
const RESERVED: u64 = 5_000;
const COST: u64 = 4_000;
const CALLERS: usize = 16;

/// Reserves tokens and replaces them by those that an answer costs, until there is no reservation. Returns the tokens
/// that were used.
async fn ask_model(address: String) -> u64 {
    let mut client = RateLimitServiceClient::connect(format!("http://{address}")).await.expect("it listens");
    let tenant = || descriptor([("tenant", "acme")]);
    let mut used = 0;
    loop {
        let reserved = client.should_rate_limit(request("shop", [hits(RESERVED, tenant())]));
        if reserved.await.expect("a response").into_inner().overall_code() != Code::Ok {
            return used;
        }
        used += COST;
        let ended = request("shop", [refund(RESERVED, tenant()), hits(COST, tenant())]);
        client.should_rate_limit(ended).await.expect("a response");
    }
}

/// "Never exceeded", as its table of modes says.
#[tokio::test]
async fn reserved_tokens_are_never_exceeded() {
    for mode in ["strict", "lease"] {
        let rules = format!(
            "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {{requests: {BUDGET}, per: 1d, coordination: {mode}}}\n"
        );
        for instances in [1, 2] {
            let weirs = Weirs::start(instances, &rules).await;
            let callers = (0..CALLERS).map(|i| weirs.all[i % instances].grpc_address().to_owned());
            let callers: JoinSet<u64> = callers.map(ask_model).collect();
            let used: u64 = callers.join_all().await.into_iter().sum();
            assert!((BUDGET / 2..=BUDGET).contains(&used), "{mode}, {instances} instances: {used}");
        }
    }
}
