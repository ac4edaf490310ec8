//! Measures callers that wait: the memory of a waiter, how late callers are woken, and the price of a call that does
//! not have to wait, beside governor and ratelimit.
//!
//! `cargo bench --bench waiting`. With `-- acquire N` or `-- decide N` it only answers N requests to
//! `weir.v1.Limiter/Acquire` or to `ShouldRateLimit`, for valgrind to count.

use std::{
    env,
    future::Future,
    hint::black_box,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use governor::{Quota, RateLimiter};
use ratelimit::Ratelimiter;
use tokio::runtime::Builder;
use weir_client::Key;
use weir_harness::exchange::{AcquireExchange, Exchange};
use weir_limit::{
    Entry, Hits, KeyHasher, Limit, Period, Request, Rule, RuleNode, RuleSet, Timestamp, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{
    MemoryStore,
    clock::{Clock as _, ManualClock, SystemClock},
};

const WAITERS: usize = 1_000_000;
const KEYS: usize = 1_000;

/// The callers that are due at one instant.
const DUE: [usize; 6] = [1, 100, 1_000, 2_000, 10_000, 100_000];

/// The windows at whose start they are woken.
const WINDOWS: usize = 5;

const SECOND: Period = Period::from_secs(1);

/// The calls of one measurement, of which the fastest of five counts.
const CALLS: u32 = 1_000_000;

type Acquire<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

fn request(key: usize) -> Request<'static> {
    let value = Box::leak(format!("partner-{key}").into_boxed_str());
    Request::of("partners", &[Entry { key: "api", value }])
}

/// Prints the memory of a million waiters.
fn memory() {
    let limit = Limit::fixed_window(10_000, Period::from_secs(60));
    let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("api", Values::Any) };
    let store = MemoryStore::new(2 * KEYS);
    let limiter = Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default());
    let domain = weir_limit::Domain::new("partners", vec![node]);
    limiter.load(RuleSet::new(&[domain], KeyHasher::random()));
    let clock = ManualClock::at(Timestamp::from_secs(1_000_020));
    let requests: Vec<Request<'static>> = (0..KEYS).map(request).collect();
    for request in &requests {
        let full = Request { hits: 10_000, ..request.clone() };
        let taken = limiter.decide_now(&full, clock.now(), |verdict| verdict.code == weir_limit::Code::Ok);
        assert!(taken.expect("a decision"));
    }
    let mut calls: Vec<Acquire<'_>> = Vec::with_capacity(WAITERS);
    let mut size = 0;
    let begun = Instant::now();
    let measured = allocation_counter::measure(|| {
        for i in 0..WAITERS {
            let acquired =
                limiter.acquire(&requests[i % KEYS], Period::from_secs(60), &clock, |_, acquired| {
                    acquired.rejection.is_none()
                });
            let acquired = async move { acquired.await.expect("a decision") };
            size = size_of_val(&acquired);
            let mut call: Acquire<'_> = Box::pin(acquired);
            assert_eq!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);
            calls.push(call);
        }
    });
    let took = begun.elapsed();
    assert_eq!(limiter.waiters(), WAITERS);
    let of_lines = measured.bytes_current - i64::try_from(size * WAITERS).expect("it fits");
    println!(
        "{WAITERS} waiters of {KEYS} keys: {} bytes each in their line, and {size} in the future of the call; came in {took:.2?}",
        of_lines / i64::try_from(WAITERS).expect("it fits")
    );
    drop(calls);
    assert_eq!(limiter.waiters(), 0);
}

/// Returns a limiter in memory that admits so many requests a second.
async fn limiter(requests: usize) -> weir_client::Limiter {
    let rules = format!(
        "domain: partners\ndescriptors:\n  - key: api\n    rate_limit: {{ requests: {requests}, per: 1s, algorithm: \
         fixed_window }}\n"
    );
    weir_client::Limiter::builder().rules_text(&rules).build().await.expect("valid rules")
}

