use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, LazyLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use weir_limit::TableRows;

type RulesJob = Box<dyn FnOnce() + Send>;

/// For all loads: allocators keep what was freed for its thread, so all threads of a pool would keep a load's memory.
static THREAD: LazyLock<mpsc::Sender<RulesJob>> = LazyLock::new(|| {
    let (jobs, received) = mpsc::channel::<RulesJob>();
    let run = move || received.into_iter().for_each(|job| job());
    // rules may be nested as deeply as messages are
    let thread = thread::Builder::new().name("weir-rules".into()).stack_size(8 << 20);
    thread.spawn(run).expect("the system can start a thread");
    jobs
});

/// Reading, parsing and compiling rules may take seconds, which must not delay requests. Panics if `work` does, or if
/// the system cannot start a thread.
pub async fn on_rules_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = oneshot::channel();
    // an error means that nobody waits for it any more
    let job = move || drop(done.send(catch_unwind(AssertUnwindSafe(work))));
    THREAD.send(Box::new(job)).expect("the thread outlives the process's other parts");
    match outcome.await.expect("a job sends its outcome") {
        Ok(outcome) => outcome,
        Err(panicked) => resume_unwind(panicked),
    }
}

/// How long requests may keep rules that were replaced before one of them frees their tables.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

const REQUESTS_POLL: Duration = Duration::from_millis(10);

/// Frees the tables of rules that were replaced, once no request uses them. Freeing a million values takes milliseconds,
/// which must not delay a request either: call it on the rules' thread.
pub fn free_tables(tables: Vec<Arc<TableRows>>) {
    let deadline = Instant::now() + LAST_REQUESTS;
    for table in tables {
        while Arc::strong_count(&table) > 1 && Instant::now() < deadline {
            thread::sleep(REQUESTS_POLL);
        }
    }
}
