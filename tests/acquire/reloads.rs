//! Ten thousand callers wait at a weir process, whose rules are replaced on disk: the configuration server of a fleet
//! of consumers.
//!
//! Real clocks run, so each deadline is in the middle of a window: a delay of a quarter of one changes no
//! outcome. Windows are as long as this machine needs for that.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinSet, time};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use weir_limit::{Period, Timestamp};
use weir_proto::weir::v1::{
    AcquireRequest, AcquireResponse, acquire_request::Entry, acquire_response::Outcome,
    limiter_client::LimiterClient,
};
use weir_store::clock::{Clock as _, SystemClock};

use super::{
    child::Serving,
    in_process::{get, replace, until},
};

/// The callers that wait, and those of each stream.
const WAITERS: u64 = 10_000;
const OF_STREAM: u64 = 1_000;

/// The hits of a window before the reload.
const LIMIT: u64 = 2_000;

/// The shortest window that is tried, and the longest.
const SHORTEST: Period = Period::from_secs(2);
const LONGEST: Period = Period::from_secs(16);

/// What is to become of a caller: it is admitted in the window with this number, or told at the reload that this would
/// be its window. Windows are counted from the one in which the first caller comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Admitted(u64),
    Told(u64),
}

/// Collects the answers of each stream, by the callers' places in the line.
type Streams = JoinSet<Vec<(u64, Answered)>>;

/// A caller, by its place in the line, and its answer.
struct Answered {
    sent: Timestamp,
    response: AcquireResponse,
}

struct World {
    weir: Serving,
    /// The length of a window.
    period: Period,
    /// The start of the window with the number 0.
    start: Timestamp,
    dir: TempDir,
}

async fn connect(weir: &Serving) -> LimiterClient<Channel> {
    LimiterClient::connect(format!("http://{}", weir.address("grpc"))).await.expect("it listens")
}

fn rules(requests: u64, period: Period) -> String {
    format!(
        "domain: partners\ndescriptors:\n  - key: api\n    rate_limit: {{ requests: {requests}, per: {period}, \
         algorithm: fixed_window }}\n"
    )
}

fn request(hits: u64, max_wait: Period) -> AcquireRequest {
    let nanos = max_wait.as_nanos();
    AcquireRequest {
        domain: "partners".to_owned(),
        entries: vec![Entry { key: "api".to_owned(), value: "stickers".to_owned() }],
        hits,
        max_wait: Some(prost_types::Duration {
            seconds: i64::try_from(nanos / 1_000_000_000).expect("short"),
            nanos: i32::try_from(nanos % 1_000_000_000).expect("less than a second"),
        }),
        ..AcquireRequest::default()
    }
}

fn period(duration: Option<prost_types::Duration>) -> Period {
    let duration = duration.unwrap_or_default();
    let nanos = duration.seconds * 1_000_000_000 + i64::from(duration.nanos);
    Period::from_nanos(u64::try_from(nanos).expect("not negative"))
}

/// Returns what becomes of callers whose deadlines are in the windows `deadlines`, if the limit is another one from
/// some instant of the window `changes` on.
fn walk(deadlines: &[u64], after: u64, changes: u64) -> Vec<Fate> {
    let room = |window: u64| match window.cmp(&changes) {
        std::cmp::Ordering::Less => LIMIT,
        std::cmp::Ordering::Equal => LIMIT.max(after),
        std::cmp::Ordering::Greater => after,
    };
    let (mut window, mut used) = (1, 0);
    let fate = |deadline: &u64| {
        if used == room(window) {
            (window, used) = (window + 1, 0);
        }
        if *deadline < window {
            return Fate::Told(window);
        }
        used += 1;
        Fate::Admitted(window)
    };
    deadlines.iter().map(fate).collect()
}

// === impl World ===

impl World {
    /// Has ten thousand callers wait and the limit become another one. Returns what became of each, and
    /// checks that it is what [`walk`] says.
    async fn change(deadlines: &[u64], after: u64) -> (Self, Vec<Fate>) {
        let mut period = SHORTEST;
        loop {
            let world = Self::new(period).await;
            if let Some(fates) = world.try_change(deadlines, after).await {
                return (world, fates);
            }
            period = Period::from_nanos(2 * period.as_nanos());
            assert!(period <= LONGEST, "they do not wait, or are not told, in time");
        }
    }

