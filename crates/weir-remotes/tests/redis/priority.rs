//! The order of commands on one connection: those of decisions do not wait behind background commands.

use std::sync::Arc;

use weir_limit::Timestamp;
use weir_remotes::redis::RedisRemote;
use weir_store::remote::{Command, Remote as _};

use crate::support::{FakeRedis, Op, address, compatible, connected, settings, until};

const AT: Timestamp = Timestamp::from_secs(3_600);

/// The most commands of one pipeline of background commands while there are decisions.
const BACKGROUND: usize = 32;

/// Returns `count` commands that increment keys with this name.
fn commands(name: &str, count: usize) -> Vec<Command> {
    let command = |i| Op::Take { hits: 1 }.command(&compatible(&format!("{name}_{i}_"), 100, 3_600), AT);
    (0..count).map(command).collect()
}

async fn start() -> (FakeRedis, Arc<RedisRemote>) {
    let server = FakeRedis::start().await;
    let remote = Arc::new(connected(settings(address(server.port()))).await);
    remote.call(commands("first", 1)).await.expect("it replies");
    (server, remote)
}

#[tokio::test]
async fn a_decision_waits_for_no_more_than_two_pipelines_of_a_long_background_call() {
    const COUNT: usize = 5_000;
    let (server, remote) = start().await;
    server.hold(true);
    let background = Arc::clone(&remote);
    let background =
        tokio::spawn(async move { background.call_in_background(commands("background", COUNT)).await });
    until("two pipelines are sent", async || server.received("INCRBY background") == 2 * BACKGROUND).await;
    let decision = Arc::clone(&remote);
    let decision = tokio::spawn(async move { decision.call(commands("decision", 1)).await });
    until("the decision is sent", async || server.received("INCRBY decision") == 1).await;
    assert_eq!(server.received("INCRBY background"), 2 * BACKGROUND, "none was sent before the decision");

    server.hold(false);
    assert!(decision.await.expect("it ends").expect("it replies").replies[0].is_ok());
    let replies = background.await.expect("it ends").expect("it replies").replies;
    assert_eq!(replies.iter().filter(|reply| reply.is_ok()).count(), COUNT);
    assert_eq!(server.received("INCRBY background"), COUNT, "each once");
}

#[tokio::test]
async fn the_commands_of_decisions_in_flight_are_bounded() {
    const COUNT: usize = 3_000;
    let (server, remote) = start().await;
    server.hold(true);
    let calls: Vec<_> = (0..COUNT / 100)
        .map(|i| {
            let remote = Arc::clone(&remote);
            tokio::spawn(async move { remote.call(commands(&format!("decision{i}"), 100)).await })
        })
        .collect();
    until("sixteen pipelines are sent", async || server.received("INCRBY decision") >= 16 * 100).await;
    // what was sent meanwhile arrives before what is sent next
    let other = FakeRedis::start().await;
    connected(settings(address(other.port()))).await.call(commands("other", 1)).await.expect("it replies");
    assert_eq!(server.received("INCRBY decision"), 16 * 100);
    server.hold(false);
    for call in calls {
        let replies = call.await.expect("it ends").expect("it replies").replies;
        assert!(replies.iter().all(Result::is_ok));
    }
    assert_eq!(server.received("INCRBY decision"), COUNT);
}

#[tokio::test]
async fn a_long_call_of_decisions_is_divided() {
    let (server, remote) = start().await;
    let before = server.received("TIME");
    let replies = remote.call(commands("decision", 300)).await.expect("it replies").replies;
    assert_eq!(replies.iter().filter(|reply| reply.is_ok()).count(), 300);
    assert_eq!(server.received("TIME") - before, 2, "each pipeline asks for the time");
}

#[tokio::test]
async fn background_calls_without_decisions_have_long_pipelines() {
    let server = FakeRedis::start().await;
    let remote = connected(settings(address(server.port()))).await;
    let before = server.received("TIME");
    remote.call_in_background(commands("background", 2_000)).await.expect("it replies");
    assert_eq!(server.received("TIME") - before, 2, "each pipeline asks for the time");
}

#[tokio::test]
async fn a_background_call_that_is_never_sent_was_certainly_not_carried_out() {
    const COUNT: usize = 1_000;
    let server = FakeRedis::start().await;
    let mut settings = settings(address(server.port()));
    settings.main.timeout = std::time::Duration::from_millis(300);
    let remote = Arc::new(connected(settings).await);
    remote.call(commands("first", 1)).await.expect("it replies");
    server.hold(true);
    // no reply in time: what was sent may have been carried out, and the rest was not
    let failed = remote.call_in_background(commands("background", COUNT)).await;
    assert!(failed.is_err());
    let sent = server.received("INCRBY background");
    server.hold(false);
    until("it is connected again", async || remote.call(commands("again", 1)).await.is_ok()).await;
    assert_eq!(server.received("INCRBY background"), sent, "nothing is sent later");
}
