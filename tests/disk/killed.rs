//! Weirs that are killed under load, or whose machine loses its power: what was written is there afterwards, or what
//! was synced.
//!
//! `WEIR_KILLS` sets the number of ends of each mode; the longer they go on, the more places of the code are hit.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use tokio::time::sleep;
use tonic::transport::Channel;
use weir_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::{
    child::Serving,
    power::Power,
    support::DEADLINE,
    wire::{descriptor, hits, request},
};

const LIMIT: u64 = 4_000_000_000;

const RULES: &str = "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { tiers: [{ requests: 4000000000, per: 365d, algorithm: fixed_window }] }\n";

/// The values that are hit: in turn of a rule, and of buckets that come with requests, paced ones and those that are
/// refilled in steps.
const VALUES: usize = 40;

/// The clients that send at once.
const CLIENTS: usize = 8;

/// What was sent and answered, of each value.
struct Ledger {
    sent: [AtomicU64; VALUES],
    answered: [AtomicU64; VALUES],
}

impl Ledger {
    fn new() -> Self {
        Self {
            sent: [const { AtomicU64::new(0) }; VALUES],
            answered: [const { AtomicU64::new(0) }; VALUES],
        }
    }
}

struct Weir {
    serving: Serving,
    client: Client,
}

/// A client of both protocols.
#[derive(Clone)]
struct Client {
    grpc: RateLimitServiceClient<Channel>,
    redis: MultiplexedConnection,
}

impl Client {
    /// Takes `count` hits of a value, and returns what is left, or none if weir is gone.
    async fn take(&mut self, index: usize, count: u64) -> Option<u64> {
        let value = index.to_string();
        let ask = |command: &str| {
            let mut ask = redis::cmd(command);
            ask.arg(&value);
            ask
        };
        match index % 3 {
            0 => {
                let request = request("shop", [hits(count, descriptor([("k", value.as_str())]))]);
                let response = self.grpc.should_rate_limit(request).await.ok()?.into_inner();
                Some(response.statuses[0].limit_remaining.into())
            }
            1 => {
                let mut ask = ask("CL.THROTTLE");
                ask.arg(LIMIT - 1).arg(1).arg(31_536_000).arg(count);
                let reply: Vec<i64> = ask.query_async(&mut self.redis).await.ok()?;
                u64::try_from(reply[2]).ok()
            }
            _ => {
                let mut ask = ask("RL.REDUCE");
                ask.arg(LIMIT).arg(31_536_000).arg("TAKE").arg(count);
                let before: u64 = ask.query_async(&mut self.redis).await.ok()?;
                Some(before - count)
            }
        }
    }
}

impl Weir {
    async fn start(rules: &str, data: &Path, sync: &str, further: &[(&str, String)]) -> Self {
        let variables = [
            ("BACKEND_TYPE", "disk"),
            ("WEIR_DATA_DIR", data.to_str().expect("a plain path")),
            ("WEIR_DISK_SYNC", sync),
            // an answer that was not synced in time would count as one
            ("WEIR_DECISION_BUDGET", "1m"),
            ("WEIR_STOP_DELAY", "0"),
            ("WEIR_REDIS_PORT", "0"),
            ("WEIR_REDIS_HOST", "127.0.0.1"),
        ];
        let further = further.iter().map(|(name, value)| (*name, value.as_str()));
        let serving = Serving::start(rules, &variables.into_iter().chain(further).collect::<Vec<_>>());
        let grpc = RateLimitServiceClient::connect(format!("http://{}", serving.address("grpc")));
        let address = format!("redis://{}", serving.address("redis"));
        // an answer that comes late is an answer
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
        let redis = redis::Client::open(address).expect("an address");
        let redis = redis.get_multiplexed_async_connection_with_config(&config);
        let client =
            Client { grpc: grpc.await.expect("it listens"), redis: redis.await.expect("it listens") };
        Self { serving, client }
    }

    /// Returns the hits that a value has.
    async fn counted(&mut self, value: usize) -> u64 {
        LIMIT - self.client.take(value, 0).await.expect("a response")
    }
}