    /// Starts a weir whose present window has no hits left.
    async fn new(period: Period) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("rules")).expect("a directory in it");
        fs::write(dir.path().join("rules/rules.yaml"), rules(LIMIT, period)).expect("a file in that");
        let path = dir.path().join("rules").to_str().expect("a plain path").to_owned();
        let weir = Serving::start(&path, &[("WEIR_STOP_DELAY", "0"), ("WEIR_MAX_WAIT", "1h")]);
        let mut client = connect(&weir).await;
        loop {
            let begun = SystemClock.now();
            time::sleep(begun.window_end(period).since(begun).into()).await;
            let start = SystemClock.now().window_end(period);
            let taken = client.acquire(request(LIMIT, Period::default())).await.expect("a response");
            if taken.into_inner().outcome() == Outcome::Admitted
                && SystemClock.now().window_end(period) == start
            {
                let start = Timestamp::from_nanos(start.as_nanos() - period.as_nanos());
                return Self { weir, period, start, dir };
            }
        }
    }

    fn file(&self) -> std::path::PathBuf {
        Path::new(self.dir.path()).join("rules/rules.yaml")
    }

    async fn metric(&self, name: &str) -> u64 {
        let page = get(self.weir.address("http").parse().expect("an address"), "/metrics").await;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().expect("a whole number"))
    }

    /// Returns the length of one of `parts` of a window.
    fn part(&self, parts: u64) -> Period {
        Period::from_nanos(self.period.as_nanos() / parts)
    }

    /// Returns the most that a message may be late: the server's clock stands at the instant of a request
    /// only when that arrives.
    fn tolerance(&self) -> Period {
        self.part(4)
    }

    fn start_of(&self, window: u64) -> Timestamp {
        self.start.after(Period::from_nanos(self.period.as_nanos() * window))
    }

    /// Returns the number of the window of `at`.
    fn window(&self, at: Timestamp) -> u64 {
        at.since(self.start).as_nanos() / self.period.as_nanos()
    }

    /// Returns the middle of a window.
    fn middle(&self, window: u64) -> Timestamp {
        self.start_of(window).after(self.part(2))
    }

    /// Has callers with `deadlines` wait, one after the other, in streams. Returns what collects their answers.
    /// None if the machine is too slow: some came later than messages may be, or when the first one's window
    /// had begun.
    async fn wait(&self, deadlines: &[u64]) -> Option<Streams> {
        let mut streams = JoinSet::new();
        for (stream, deadlines) in (0..).zip(deadlines.chunks(usize::try_from(OF_STREAM).expect("few"))) {
            let begun = SystemClock.now();
            let (send, requests) = mpsc::unbounded_channel();
            let mut instants = BTreeMap::new();
            for (i, deadline) in (0..).zip(deadlines) {
                let (id, now) = (stream * OF_STREAM + i, SystemClock.now());
                instants.insert(id, now);
                let max_wait = self.middle(*deadline).since(now);
                send.send(AcquireRequest { id, ..request(1, max_wait) }).expect("it is open");
            }
            drop(send);
            // a connection of its own, whose requests have memory of their own
            let mut client = connect(&self.weir).await;
            streams.spawn(async move {
                let responses = client.acquire_stream(UnboundedReceiverStream::new(requests)).await;
                let mut responses = responses.expect("a stream").into_inner();
                let mut answered = Vec::new();
                while let Some(response) = responses.message().await.expect("a response") {
                    answered.push((response.id, Answered { sent: instants[&response.id], response }));
                }
                answered
            });
            // the next ones come behind them
            let is_late = || {
                let now = SystemClock.now();
                now.since(begun) > self.tolerance() || self.window(now) > 0
            };
            until("they wait", async || {
                is_late() || self.metric("weir_waits_total").await >= (stream + 1) * OF_STREAM
            })
            .await;
            if is_late() {
                return None;
            }
        }
        Some(streams)
    }

    /// Replaces the limit early in a window. Returns the numbers of the windows in which that may have taken effect:
    /// mostly one.
    async fn reload(&self, limit: u64) -> std::ops::RangeInclusive<u64> {
        let loaded = self.metric("ratelimit_service_config_load_success").await;
        until("the start of a window", async || {
            let now = SystemClock.now();
            let window = self.window(now);
            window >= 1 && now.since(self.start_of(window)) < self.part(8)
        })
        .await;
        let first = self.window(SystemClock.now());
        replace(&self.file(), &rules(limit, self.period));
        until("the new rules", async || self.metric("ratelimit_service_config_load_success").await > loaded)
            .await;
        first..=self.window(SystemClock.now())
    }

    /// Does so. None if the machine is too slow for windows of this length.
    async fn try_change(&self, deadlines: &[u64], after: u64) -> Option<Vec<Fate>> {
        let streams = self.wait(deadlines).await?;
        let changes = self.reload(after).await;
        // the last deadline is in the thirteenth window
        let longest = Duration::from(self.period) * 60;
        let answers = time::timeout(longest, streams.join_all()).await.expect("all end");
        let answers: BTreeMap<u64, Answered> = answers.into_iter().flatten().collect();
        assert_eq!(answers.len(), deadlines.len());
        let decided = |answered: &Answered| answered.sent.after(period(answered.response.waited));
        for (answered, deadline) in answers.values().zip(deadlines) {
            // long before their deadlines
            let latest = match answered.response.outcome() {
                Outcome::Admitted => self.middle(*deadline),
                _ => self.start_of(changes.end() + 1).after(self.tolerance()),
            };
            let decided = decided(answered);
            assert!(decided <= latest, "{:?} until {latest:?}, decided {decided:?}", answered.response);
        }
        // `retry_after` is as of the reload, and `waited` as of the answer, which must be in the same window
        let told_by = self.middle(*changes.start());
        let mut told = answers.values().filter(|answered| answered.response.outcome() == Outcome::Timeout);
        if told.any(|answered| decided(answered) > told_by) {
            return None;
        }
        let fates: Vec<Fate> = answers.values().map(|answered| self.fate(answered)).collect();
        let expected: Vec<Vec<Fate>> = changes.clone().map(|window| walk(deadlines, after, window)).collect();
        let differs = |expected: &Vec<Fate>| {
            let mut pairs = fates.iter().zip(expected).enumerate();
            pairs.find_map(|(i, (got, expected))| {
                (got != expected).then(|| format!("caller {i}: {got:?} instead of {expected:?}"))
            })
        };
        let differences: Vec<_> = expected.iter().map(differs).collect();
        assert!(differences.contains(&None), "reloaded in {changes:?}: {differences:?}");
        Some(fates)
    }

    /// Returns the window in which a caller was admitted, or would be after its `retry_after`.
    fn fate(&self, Answered { sent, response }: &Answered) -> Fate {
        let decided = sent.after(period(response.waited)).after(self.tolerance());
        match response.outcome() {
            Outcome::Admitted => Fate::Admitted(self.window(decided)),
            Outcome::Timeout => Fate::Told(self.window(decided.after(period(response.retry_after)))),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the window in which each caller is served if nothing changes.
fn windows() -> impl Iterator<Item = u64> {
    (0..WAITERS).map(|place| place / LIMIT + 1)
}

fn in_window(fates: &[Fate], window: u64) -> u64 {
    fates.iter().filter(|fate| **fate == Fate::Admitted(window)).count() as u64
}

/// Some can wait for their own window only, some for two more, some for twice as long: exactly those that are too late
/// now are told at once, and the others are served in time and in their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_halved_limit_tells_at_once_who_cannot_be_served_in_time() {
    let deadlines: Vec<u64> =
        windows().zip(0..).map(|(window, i)| [window, window + 2, 2 * window + 3][i % 3]).collect();
    let (world, fates) = World::change(&deadlines, LIMIT / 2).await;
    let told = fates.iter().filter(|fate| matches!(fate, Fate::Told(_))).count();
    assert!((1_000..6_000).contains(&told), "{told} were told");
    let last = world.window(SystemClock.now());
    assert!((1..=last).all(|window| in_window(&fates, window) <= LIMIT), "{fates:?}");
}

/// Nobody is told, and the line takes half of the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doubled_limit_serves_the_line_in_half_the_time() {
    let deadlines: Vec<u64> = windows().collect();
    let (_, fates) = World::change(&deadlines, 2 * LIMIT).await;
    let windows = (1..=5).filter(|window| in_window(&fates, *window) > 0).count();
    assert!(windows <= 3 && !fates.iter().any(|fate| matches!(fate, Fate::Told(_))), "{windows} windows");
}
