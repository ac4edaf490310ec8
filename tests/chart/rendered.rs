//! Every example renders to objects that are valid, and that find each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use serde_json::Value;
use weir::settings::{Flags, Settings};
use weir_testing::repository;

use crate::{
    example_values, examples,
    helm::{self, CHART},
    list, pod,
};

/// The oldest version of Kubernetes that the chart admits, and the newest with a schema.
const VERSIONS: &str = "1.30,1.37";

/// Checks manifests against the schemas of Kubernetes. Returns whether they are valid, and the errors.
fn validate(files: &[String]) -> (bool, String) {
    let output = Command::new(repository("target/venv/bin/python3"))
        .arg(repository("scripts/check-manifests.py"))
        .arg(repository("tests/chart/crds"))
        .arg(VERSIONS)
        .args(files)
        .output()
        .expect("Python");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn examples_pass_the_strict_lint() {
    for file in example_values() {
        let output = helm::helm(&["lint", "--strict", CHART, "--values", file.to_str().expect("UTF-8")]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains("[WARNING]"), "{}: {text}", file.display());
    }
}

#[test]
fn objects_are_valid_in_the_oldest_and_the_newest_kubernetes() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut files = Vec::new();
    for file in example_values() {
        for version in VERSIONS.split(',') {
            let (values, name) = (file.to_str().expect("UTF-8"), file.file_name().expect("a name"));
            let yaml = helm::render(&["--values", values, "--kube-version", version]).expect("it renders");
            let manifests = folder.path().join(format!("{version}-{}", name.display()));
            fs::write(&manifests, yaml).expect("a file");
            files.push(manifests.display().to_string());
        }
    }
    let (valid, errors) = validate(&files);
    assert!(valid, "{errors}");

    // the check finds an unknown field, and one of a kind that is not Kubernetes' own
    let broken = fs::read_to_string(&files[0]).expect("a file").replacen("  replicas:", "  replica:", 1);
    fs::write(&files[0], broken).expect("a file");
    let (valid, errors) = validate(&files[..1]);
    assert!(!valid && errors.contains("replica"), "{errors}");
}

#[test]
fn manifests_of_the_examples_are_valid() {
    let files: Vec<String> = ["gateway", "sidecar-inbound", "sidecar-outbound", "waypoint"]
        .iter()
        .map(|name| format!("istio/{name}"))
        .chain(["envoy-gateway/policy".into(), "kubernetes/weir".into()])
        .map(|name| repository(&format!("examples/{name}.yaml")).display().to_string())
        .collect();
    let (valid, errors) = validate(&files);
    assert!(valid, "{errors}");
}

/// Returns whether the labels have everything that the selector demands.
fn selects(selector: &Value, labels: &Value) -> bool {
    let demanded = selector.as_object().expect("a selector");
    !demanded.is_empty() && demanded.iter().all(|(key, value)| labels[key] == *value)
}

#[test]
fn objects_find_each_other() {
    for (name, objects) in examples() {
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        let pods: Vec<(&Value, &Value)> = of_kind("Deployment")
            .chain(of_kind("StatefulSet"))
            .map(|deployment| {
                let labels = &deployment["spec"]["template"]["metadata"]["labels"];
                assert!(selects(&deployment["spec"]["selector"]["matchLabels"], labels), "{name}");
                (labels, &deployment["spec"]["template"]["spec"]["containers"][0]["ports"])
            })
            .collect();
        let selectors = of_kind("Service").map(|service| &service["spec"]["selector"]);
        let policies = of_kind("NetworkPolicy").map(|policy| &policy["spec"]["podSelector"]["matchLabels"]);
        let budgets = of_kind("PodDisruptionBudget").map(|budget| &budget["spec"]["selector"]["matchLabels"]);
        for selector in selectors.chain(policies).chain(budgets) {
            let selected = pods.iter().filter(|(labels, _)| selects(selector, labels)).count();
            assert_eq!(selected, 1, "{name}: {selector} selects one Deployment");
        }
        for service in of_kind("Service") {
            let (_, ports) =
                pods.iter().find(|(labels, _)| selects(&service["spec"]["selector"], labels)).expect("one");
            for port in list(&service["spec"], "ports") {
                let named =
                    ports.as_array().expect("ports").iter().any(|own| own["name"] == port["targetPort"]);
                assert!(named, "{name}: {port}");
            }
        }
        for object in &objects {
            let Some(pod) = pod(object) else { continue };
            let mut volumes: Vec<&Value> =
                list(pod, "volumes").iter().map(|volume| &volume["name"]).collect();
            let claims = list(&object["spec"], "volumeClaimTemplates").iter();
            volumes.extend(claims.map(|claim| &claim["metadata"]["name"]));
            for container in list(pod, "containers") {
                for mount in list(container, "volumeMounts") {
                    assert!(volumes.contains(&&mount["name"]), "{name}: {mount}");
                    assert!(mount.get("subPath").is_none(), "{name}: a mount with subPath never changes");
                }
            }
        }
        let mut seen = BTreeSet::new();
        for object in &objects {
            let id = format!("{} {}", object["kind"], object["metadata"]["name"]);
            assert!(seen.insert(id.clone()), "{name}: two of {id}");
        }
    }
}

