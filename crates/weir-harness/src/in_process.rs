//! Runs all of weir in the test's process, with real sockets on free ports and a clock that the test sets.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};
use tonic::{Status, transport::Channel};
use weir::{
    app::{Addresses, App, AppError, Reload},
    settings::{Flags, Settings},
};
use weir_limit::{Period, Timestamp};
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
};
use weir_store::clock::ManualClock;

pub use weir_testing::wait::{DEADLINE, until};

use crate::local;
pub use crate::local::get;

/// 2009-02-13 23:31:30 UTC: the 30th second of a minute, and the 1,890th of an hour.
pub const NOW: u64 = 1_234_567_890;

pub type Client = RateLimitServiceClient<Channel>;

pub struct Weir {
    pub addresses: Addresses,
    pub clock: Arc<ManualClock>,
    pub client: Client,
    pub reload: Reload,
    dir: TempDir,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), AppError>>,
}

impl Weir {
    pub async fn start(rules: &str) -> Self {
        Self::start_with(rules, &[]).await
    }

    pub async fn start_with(rules: &str, variables: &[(&str, &str)]) -> Self {
        Self::try_start(rules, variables).await.expect("it starts")
    }

    pub async fn try_start(rules: &str, variables: &[(&str, &str)]) -> Result<Self, AppError> {
        Self::try_start_files(&[("rules.yaml", rules)], variables).await
    }

    pub async fn try_start_files(
        files: &[(&str, &str)],
        variables: &[(&str, &str)],
    ) -> Result<Self, AppError> {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("config")).expect("a directory in it");
        for (name, text) in files {
            fs::write(dir.path().join("config").join(name), text).expect("a file in that");
        }
        let settings = settings(&dir, variables);
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(NOW)));
        let app = Box::pin(App::bind_with(settings, Arc::clone(&clock) as _)).await?;
        let (addresses, reload) = (app.addresses().clone(), app.reload());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(app.run(async move {
            // a failing test drops the sender, which stops it as well
            let _ = stopped.await;
        }));
        let client = connect(&addresses).await;
        Ok(Self { addresses, clock, client, reload, dir, stop, task })
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("config/rules.yaml")
    }

    pub async fn try_decide(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.client.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    pub async fn decide(&mut self, request: RateLimitRequest) -> RateLimitResponse {
        self.try_decide(request).await.expect("a response")
    }

    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Period::from_secs(seconds));
    }

    pub fn stop(self) -> JoinHandle<Result<(), AppError>> {
        self.stop.send(()).expect("it has not stopped yet");
        self.task
    }
}

pub async fn connect(addresses: &Addresses) -> Client {
    Client::connect(uri(addresses)).await.expect("it listens")
}

pub fn uri(addresses: &Addresses) -> String {
    match &addresses.grpc {
        weir_server::net::BoundAddress::Tcp(address) => format!("http://{address}"),
        weir_server::net::BoundAddress::Unix(path) => format!("unix:{}", path.display()),
    }
}

/// Replaces the file atomically with `text`, as editors and deployments do.
pub fn replace(file: &Path, text: &str) {
    let beside = file.parent().and_then(Path::parent).expect("a directory above").join("next");
    fs::write(&beside, text).expect("a file");
    fs::rename(&beside, file).expect("the file is replaced");
}

fn settings(dir: &TempDir, variables: &[(&str, &str)]) -> Settings {
    let root = dir.path().to_str().expect("a path in UTF-8");
    let variables: Vec<(&str, String)> =
        variables.iter().map(|(name, value)| (*name, value.replace("{dir}", root))).collect();
    let variables = variables.iter().map(|(name, value)| (*name, value.as_str()));
    let variables: Vec<(&str, &str)> = [("RUNTIME_ROOT", root)].into_iter().chain(variables).collect();
    local::settings(&Flags::default(), &variables)
}
