//! Requests in flight of programs that share a limit through one Redis, by the library.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::task::JoinSet;
use weir_client::{AcquireError, Limiter};
use weir_limit::Hits;

use crate::support::{Server, until};

/// Without Redis, as before the first reply, each program would admit by itself.
const RULES: &str = "
domain: partners
descriptors:
  - key: api
    rate_limit: { in_flight: 3, on_store_failure: deny }
  - key: one
    rate_limit: { in_flight: 1, on_store_failure: deny }
";

const LONG: Duration = Duration::from_mins(1);

async fn limiter(server: &Server) -> Limiter {
    let address = format!("127.0.0.1:{}", server.port());
    let limiter = Limiter::builder().rules_text(RULES).redis(&address).build();
    let limiter = limiter.await.expect("valid rules");
    // waits until Redis replies
    limiter.acquire("partners", &[("api", "probe")], Hits(1), LONG).await.expect("a place");
    limiter
}

/// Many callers of two programs wait for three places.
#[tokio::test]
async fn two_programs_share_places() {
    let server = Server::start();
    let fleet = [limiter(&server).await, limiter(&server).await];
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut calls = JoinSet::new();
    for i in 0..120 {
        let (limiter, running, most) = (fleet[i % 2].clone(), Arc::clone(&running), Arc::clone(&most));
        calls.spawn(async move {
            let permit = limiter.acquire("partners", &[("api", "x")], Hits(1), LONG).await;
            let permit = permit.expect("a place");
            most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            for _ in 0..i % 7 {
                tokio::task::yield_now().await;
            }
            running.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        });
    }
    calls.join_all().await;
    assert!((1..=3).contains(&most.load(Ordering::Relaxed)), "{most:?}");
    assert!(fleet.iter().all(|limiter| limiter.waiters() == 0));
}

/// A permit that is dropped on a thread without a runtime serves a caller of the other program.
#[tokio::test]
async fn an_end_at_one_program_serves_the_other() {
    let server = Server::start();
    let (here, there) = (limiter(&server).await, limiter(&server).await);
    let entries = [("one", "x")];
    let permit = here.acquire("partners", &entries, Hits(1), LONG).await.expect("a place");
    let refused = there.acquire("partners", &entries, Hits(1), Duration::ZERO).await;
    assert!(matches!(refused, Err(AcquireError::Timeout { .. })));
    assert!(matches!(there.try_acquire("partners", &entries, Hits(1)), Err(AcquireError::MustAsk)));
    let waits = tokio::spawn({
        let there = there.clone();
        async move { there.acquire("partners", &entries, Hits(1), LONG).await }
    });
    until("it waits", async || there.waiters() == 1).await;
    thread::spawn(move || drop(permit)).join().expect("no panic");
    let permit = waits.await.expect("it ends").expect("a place");
    drop(permit);
    here.shut_down().await;
    there.shut_down().await;
    // what was ended is known to the store
    let other = limiter(&server).await;
    other.acquire("partners", &entries, Hits(1), LONG).await.expect("a place");
}