#[test]
fn a_monitor_finds_one_service_of_two() {
    let yaml = helm::render(&["--set", "metrics.serviceMonitor.enabled=true,service.headless=true"])
        .expect("it renders");
    let objects = helm::objects(&yaml);
    let monitor = helm::object(&objects, "ServiceMonitor", "weir");
    let selector = &monitor["spec"]["selector"];
    let absent = selector["matchExpressions"][0]["key"].as_str().expect("a key");
    let services = objects.iter().filter(|object| object["kind"] == "Service");
    let found: Vec<&Value> = services
        .map(|service| &service["metadata"])
        .filter(|meta| {
            selects(&selector["matchLabels"], &meta["labels"]) && meta["labels"].get(absent).is_none()
        })
        .map(|meta| &meta["name"])
        .collect();
    assert_eq!(found, ["weir"]);
}

#[test]
fn notes_lead_from_the_installation_to_envoy() {
    let notes = |arguments: &[&str]| {
        let output = helm::helm(
            &[&["install", "weir", CHART, "--namespace", "edge", "--dry-run=client"], arguments].concat(),
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text.split_once("NOTES:").expect("notes").1.to_owned()
    };
    let plain = notes(&[]);
    assert!(
        plain.contains("weir.edge.svc.cluster.local:8081") && plain.contains("WARNING: there are no rules")
    );
    assert!(plain.contains("outbound|8081||weir.edge.svc.cluster.local"));
    let unshared = notes(&["--set", "replicas=2,allowUnsharedReplicas=true,shadowMode=true"]);
    assert!(unshared.contains("WARNING: pods count separately") && unshared.contains("WARNING: shadow mode"));
    let trial = notes(&["--set", "redis.trial.enabled=true,rules.existingConfigMap=r,service.headless=true"]);
    assert!(trial.contains("WARNING: the counts are in a Valkey") && !trial.contains("there are no rules"));
    assert!(trial.contains("weir-headless.edge.svc.cluster.local"));
    assert!(plain.contains("exec deploy/weir -- weir call --domain"));
    // the pod has no certificate of a client, and its port takes no plain text
    let tls = "tls.enabled=true,tls.existingSecret=a,tls.clients.caSecret=b";
    let digest = format!("image.tag=1.2.3,image.digest=sha256:{}", "0".repeat(64));
    let tls = notes(&["--set", tls, "--set", &digest]);
    let call = "weir call --address https://localhost:8081 --tls-ca ca.crt --tls-server-name weir.edge.svc.cluster.local \
                --tls-cert tls.crt --tls-key tls.key --domain";
    assert!(tls.contains(call) && !tls.contains("exec deploy/weir"), "{tls}");
    assert!(tls.contains("takes precedence over the tag 1.2.3"), "{tls}");
}

/// A variable that weir does not know, or a value that it does not take, would stop the pod or have no effect.
#[test]
fn weir_accepts_the_variables_of_every_example() {
    for (name, objects) in examples() {
        let deployments = objects.iter().filter(|object| {
            ["Deployment", "StatefulSet"].iter().any(|kind| object["kind"] == *kind)
                && object["metadata"]["labels"]["app.kubernetes.io/component"] == "ratelimit"
        });
        for deployment in deployments {
            let env = deployment.pointer("/spec/template/spec/containers/0/env").expect("variables");
            let has_sentinels =
                env.as_array().is_some_and(|env| env.iter().any(|variable| variable["value"] == "SENTINEL"));
            let value = |variable: &Value| {
                // those from a Secret are addresses and passwords of Redis
                let from_secret = || if has_sentinels { "main,redis:26379" } else { "redis:6379" }.to_owned();
                variable["value"].as_str().map_or_else(from_secret, str::to_owned)
            };
            let environment: BTreeMap<String, String> = env
                .as_array()
                .expect("a list")
                .iter()
                .map(|variable| (variable["name"].as_str().expect("a name").to_owned(), value(variable)))
                .collect();
            let settings = Settings::resolve(&Flags::default(), &environment);
            let settings = settings.unwrap_or_else(|errors| panic!("{name}: {errors}"));
            assert_eq!(settings.warnings, [""; 0], "{name}");
            assert_eq!(settings.rules.xds.is_some(), name == "xds-values.yaml");
        }
    }
}
