//! Consumers of a provider's API: processes of their own that share its limit through one Redis, by the library.

use std::{
    collections::BTreeMap,
    env,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use tokio::time::sleep;
use weir_client::Limiter;
use weir_coordinate::CoordinationSettings;
use weir_limit::{Coordination, Hits, OnStoreFailure, Period, Timestamp};
use weir_store::clock::{Clock as _, SystemClock};

use crate::support::{Server, until};

/// What a consumer needs to know: the mode, the address of Redis and that of the provider.
const CONSUMER: &str = "WEIR_TEST_CONSUMER";

/// The calls that a consumer has to make at any time.
const CALLERS: usize = 60;

const LIMIT: u64 = 400;

const SECOND: Period = Period::from_secs(1);

/// How far a consumer's estimate of Redis' clock may be ahead on a busy machine: under `split` its windows begin by it.
const AHEAD: Period = Period::from_millis(50);

/// Counts the calls in each second, by its end: each is the instant at which it was made, in eight bytes.
struct Provider {
    address: String,
    seconds: Arc<Mutex<BTreeMap<Timestamp, Calls>>>,
}

/// The calls in a second, and those in its last [`AHEAD`].
#[derive(Clone, Copy, Default)]
struct Calls {
    all: u64,
    last: u64,
}

/// A process. Killed on drop.
struct Consumer(Child);

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address").to_string();
        let seconds = Arc::<Mutex<BTreeMap<Timestamp, Calls>>>::default();
        let counted = Arc::clone(&seconds);
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (mut connection, seconds) = (connection.expect("a connection"), Arc::clone(&counted));
                thread::spawn(move || {
                    let mut call = [0; 8];
                    while connection.read_exact(&mut call).is_ok() {
                        let at = Timestamp::from_nanos(u64::from_be_bytes(call));
                        let window = at.window_end(SECOND);
                        let mut seconds = seconds.lock().expect("no panic");
                        let calls = seconds.entry(window).or_default();
                        calls.all += 1;
                        calls.last += u64::from(window.since(at) <= AHEAD);
                    }
                });
            }
        });
        Self { address, seconds }
    }

    /// Returns the calls of the seconds between these. Those above the limit count in the second before if there is
    /// room, since a busy machine may have stopped a consumer between its decision and the call. Under `split`, those
    /// at the end of the second count in the next one.
    fn between(&self, mode: Coordination, from: Timestamp, to: Timestamp) -> Vec<u64> {
        let seconds = self.seconds.lock().expect("no panic");
        let Some(first) = seconds.keys().next() else { return Vec::new() };
        let windows = (0..).map(|i| first.after(Period::from_secs(i))).take_while(|end| *end <= to);
        let (mut early, mut counted) = (0, Vec::<(Timestamp, u64)>::new());
        for end in windows {
            let calls = seconds.get(&end).copied().unwrap_or_default();
            let mut all = calls.all + early;
            if let Some((_, before)) = counted.last_mut() {
                let late = all.saturating_sub(LIMIT).min(LIMIT.saturating_sub(*before));
                *before += late;
                all -= late;
            }
            early = if mode == Coordination::Split { calls.last.min(all.saturating_sub(LIMIT)) } else { 0 };
            counted.push((end, all - early));
        }
        let first = from.window_end(SECOND);
        counted.into_iter().filter(|(end, _)| *end >= first).map(|(_, calls)| calls).collect()
    }
}