/// Prints how long after their instant callers are woken that are due at one.
async fn wake_ups() {
    println!("due at once  p50 ms  p99 ms  longest ms  us each until the 99th hundredth");
    for due in DUE {
        let limiter = limiter(due).await;
        let mut late = Vec::with_capacity(due * WINDOWS);
        while late.len() < due * WINDOWS {
            late.extend(wake(&limiter, due).await.unwrap_or_default());
        }
        late.sort_unstable();
        let at = |percent: usize| late[(late.len() * percent / 100).min(late.len() - 1)].as_secs_f64() * 1e3;
        #[expect(clippy::cast_precision_loss, reason = "printed for people")]
        let each = at(99) * 1e3 / due as f64;
        println!("{due:11}  {:6.2}  {:6.2}  {:10.2}  {each:.2}", at(50), at(99), at(100));
    }
}

/// Has so many callers wait for the start of the next window, and returns how late each was woken. None if it began
/// before all of them waited.
async fn wake(limiter: &weir_client::Limiter, due: usize) -> Option<Vec<Duration>> {
    let now = SystemClock.now();
    tokio::time::sleep(now.window_end(SECOND).since(now).into()).await;
    // some milliseconds later, since sleeps end early in places
    tokio::time::sleep(Duration::from_millis(5)).await;
    let start = SystemClock.now().window_end(SECOND);
    let entries = [("api", "stickers")];
    limiter.acquire("partners", &entries, Hits(due as u64), Duration::ZERO).await.ok()?;
    let mut calls = Vec::with_capacity(due);
    for _ in 0..due {
        let limiter = limiter.clone();
        calls.push(tokio::spawn(async move {
            let permit = limiter.acquire("partners", &entries, Hits(1), Duration::from_secs(5)).await;
            permit.expect("it is served");
            SystemClock.now()
        }));
    }
    // all of them come to their line
    while limiter.waiters() < due && SystemClock.now() < start {
        tokio::task::yield_now().await;
    }
    let are_there = limiter.waiters() == due && SystemClock.now() < start;
    let mut woken = Vec::with_capacity(due);
    for call in calls {
        woken.push(call.await.expect("no panic"));
    }
    are_there.then(|| woken.into_iter().map(|at| at.since(start).into()).collect())
}

/// Prints the time of `call`, and how many times as long as `of` it takes. Returns it.
fn time(name: &str, of: Option<f64>, mut call: impl FnMut()) -> f64 {
    let mut nanos = f64::INFINITY;
    for _ in 0..5 {
        let begun = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        nanos = nanos.min(begun.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    let times = of.map_or_else(String::new, |of| format!(", {:.2} of governor", nanos / of));
    println!("{name}: {nanos:.0} ns{times}");
    nanos
}

/// Prints the time of calls that do not have to wait.
async fn calls() {
    let limiter = limiter(u32::MAX as usize).await;
    let key: Key = limiter.key("partners", &[("api", "stickers")]).expect("a domain");
    let governor = RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let name = "stickers".to_owned();
    let governor = time("governor, check_key", None, || {
        assert!(black_box(&governor).check_key(black_box(&name)).is_ok());
    });
    let of = Some(governor);
    let most = u64::from(u32::MAX);
    let ratelimit = Ratelimiter::builder(most).max_tokens(most).initial_available(most).build();
    let ratelimit = ratelimit.expect("a valid rate");
    time("ratelimit, try_wait without keys", of, || assert!(black_box(&ratelimit).try_wait().is_ok()));
    time("weir, try_acquire of a key", of, || {
        black_box(black_box(&key).try_acquire(Hits(1)).expect("admitted"));
    });
    time("weir, acquire of a key", of, || {
        let permit = black_box(&key).acquire(Hits(1), Duration::from_secs(1)).now_or_never();
        black_box(permit.expect("no wait").expect("admitted"));
    });
}

/// Answers so many requests.
fn answer(what: &str, times: usize) {
    let (acquire, decide) = (AcquireExchange::new("one_descriptor"), Exchange::new("one_descriptor"));
    for _ in 0..times {
        if what == "acquire" {
            black_box(acquire.respond());
        } else {
            black_box(decide.respond());
        }
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [what, times] = &arguments[..] {
        return answer(what, times.parse().expect("a number"));
    }
    memory();
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(wake_ups());
    runtime.block_on(calls());
}
