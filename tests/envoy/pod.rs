//! The pod that the Helm chart renders, run as the kubelet runs it, in front of a real Envoy.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    helm,
    support::{
        Envoy,
        bootstrap::{Bootstrap, endpoint, from_header},
        config_map::ConfigMap,
        http::{self, HttpRequest},
        pod::Pod,
        wait::{self, HOUR},
    },
};

/// Returns values of the chart, with `limit` for each user, and none for others.
fn values(limit: u32) -> String {
    format!(
        "
stop: {{ preStopSeconds: 1, delaySeconds: 2, timeoutSeconds: 10 }}
rules:
  files:
    test.yaml:
      domain: test
      descriptors:
        - {{ key: user, rate_limit: {{ requests: {limit}, per: 1h }} }}
        - {{ key: load, rate_limit: {{ unit: hour, requests_per_unit: 100000000 }} }}
"
    )
}

/// Renders the chart: returns the Deployment, and the data of the ConfigMap of rules.
pub(crate) fn render(values: &str) -> (Value, Value) {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("values.yaml");
    fs::write(&file, values).expect("a file");
    let yaml = helm::render(&["--values", file.to_str().expect("UTF-8")]).expect("it renders");
    let objects = helm::objects(&yaml);
    let data = helm::object(&objects, "ConfigMap", "weir-rules")["data"].clone();
    (helm::object(&objects, "Deployment", "weir").clone(), data)
}

/// Pods of one Deployment behind an Envoy, which knows their health as Kubernetes' endpoints do.
struct Deployed {
    envoy: Envoy,
    pods: Vec<Pod>,
    rules: Vec<ConfigMap>,
    _folder: TempDir,
}

impl Deployed {
    fn start(deployment: &Value, rules: &Value, pods: usize) -> Self {
        let folder = TempDir::new().expect("a folder");
        let (mut maps, mut running) = (Vec::new(), Vec::new());
        for i in 0..pods {
            let own = folder.path().join(format!("pod-{i}"));
            let mount = own.join("rules");
            maps.push(ConfigMap::mount(&mount, rules));
            let volumes = BTreeMap::from([("rules", PathBuf::from(&mount))]);
            running.push(Pod::start(deployment, &volumes, &BTreeMap::new(), &own));
        }
        let lists = json!([from_header("user", "x-user"), from_header("load", "x-load")]);
        let mut bootstrap = Bootstrap::limiting(lists).to_json(running[0].grpc);
        let endpoints: Vec<Value> = running.iter().map(|pod| endpoint(pod.grpc)).collect();
        let cluster = &mut bootstrap["static_resources"]["clusters"][0];
        cluster["load_assignment"]["endpoints"] = json!([{ "lb_endpoints": endpoints }]);
        cluster["health_checks"] = json!([{
            "timeout": "5s", "interval": "0.2s", "no_traffic_interval": "0.2s",
            "unhealthy_threshold": 1, "healthy_threshold": 1, "grpc_health_check": {},
        }]);
        // an endpoint that leaves is left at once, and not used because few are healthy
        cluster["common_lb_config"] = json!({ "healthy_panic_threshold": { "value": 0 } });
        let file = folder.path().join("envoy.json");
        fs::write(&file, bootstrap.to_string()).expect("a file");
        Self { envoy: Envoy::start(&file, folder.path()), pods: running, rules: maps, _folder: folder }
    }

    fn status(&self, header: &str, value: &str) -> u16 {
        http::send(self.envoy.address, &HttpRequest::get("/").with(header, value)).status
    }
}

/// Sends requests through Envoy until `work` is done. Fails the test if any is not answered with 200.
pub(crate) fn under_load<T>(envoy: SocketAddr, work: impl FnOnce(&AtomicU32) -> T) -> T {
    let (done, sent, failures) = (AtomicBool::new(false), AtomicU32::new(0), Mutex::new(Vec::new()));
    let result = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    match http::try_send(envoy, &HttpRequest::get("/").with("x-load", "a")) {
                        Ok(response) if response.status == 200 => {}
                        other => failures.lock().expect("no panic").push(format!("{other:?}")),
                    }
                    sent.fetch_add(1, Relaxed);
                }
            });
        }
        // also if the work fails
        let _stop = StopLoad(&done);
        work(&sent)
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(
        failures.is_empty(),
        "{} of {} requests failed: {:?}",
        failures.len(),
        sent.into_inner(),
        failures[0]
    );
    result
}

struct StopLoad<'a>(&'a AtomicBool);

impl Drop for StopLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Waits until some more requests were sent.
pub(crate) fn await_more(sent: &AtomicU32) {
    let before = sent.load(Relaxed);
    wait::until("more requests are sent", || (sent.load(Relaxed) > before + 50).then_some(()));
}

#[test]
fn the_pod_limits_and_applies_changed_rules_under_load() {
    let (deployment, rules) = render(&values(3));
    let mut deployed = Deployed::start(&deployment, &rules, 1);
    wait::away_from_the_end_of(HOUR);
    for probe in ["readinessProbe", "livenessProbe"] {
        assert!(deployed.pods[0].probe(probe), "{probe}");
    }
    for status in [200, 200, 200, 429, 429] {
        assert_eq!(deployed.status("x-user", "alice"), status);
    }

    let (same, changed) = render(&values(6));
    assert_eq!(same, deployment, "changed rules do not replace the pod");
    under_load(deployed.envoy.address, |sent| {
        await_more(sent);
        deployed.rules[0].update(&changed);
        wait::until("the new limit is in force", || {
            (http::send(deployed.envoy.address, &HttpRequest::get("/").with("x-user", "alice")).status == 200)
                .then_some(())
        });
        await_more(sent);
    });
    let metrics = http::send(deployed.pods[0].http, &HttpRequest::get("/metrics")).body;
    assert!(metrics.contains("\nratelimit_service_config_load_error 0\n"), "{metrics}");
    let output = deployed.pods[0].output();
    // rejections are logged as warnings
    let told = output.lines().filter(|line| !line.contains("\"@message\":\"rejected\""));
    assert!(told.clone().count() > 0, "{output}");
    assert!(told.clone().all(|line| line.contains("\"level\":\"info\"")), "{output}");
    // a new file brings a new link, and a removed one takes its link along
    let moved = json!({ "moved.yaml": changed["test.yaml"].as_str().expect("rules").replace(": 6", ": 20") });
    deployed.rules[0].update(&moved);
    wait::until("the moved rules are in force", || {
        (deployed.status("x-user", "bob") == 200 && deployed.status("x-user", "alice") == 200).then_some(())
    });
}

#[test]
fn a_pod_stops_under_load_without_a_failed_call() {
    let (deployment, rules) = render(&values(3));
    let mut deployed = Deployed::start(&deployment, &rules, 2);
    let mut stopping = deployed.pods.remove(0);
    under_load(deployed.envoy.address, |sent| {
        await_more(sent);
        assert!(stopping.stop(), "it exits with 0 within its grace period: {}", stopping.output());
        await_more(sent);
    });
    assert!(deployed.pods[0].probe("readinessProbe"));
}