/// Sends hits until weir is gone.
async fn load(mut client: Client, ledger: Arc<Ledger>, mut seed: u64, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = usize::try_from(seed >> 33).unwrap_or_default() % VALUES;
        ledger.sent[index].fetch_add(1, Ordering::SeqCst);
        if client.take(index, 1).await.is_none() {
            break;
        }
        ledger.answered[index].fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the number of the last batch that was written, as the file of numbers has it.
fn batch(data: &Path) -> u64 {
    let file = fs::File::open(data.join("progress")).expect("the file of numbers");
    let slots = [0, 4096].map(|offset| {
        let mut slot = [0; 8];
        file.read_exact_at(&mut slot, offset).expect("a slot");
        u64::from_le_bytes(slot)
    });
    slots[0].max(slots[1])
}

/// How a weir ends, and what is left of its files then.
trait End {
    /// Returns further variables of a weir that is about to start with these data.
    fn variables(&mut self, data: &Path) -> Vec<(&'static str, String)>;

    /// Leaves what is left, after the process has been killed.
    fn leave(&mut self, data: &Path);

    /// Returns whether everything is left that a batch of this mode has.
    fn keeps_batches(&self, sync: &str) -> bool;
}

/// The process ends, and the system goes on.
struct Kill;

impl End for Kill {
    fn variables(&mut self, _: &Path) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn leave(&mut self, _: &Path) {}

    fn keeps_batches(&self, _: &str) -> bool {
        true
    }
}

impl End for Power {
    fn variables(&mut self, data: &Path) -> Vec<(&'static str, String)> {
        self.begin(data)
    }

    fn leave(&mut self, data: &Path) {
        self.cut(data);
    }

    fn keeps_batches(&self, sync: &str) -> bool {
        sync != "os"
    }
}

async fn end_again_and_again(sync: &str, mut end: impl End) {
    #[expect(clippy::disallowed_methods, reason = "it sets the test, not weir")]
    let kills = std::env::var("WEIR_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(8);
    let dir = tempfile::tempdir().expect("a directory");
    let (rules, data) = (dir.path().join("rules"), dir.path().join("data"));
    fs::create_dir(&rules).expect("a directory");
    fs::write(rules.join("shop.yaml"), RULES).expect("a file");
    let rules = rules.to_str().expect("a plain path");
    let ledger = Arc::new(Ledger::new());
    let (mut least, mut begun) = ([0; VALUES], Instant::now());
    let mut slowest = Duration::ZERO;
    for kill in 0..kills {
        let mut weir = Weir::start(rules, &data, sync, &end.variables(&data)).await;
        slowest = slowest.max(begun.elapsed());
        for (value, least) in least.iter_mut().enumerate() {
            let counted = weir.counted(value).await;
            let sent = ledger.sent[value].load(Ordering::SeqCst);
            assert!(
                (*least..=sent).contains(&counted),
                "{sync}, kill {kill}: {least} <= {counted} <= {sent}"
            );
            // what is lost is admitted again, and no more than that
            ledger.sent[value].store(counted, Ordering::SeqCst);
            ledger.answered[value].store(counted, Ordering::SeqCst);
        }
        let stop = Arc::<AtomicBool>::default();
        let clients = (0..CLIENTS).map(|client| {
            let seed = (kill * CLIENTS + client) as u64;
            tokio::spawn(load(weir.client.clone(), Arc::clone(&ledger), seed, Arc::clone(&stop)))
        });
        let clients: Vec<_> = clients.collect();
        // at a random moment, but some time after a batch that certainly has what was answered before it
        sleep(Duration::from_millis((kill as u64 * 7_919) % 90)).await;
        let answered = |ledger: &Ledger| ledger.answered.each_ref().map(|hits| hits.load(Ordering::SeqCst));
        least = answered(&ledger);
        if sync == "always" {
            sleep(Duration::from_millis((kill as u64 * 104_729) % 50)).await;
            least = answered(&ledger);
        } else {
            let begun = Instant::now();
            // one batch may have begun before the last answer
            for _ in 0..2 {
                let before = batch(&data);
                while batch(&data) <= before {
                    assert!(begun.elapsed() < DEADLINE, "no batch is written");
                    sleep(Duration::from_millis(1)).await;
                }
            }
            sleep(Duration::from_millis((kill as u64 * 104_729) % 50)).await;
        }
        begun = Instant::now();
        weir.serving.signal("KILL");
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.expect("no panic");
        }
        let (status, output) = weir.serving.ended();
        assert!(!status.success(), "{output}");
        end.leave(&data);
        if !end.keeps_batches(sync) {
            least = [0; VALUES];
        }
    }
    assert!(ledger.answered.iter().any(|hits| hits.load(Ordering::SeqCst) > 0), "hits were counted");
    eprintln!("{sync}: {kills} kills, slowest kill and restart {slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_lost_with_always() {
    end_again_and_again("always", Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_written_batch_is_lost_with_interval() {
    end_again_and_again("interval", Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_written_batch_is_lost_with_os() {
    end_again_and_again("os", Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_lost_with_always_when_the_power_fails() {
    end_again_and_again("always", Power::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_written_batch_is_lost_with_interval_when_the_power_fails() {
    end_again_and_again("interval", Power::new()).await;
}

/// What the system has not written is lost, and weir starts with the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weir_starts_with_os_after_the_power_has_failed() {
    end_again_and_again("os", Power::new()).await;
}

/// A clean stop syncs everything, whatever the mode is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_loses_nothing_even_if_the_power_fails() {
    let power = Power::new();
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let rules = dir.path().join("rules");
    fs::create_dir(&rules).expect("a directory");
    fs::write(rules.join("shop.yaml"), RULES).expect("a file");
    let rules = rules.to_str().expect("a plain path");
    for expected in [0, 3, 6] {
        let mut weir = Weir::start(rules, &data, "os", &power.begin(&data)).await;
        for value in 0..3 {
            assert_eq!(weir.counted(value).await, expected);
            for _ in 0..3 {
                weir.client.take(value, 1).await.expect("a response");
            }
        }
        weir.serving.signal("TERM");
        let (status, output) = weir.serving.ended();
        assert!(status.success(), "{output}");
        power.cut(&data);
    }
}
