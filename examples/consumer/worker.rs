//! The work: a call of the provider for each job of a queue, none of them above its limit.

use std::{
    io::{self, BufRead},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    sync::{Mutex, mpsc},
    task::JoinSet,
};
use weir_client::{AcquireError, Limiter};
use weir_limit::Hits;
use weir_store::clock::{Clock as _, SystemClock};

/// The most calls that wait or are being made.
const CALLERS: usize = 60;

/// How long a call waits at most before it is tried anew.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Why the work ended before the queue.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Makes a call at `provider` for each line of `queue`, whenever `limiter` permits one. Returns their number.
///
/// # Errors
///
/// If the queue cannot be read or the provider does not answer.
pub(crate) async fn work(
    limiter: Limiter,
    provider: &str,
    queue: impl BufRead + Send + 'static,
) -> Result<usize, Failure> {
    let (jobs, taken) = mpsc::channel(CALLERS);
    // what is not taken yet stays in the queue
    let reader = tokio::task::spawn_blocking(move || {
        queue.lines().try_for_each(|line| jobs.blocking_send(line?).map_err(io::Error::other))
    });
    let taken = Arc::new(Mutex::new(taken));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(call_for_each(Arc::clone(&taken), limiter.clone(), provider.to_owned()));
    }
    // without another owner, the channel closes if all callers fail
    drop(taken);
    let mut made = 0;
    while let Some(caller) = callers.join_next().await {
        made += caller??;
    }
    reader.await??;
    Ok(made)
}

/// Makes the calls of `jobs`, one after the other, over one connection.
async fn call_for_each(
    jobs: Arc<Mutex<mpsc::Receiver<String>>>,
    limiter: Limiter,
    provider: String,
) -> Result<usize, Failure> {
    let stream = TcpStream::connect(&provider).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut made = 0;
    loop {
        let Some(job) = jobs.lock().await.recv().await else { return Ok(made) };
        wait_for_turn(&limiter).await?;
        let now = SystemClock.now().as_nanos().to_string();
        let request = http::Request::post("/send").header("host", &provider).header("x-made-at", now);
        let response = sender.send_request(request.body(Full::new(Bytes::from(job)))?).await?;
        response.into_body().collect().await?;
        made += 1;
    }
}

/// Waits until a call may be made.
async fn wait_for_turn(limiter: &Limiter) -> Result<(), Failure> {
    loop {
        match limiter.acquire("partners", &[("api", "stickers")], Hits(1), MAX_WAIT).await {
            Ok(_) => return Ok(()),
            Err(AcquireError::Timeout { retry_after } | AcquireError::Full { retry_after }) => {
                tokio::time::sleep(retry_after).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