impl Consumer {
    fn start(mode: Coordination, redis: &Server, provider: &Provider) -> Self {
        let child = Command::new(env::current_exe().expect("the test"))
            .args(["--exact", "consumers::consumer", "--nocapture"])
            .env(
                CONSUMER,
                format!(
                    "{} {} {}",
                    mode.name(),
                    format_args!("127.0.0.1:{}", redis.port()),
                    provider.address
                ),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("it can be started"))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of a consumer; no test if it is not started as one.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test that starts it says so by this variable")]
fn consumer() {
    let Ok(value) = env::var(CONSUMER) else { return };
    let parts: Vec<&str> = value.split(' ').collect();
    let [mode, redis, provider] = &parts[..] else { panic!("{value}") };
    let mode = Coordination::parse(mode).expect("a mode");
    let mut provider = TcpStream::connect(provider).expect("the provider listens");
    let (calls, stamps) = mpsc::channel::<Timestamp>();
    // ends with the test, which closes the connection
    thread::spawn(move || {
        while let Ok(call) = stamps.recv() {
            if provider.write_all(&call.as_nanos().to_be_bytes()).is_err() {
                std::process::exit(0);
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let rules = format!(
            "domain: partners\ndescriptors:\n  - key: api\n    rate_limit: {{ requests: {LIMIT}, per: 1s }}\n"
        );
        let settings = CoordinationSettings {
            coordination: mode,
            heartbeat: Period::from_millis(500),
            // a busy machine delays replies, and an instance that stops for seconds must not use its old part then
            budget: Period::from_secs(5),
            on_store_failure: if mode == Coordination::Split {
                OnStoreFailure::Deny
            } else {
                OnStoreFailure::Local
            },
            ..CoordinationSettings::default()
        };
        let limiter = Limiter::builder().rules_text(&rules).redis(redis).coordination(settings).build();
        let limiter = limiter.await.expect("valid rules");
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            let (limiter, calls) = (limiter.clone(), calls.clone());
            tasks.spawn(async move {
                loop {
                    let entries = [("api", "stickers")];
                    let wait = Duration::from_secs(30);
                    if limiter.acquire("partners", &entries, Hits(1), wait).await.is_ok() {
                        let _ = calls.send(SystemClock.now());
                    }
                    sleep(Duration::from_millis(1)).await;
                }
            });
        }
        tasks.join_next().await;
    });
}

/// Eight of them use all of the limit in every second, and never more, also when one is killed and another one is
/// added.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_use_all_of_a_limit_and_no_more() {
    for mode in [Coordination::Lease, Coordination::Strict, Coordination::Split] {
        let (redis, provider) = (Server::start(), Provider::start());
        let mut consumers: Vec<_> = (0..8).map(|_| Consumer::start(mode, &redis, &provider)).collect();
        let used = |from: Timestamp| {
            let to = SystemClock.now();
            provider.between(
                mode,
                from.after(SECOND),
                Timestamp::from_nanos(to.as_nanos().saturating_sub(1_000_000_000)),
            )
        };
        let started = SystemClock.now();
        // a busy machine takes long to start eight processes
        until("a first call", async || used(started).iter().any(|calls| *calls > 0)).await;
        until("three full seconds", async || {
            used(started).iter().filter(|calls| **calls >= LIMIT * 99 / 100).count() >= 3
        })
        .await;
        let steady = SystemClock.now();
        until("five more seconds", async || used(steady).len() >= 5).await;
        let counted = used(steady);
        assert!(
            counted.iter().sum::<u64>() * 100 >= 99 * LIMIT * counted.len() as u64,
            "{mode:?}: {counted:?}"
        );
        drop(consumers.remove(0));
        let killed = SystemClock.now();
        // its part is used by the others at once, but for what it had been granted; under `split` when it is known to
        // have gone, but for the rest of the division
        let full = if mode == Coordination::Split { LIMIT / 7 * 7 } else { LIMIT };
        until("a full second without it", async || used(killed).contains(&full)).await;
        consumers.push(Consumer::start(mode, &redis, &provider));
        let added = SystemClock.now();
        until("five seconds with the new one", async || used(added).len() >= 5).await;
        let counted = used(added);
        // under `split` a newcomer has its part after four seconds, and the others have left it by then
        let least = if mode == Coordination::Split { LIMIT / 8 * 7 } else { LIMIT * 99 / 100 };
        assert!(counted.iter().sum::<u64>() >= least * counted.len() as u64, "{mode:?}: {counted:?}");
        until("a full second with it", async || used(added).contains(&LIMIT)).await;
        let all = provider.between(
            mode,
            Timestamp::from_nanos(started.as_nanos() - 1_000_000_000),
            SystemClock.now(),
        );
        assert!(all.iter().all(|calls| *calls <= LIMIT), "{mode:?}: {all:?}");
    }
}
