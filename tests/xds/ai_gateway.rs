//! The program in the place of Envoy AI Gateway's rate limit service: its command, argument and variables, its rules by
//! xDS, and the requests of its Envoy.

use std::{fs, os::unix::fs::symlink, process::Command, time::Duration};

use tokio::time::sleep;
use tonic::transport::Channel;
use weir_proto::{
    envoy::service::ratelimit::v3::{
        rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
    },
    ratelimit::config::ratelimit::v3::{RateLimitConfig, RateLimitDescriptor},
};

use crate::{
    child::Serving,
    control_plane::{ControlPlane, hourly, within},
    redis_server::Server,
    wire::{descriptor, hits, request},
};

/// The example.
const DEPLOYMENT: &str = include_str!("../../examples/envoy-ai-gateway/ratelimit.yaml");

const DOMAIN: &str = "ai-gateway-quota";

const BACKEND: &str = "default/openai";

type Client = RateLimitServiceClient<Channel>;

/// A weir under the name `ratelimit`, and its Redis.
struct AiGateway {
    redis: Server,
    serving: Serving,
    client: Client,
    _dir: tempfile::TempDir,
}

fn named(key: &str, value: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.into(),
        value: value.into(),
        descriptors,
        ..RateLimitDescriptor::default()
    }
}

/// A quota, which every leaf of its rules is.
fn quota(key: &str, value: &str, limit: u32) -> RateLimitDescriptor {
    let rate_limit = Some(hourly(limit));
    RateLimitDescriptor { rate_limit, quota_mode: true, ..named(key, value, Vec::new()) }
}

/// The rules of a policy for two models: one with a default bucket only, and one with a bucket for a header's value,
/// one for each value of another header, and a default.
fn rules() -> RateLimitConfig {
    let simple = quota("model_name_override", "quota-test-model", 10);
    let premium = "rule-0-x-tier|premium-match-0";
    let buckets = vec![
        quota(premium, premium, 30),
        quota("rule-1-x-user-match-0", "", 5),
        quota("rule-2-match--1", "rule-2-match--1", 8),
    ];
    let with_rules = named("model_name_override", "gpt", buckets);
    RateLimitConfig {
        name: DOMAIN.into(),
        domain: DOMAIN.into(),
        descriptors: vec![named("backend_name", BACKEND, vec![simple, with_rules])],
    }
}

/// Returns the variables of the deployment.
fn deployed_variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    DEPLOYMENT.lines().filter_map(|line| {
        let entry = line.trim().strip_prefix("- { name: ")?.strip_suffix(" }")?;
        let (name, value) = entry.split_once(", value: ")?;
        Some((name, value.trim_matches('"')))
    })
}

/// Returns the arguments of the deployment.
fn arguments() -> impl Iterator<Item = &'static str> {
    let line = DEPLOYMENT.lines().find_map(|line| line.trim().strip_prefix("args: [")?.strip_suffix("]"));
    line.expect("it has arguments").split(", ")
}

#[test]
fn the_deployment_is_that_of_envoy_ai_gateway() {
    let own = ["WEIR_COORDINATION", "WEIR_DECISION_BUDGET"];
    let variables: Vec<&str> =
        deployed_variables().map(|(name, _)| name).filter(|name| !own.contains(name)).collect();
    let published = [
        "LOG_LEVEL",
        "REDIS_SOCKET_TYPE",
        "REDIS_URL",
        "RUNTIME_ROOT",
        "RUNTIME_SUBDIRECTORY",
        "USE_STATSD",
        "CONFIG_TYPE",
        "CONFIG_GRPC_XDS_NODE_ID",
        "CONFIG_GRPC_XDS_SERVER_URL",
        "GRPC_PORT",
    ];
    assert_eq!(variables, published);
    assert_eq!(arguments().count(), 1);
    assert!(DEPLOYMENT.contains("command: [/bin/ratelimit]"));
}

