//! Tests that the service loads rules from any source, reports the outcome of each snapshot to the source, and follows their
//! schedules.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use weir::{
    app::App,
    settings::{Flags, Settings},
};
use weir_config::{ConfigErrors, Loaded, parse};
use weir_harness::{
    in_process::{Weir, replace, until},
    local::{self, get},
    wire::{descriptor, hits, request},
};
use weir_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use weir_sources::RuleSource;
use weir_store::clock::SystemClock;

/// Far longer than any step takes.
const DEADLINE: Duration = Duration::from_secs(20);

/// A versioned snapshot, as a control plane pushes it.
struct Snapshot {
    version: u32,
    text: String,
}

/// The reply that a control plane receives: an ACK, or a NACK with the errors.
type Acknowledgement = (u32, Result<(), Vec<String>>);

/// A source that a control plane pushes snapshots to.
struct PushedSource {
    pushed: mpsc::UnboundedReceiver<Snapshot>,
    current: Option<Snapshot>,
    acknowledged: mpsc::UnboundedSender<Acknowledgement>,
}

/// The other end of a [`PushedSource`].
struct ControlPlane {
    push: mpsc::UnboundedSender<Snapshot>,
    acknowledged: mpsc::UnboundedReceiver<Acknowledgement>,
}

// === impl PushedSource ===

impl RuleSource for PushedSource {
    async fn load(&mut self) -> Result<Loaded, ConfigErrors> {
        if self.current.is_none() {
            self.changed().await;
        }
        let Snapshot { version, text } = self.current.as_ref().expect("a snapshot was pushed");
        parse(&format!("snapshot {version}"), text)
    }

    async fn changed(&mut self) {
        match self.pushed.recv().await {
            Some(snapshot) => self.current = Some(snapshot),
            None => std::future::pending().await,
        }
    }

