//! The load: requests at a fixed rate over a few connections, as from Envoys.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{self, MissedTickBehavior},
};
use tonic::transport::Channel;
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
    },
};

use super::{
    child::Serving,
    histogram::Histogram,
    model::{Counts, Keys, MODES, Model, window},
    options::Options,
};

/// The most requests in flight. Past it the load waits, and the rate falls.
const MAX_IN_FLIGHT: usize = 2_000;

/// How often the requests are sent that are due.
const TICK: Duration = Duration::from_millis(2);

/// The time after which a request without a response has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A thread that sends requests.
pub(crate) struct Load {
    shared: Arc<Mutex<Shared>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What happened since the last look.
#[derive(Clone)]
pub(crate) struct Taken {
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
    pub(crate) errors: u64,
    /// The text of one of the errors.
    pub(crate) error: Option<String>,
    pub(crate) latencies: Histogram,
    pub(crate) slowest: Duration,
    /// Since the start.
    pub(crate) counts: Counts,
}

struct Shared {
    taken: Taken,
    model: Model,
}

// === impl Taken ===

impl Taken {
    fn new() -> Self {
        let (latencies, slowest) = (Histogram::new(), Duration::ZERO);
        Self {
            admitted: 0,
            rejected: 0,
            errors: 0,
            error: None,
            latencies,
            slowest,
            counts: Counts::default(),
        }
    }
}

// === impl Load ===

impl Load {
    /// Starts to send requests to all `weirs`.
    pub(crate) fn start(weirs: &[Serving], options: &Options) -> Self {
        let shared = Arc::new(Mutex::new(Shared { taken: Taken::new(), model: Model::default() }));
        let stop = Arc::new(AtomicBool::new(false));
        let uris = weirs.iter().flat_map(|weir| {
            let uri = format!("http://{}", weir.address("grpc"));
            std::iter::repeat_n(uri, options.connections.into())
        });
        let send = send(uris.collect(), Arc::clone(&shared), Arc::clone(&stop), options.rate, options.keys);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(send);
        });
        Self { shared, stop, thread }
    }

    /// Returns what happened since the last call.
    pub(crate) fn take(&self) -> Taken {
        let mut shared = self.shared.lock();
        shared.model.close(window());
        let counts = shared.model.counts;
        Taken { counts, ..std::mem::replace(&mut shared.taken, Taken::new()) }
    }

    /// Ends the load, and returns what happened since the last look; all windows count.
    pub(crate) fn stop(self) -> Taken {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the load ends without a panic");
        let mut shared = self.shared.lock();
        shared.model.close(u64::MAX);
        let counts = shared.model.counts;
        Taken { counts, ..std::mem::replace(&mut shared.taken, Taken::new()) }
    }
}

async fn send(uris: Vec<String>, shared: Arc<Mutex<Shared>>, stop: Arc<AtomicBool>, rate: u32, keys: u32) {
    let mut clients = Vec::new();
    for uri in uris {
        clients.push(RateLimitServiceClient::connect(uri).await.expect("it listens"));
    }
    let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let mut keys = Keys::new(1, keys);
    let mut ticks = time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (begun, mut sent) = (Instant::now(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let due = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX) * u64::from(rate) / 1_000;
        while sent < due {
            let permit = Arc::clone(&in_flight).acquire_owned().await.expect("it is open");
            let turn = usize::try_from(sent).unwrap_or(0) % clients.len();
            let (client, shared) = (clients[turn].clone(), Arc::clone(&shared));
            let key = keys.next(begun.elapsed());
            tokio::spawn(async move {
                decide(client, key, &shared).await;
                drop(permit);
            });
            sent += 1;
        }
    }
    // those that are still in flight
    let most = u32::try_from(MAX_IN_FLIGHT).expect("a small number");
    let _ = in_flight.acquire_many(most).await.expect("it is open");
}

/// Sends one request, and records its response.
async fn decide(mut client: RateLimitServiceClient<Channel>, key: (usize, u32), shared: &Mutex<Shared>) {
    let entry = Entry { key: MODES[key.0].to_owned(), value: format!("user-{:010}", key.1) };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: "soak".into(), descriptors: vec![descriptor], hits_addend: 1 };
    let (sent, begun) = (window(), Instant::now());
    let response = time::timeout(TIMEOUT, client.should_rate_limit(request)).await;
    let (received, latency) = (window(), begun.elapsed());
    let mut shared = shared.lock();
    shared.taken.latencies.add(latency);
    shared.taken.slowest = shared.taken.slowest.max(latency);
    let code = match response {
        Ok(Ok(response)) => Ok(response.into_inner().overall_code()),
        Ok(Err(status)) => Err(status.to_string()),
        Err(_) => Err(format!("no response within {TIMEOUT:?}")),
    };
    match code {
        Ok(Code::Ok) => {
            shared.taken.admitted += 1;
            shared.model.admit(key, sent, received);
        }
        Ok(_) => shared.taken.rejected += 1,
        Err(error) => {
            shared.taken.errors += 1;
            shared.taken.error = Some(error);
        }
    }
}