impl AiGateway {
    /// Starts the program by a link with the name `ratelimit`, as the deployment of the example does. `variables`
    /// override its own.
    async fn start(variables: &[(&str, &str)]) -> Self {
        let (redis, mut control_plane) = (Server::start(), ControlPlane::start().await);
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("bin")).expect("a directory in it");
        let program = dir.path().join("bin/ratelimit");
        symlink(env!("CARGO_BIN_EXE_weir"), &program).expect("a link");
        let mut command = Command::new(program);
        command.args(arguments()).env_clear().envs(deployed_variables());
        command.envs([
            ("REDIS_URL", &*format!("127.0.0.1:{}", redis.port())),
            ("CONFIG_GRPC_XDS_SERVER_URL", &control_plane.address.to_string()),
            // not on the fixed ports
            ("GRPC_HOST", "127.0.0.1"),
            ("GRPC_PORT", "0"),
            ("HOST", "127.0.0.1"),
            ("PORT", "0"),
            ("DEBUG_HOST", "127.0.0.1"),
            ("DEBUG_PORT", "0"),
            ("WEIR_STOP_DELAY", "0"),
            // no decision of the fallback on a busy machine, since that counts no rejected hit
            ("WEIR_DECISION_BUDGET", "20s"),
        ]);
        command.envs(variables.iter().copied());
        let started = tokio::task::spawn_blocking(move || Serving::start_command(command));
        let mut stream = control_plane.stream().await;
        assert_eq!(stream.request().await.node.expect("a node").id, "envoy-ai-gateway-ratelimit");
        stream.accepted("1", "a", &[rules()]).await;
        // the stream stays open as long as the task
        tokio::spawn(async move {
            let _open = (control_plane, stream);
            std::future::pending::<()>().await;
        });
        let serving = started.await.expect("it starts");
        let client =
            Client::connect(format!("http://{}", serving.address("grpc"))).await.expect("it listens");
        Self { redis, serving, client, _dir: dir }
    }

    /// Asks about `count` hits of a descriptor below the backend, as Envoy does when a request arrives and when it
    /// ends. Returns the code and what is left.
    async fn ask<const N: usize>(&mut self, count: u64, entries: [(&str, &str); N]) -> (Code, u32) {
        let descriptor = hits(count, descriptor(entries));
        let answer = self.client.should_rate_limit(request(DOMAIN, [descriptor])).await.expect("an answer");
        let answer = answer.into_inner();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    }

    /// Waits until the one key in Redis that matches `pattern` has the value `expected`.
    async fn until_counted(&self, pattern: &str, expected: u64) {
        let counting = async {
            loop {
                let keys: Vec<String> = self.redis.send(&["KEYS", pattern]);
                assert!(keys.len() <= 1, "{keys:?}");
                if keys.first().is_some_and(|key| self.redis.send::<u64>(&["GET", key]) == expected) {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        within(counting).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_takes_the_place_of_envoy_ai_gateways_rate_limit_service() {
    for mode in ["auto", "strict"] {
        let mut gateway = AiGateway::start(&[("WEIR_COORDINATION", mode)]).await;
        let model = [("backend_name", BACKEND), ("model_name_override", "quota-test-model")];
        // a request, its 20 tokens when it ends, and the next request
        assert_eq!(gateway.ask(1, model).await, (Code::Ok, 9), "{mode}");
        assert_eq!(gateway.ask(20, model).await, (Code::OverLimit, 0), "{mode}");
        let key = "ai-gateway-quota_backend_name_*_model_name_override_quota-test-model_*";
        gateway.until_counted(key, 21).await;
        assert_eq!(gateway.ask(1, model).await, (Code::OverLimit, 0), "{mode}");
        gateway.until_counted(key, 22).await;

        // buckets of a header's value, of each value, and the default
        let gpt = ("model_name_override", "gpt");
        let premium = "rule-0-x-tier|premium-match-0";
        let bucket = |key, value| [("backend_name", BACKEND), gpt, (key, value)];
        assert_eq!(gateway.ask(1, bucket(premium, premium)).await, (Code::Ok, 29), "{mode}");
        for user in ["ann", "bob"] {
            assert_eq!(gateway.ask(5, bucket("rule-1-x-user-match-0", user)).await, (Code::Ok, 0), "{mode}");
            let over = gateway.ask(1, bucket("rule-1-x-user-match-0", user)).await;
            assert_eq!(over, (Code::OverLimit, 0), "{mode}");
            let key = format!("ai-gateway-quota_*_rule-1-x-user-match-0_{user}_*");
            gateway.until_counted(&key, 6).await;
        }
        assert_eq!(
            gateway.ask(3, bucket("rule-2-match--1", "rule-2-match--1")).await,
            (Code::Ok, 5),
            "{mode}"
        );
        // a request is rejected only if all its quotas are used up
        let quotas = ["ann", "carol"].map(|user| descriptor(bucket("rule-1-x-user-match-0", user)));
        let answer = gateway.client.should_rate_limit(request(DOMAIN, quotas)).await.expect("an answer");
        assert_eq!(answer.into_inner().overall_code(), Code::Ok, "{mode}");

        let AiGateway { serving, .. } = gateway;
        serving.signal("TERM");
        let (status, log) = tokio::task::spawn_blocking(|| serving.ended()).await.expect("it ends");
        assert!(status.success(), "{log}");
        let warnings: Vec<&str> =
            log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
        // the rejections are intended
        let warnings: Vec<&str> = warnings.into_iter().filter(|line| !line.contains(": rejected ")).collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let has_name = warnings[0].contains("--quotaRateLimitServiceAddr");
        assert!(has_name && !log.contains("envoy-gateway-system"), "{warnings:?}");
    }
}

/// How well budgets are kept then is in `weir-limiter`'s tests of `reserve`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_quotas_reserve_tokens_once_there_was_a_cost() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), "reserve: auto\n").expect("a file");
    let path = file.path().to_str().expect("a path in UTF-8");
    let mut gateway = AiGateway::start(&[("WEIR_XDS_DEFAULTS", path)]).await;
    let premium = "rule-0-x-tier|premium-match-0";
    let quota = [("backend_name", BACKEND), ("model_name_override", "gpt"), (premium, premium)];
    let mut left = Vec::new();
    // a request and its tokens; a request that reserves one token beside its hit, and its tokens; one whose tokens end it
    for count in [1, 20, 1, 5, 1, 50, 1] {
        left.push(gateway.ask(count, quota).await);
    }
    let ended = (Code::OverLimit, 0);
    let ok = |left| (Code::Ok, left);
    assert_eq!(left, [ok(29), ok(9), ok(7), ok(3), ok(1), ended, ended]);
    gateway.until_counted(&format!("ai-gateway-quota_*_{premium}_*"), 78).await;
}

#[test]
fn under_its_own_name_an_unknown_argument_is_an_error() {
    let output = crate::child::run(&["--quotaRateLimitServiceAddr=a.b"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(crate::child::stderr(&output).contains("unexpected argument"), "{output:?}");
}