    fn acknowledge(&mut self, outcome: Result<(), &ConfigErrors>) {
        let version = self.current.as_ref().expect("a snapshot was loaded").version;
        let texts = |errors: &ConfigErrors| errors.errors.iter().map(ToString::to_string).collect();
        self.acknowledged.send((version, outcome.map_err(texts))).expect("the control plane listens");
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    fn new() -> (Self, PushedSource) {
        let (push, pushed) = mpsc::unbounded_channel();
        let (acknowledge, acknowledged) = mpsc::unbounded_channel();
        let source = PushedSource { pushed, current: None, acknowledged: acknowledge };
        (Self { push, acknowledged }, source)
    }

    fn push(&self, version: u32, text: impl Into<String>) {
        assert!(self.push.send(Snapshot { version, text: text.into() }).is_ok(), "the source exists");
    }

    async fn acknowledgement(&mut self) -> Acknowledgement {
        timeout(DEADLINE, self.acknowledged.recv()).await.expect("in time").expect("the service runs")
    }
}

fn rules(limit: u32) -> String {
    format!("domain: d\ndescriptors:\n- key: a\n  rate_limit: {{ unit: hour, requests_per_unit: {limit} }}\n")
}

fn settings() -> Settings {
    local::settings(&Flags::default(), &[("RUNTIME_ROOT", "/nonexistent")])
}

#[tokio::test]
async fn a_pushed_snapshot_is_applied_or_rejected_and_its_source_receives_the_outcome() {
    let (mut control_plane, source) = ControlPlane::new();
    // the first load waits for the first snapshot
    let bound = tokio::spawn(App::bind_with_source(settings(), Arc::new(SystemClock), source));
    control_plane.push(1, rules(10));
    let app = bound.await.expect("no panic").expect("a started service");
    assert_eq!(control_plane.acknowledgement().await, (1, Ok(())));
    let (debug, reload) = (app.addresses().debug, app.reload());
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(app.run(async move {
        let _ = stopped.await;
    }));

    control_plane.push(2, rules(20));
    assert_eq!(control_plane.acknowledgement().await, (2, Ok(())));
    assert!(get(debug, "/rlconfig").await.contains("requests_per_unit=20"));

    control_plane.push(3, rules(30).replace("hour", "fortnight") + "surplus: 1\n");
    let (version, outcome) = control_plane.acknowledgement().await;
    let errors = outcome.expect_err("two errors");
    assert_eq!((version, errors.len()), (3, 2), "{errors:?}");
    assert!(errors[0].starts_with("snapshot 3:4:23: invalid rate limit unit 'fortnight'"), "{errors:?}");
    assert!(errors[1].starts_with("snapshot 3:5:1: config error, unknown key 'surplus'"), "{errors:?}");
    assert!(get(debug, "/rlconfig").await.contains("requests_per_unit=20"), "the previous rules stay");
    let stats = get(debug, "/stats").await;
    assert!(stats.contains("ratelimit.service.config_load_error: 1"), "{stats}");

    control_plane.push(4, rules(40));
    assert_eq!(control_plane.acknowledgement().await, (4, Ok(())));
    assert!(get(debug, "/rlconfig").await.contains("requests_per_unit=40"));
    // a requested reload loads the current snapshot again
    reload.now();
    assert_eq!(control_plane.acknowledgement().await, (4, Ok(())));

    stop.send(()).expect("the service runs");
    running.await.expect("no panic").expect("a graceful stop");
}

#[tokio::test]
async fn an_invalid_first_snapshot_is_reported_to_its_source() {
    let (mut control_plane, source) = ControlPlane::new();
    control_plane.push(1, "descriptors: []");
    assert!(App::bind_with_source(settings(), Arc::new(SystemClock), source).await.is_err());
    let (version, outcome) = control_plane.acknowledgement().await;
    assert_eq!(version, 1);
    assert_eq!(outcome, Err(vec!["snapshot 1:1:1: config file cannot have empty domain".to_owned()]));
}

const BY_TIME: &str = "\
domain: shop
descriptors:
- key: tenant
  rate_limit:
    name: all
    schedule:
    - {requests: 2, per: 1h, active: {from: \"08:00\", to: \"23:32\"}}
    - {requests: 5, per: 1h, active: {from: \"23:32\", to: \"23:34\"}}
    - {requests: 1, per: 1s}
";

/// The clock shows 23:31:30.
#[tokio::test]
async fn a_schedule_changes_the_limit_at_its_edges_without_a_reload() {
    let mut weir = Weir::start_with(BY_TIME, &[("WEIR_RESPONSE_HEADERS", "retry-after")]).await;
    let take = || request("shop", [descriptor([("tenant", "acme")])]);
    for _ in 0..2 {
        assert_eq!(weir.decide(take()).await.overall_code, Code::Ok as i32);
    }
    let over = weir.decide(take()).await;
    assert_eq!(over.overall_code, Code::OverLimit as i32);
    let reset = over.statuses[0].duration_until_reset.expect("a time");
    assert_eq!((reset.seconds, reset.nanos), (30, 0), "the edge is before the window's end");
    let retry =
        over.response_headers_to_add.iter().find(|header| header.key.eq_ignore_ascii_case("retry-after"));
    assert_eq!(retry.map(|header| header.value.as_str()), Some("30"), "{over:?}");
    let rules = get(weir.addresses.debug, "/v1/rules").await;
    assert!(rules.contains("\"next_change\":\"2009-02-13T23:32:00"), "{rules}");

    weir.advance(30);
    let mut limit = 2;
    while limit == 2 {
        let status = weir.decide(take()).await.statuses.remove(0);
        limit = status.current_limit.expect("a limit").requests_per_unit;
        if limit == 5 {
            assert_eq!(status.limit_remaining, 2, "the hits of before count, the rejected ones do not");
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(limit, 5);
    weir.advance(120);
    until("the last limit is in force", async || {
        let status = weir.decide(take()).await.statuses.remove(0);
        weir.advance(1);
        status.current_limit.expect("a limit").requests_per_unit == 1
    })
    .await;
    let audit = get(weir.addresses.debug, "/v1/audit").await;
    assert!(audit.contains("A schedule or a calendar came to its next edge."), "{audit}");
}

/// The clock shows 23:31:30 of UTC, the 13th.
#[tokio::test]
async fn a_calendar_begins_a_window_at_its_edge_also_in_a_reload() {
    let rules = |limit: u32| {
        format!(
            "domain: shop\ndescriptors:\n- key: tenant\n  rate_limit: {{requests: {limit}, per: calendar day, timezone: \
             Asia/Kathmandu}}\n"
        )
    };
    let mut weir = Weir::start(&rules(2)).await;
    let take = || request("shop", [descriptor([("tenant", "acme")])]);
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(weir.decide(take()).await.overall_code, code as i32);
    }
    // midnight there is at 18:15 of the 14th here
    let left = 18 * 3_600 + 15 * 60 + 28 * 60 + 30;
    weir.advance(left - 1);
    assert_eq!(weir.decide(take()).await.overall_code, Code::OverLimit as i32);
    replace(&weir.file(), &rules(3));
    weir.advance(1);
    let status = weir.decide(take()).await.statuses.remove(0);
    assert_eq!(status.code, Code::Ok as i32, "the window has begun, whichever rules are in force");
    let mut limit = 2;
    until("the rules are loaded again", async || {
        let none = hits(0, descriptor([("tenant", "acme")]));
        let status = weir.decide(request("shop", [none])).await.statuses.remove(0);
        limit = status.current_limit.expect("a limit").requests_per_unit;
        assert_eq!(status.limit_remaining, limit - 1, "no hit is lost, and none counts twice");
        assert_eq!(status.duration_until_reset.expect("a time").seconds, 86_400);
        limit == 3
    })
    .await;
}
