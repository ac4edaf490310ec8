//! Labels, annotations and names: each key is there once, and each text stays a text.

use std::fs;

use serde_json::{Value, json};

use crate::helm::{CHART, helm, object, objects, render};

/// Renders with files of values, of which later ones take precedence.
fn rendered(values: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut arguments = Vec::new();
    for (i, values) in values.iter().enumerate() {
        let file = folder.path().join(format!("{i}.yaml"));
        fs::write(&file, values).expect("a file");
        arguments.extend(["--values".to_owned(), file.display().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    objects(&render(&arguments).unwrap_or_else(|error| panic!("{values:?}: {error}")))
}

const EVERYTHING: &str = "
redis: { trial: { enabled: true } }
service: { headless: true, http: true }
networkPolicy: { enabled: true }
metrics: { podMonitor: { enabled: true }, prometheusRule: { enabled: true }, dashboard: { enabled: true } }
autoscaling: { enabled: true }
";

/// Tools such as kustomize refuse a key that is there twice.
#[test]
fn labels_and_annotations_that_are_given_twice_are_there_once() {
    let given = "
commonLabels: { app.kubernetes.io/part-of: shop, helm.sh/chart: mine, team: edge, grafana_dashboard: '2' }
commonAnnotations: { helm.sh/hook: post-install, a: common }
podLabels: { team: limits }
podAnnotations: { kubectl.kubernetes.io/default-container: sidecar, checksum/redis: mine }
service: { labels: { team: service, weir/headless: 'false' }, annotations: { a: service } }
serviceAccount: { annotations: { a: account } }
rules: { check: { podAnnotations: { sidecar.istio.io/inject: 'true' } } }
";
    // reading them fails at a duplicate key
    let objects = rendered(&[EVERYTHING, given]);
    assert!(serde_saphyr::from_str::<Value>("a: 1\na: 1").is_err());
    let labels = |kind: &str, name: &str| object(&objects, kind, name)["metadata"]["labels"].clone();
    let deployment = object(&objects, "Deployment", "weir");
    assert_eq!(deployment["metadata"]["labels"]["team"], "edge");
    assert_eq!(deployment["metadata"]["labels"]["app.kubernetes.io/part-of"], "shop");
    assert_eq!(deployment["metadata"]["labels"]["helm.sh/chart"], "mine");
    let pod = &deployment["spec"]["template"]["metadata"];
    assert_eq!(pod["labels"]["team"], "limits");
    assert_eq!(
        pod["annotations"],
        json!({ "kubectl.kubernetes.io/default-container": "sidecar", "checksum/redis": "mine" })
    );
    assert_eq!(labels("Service", "weir")["team"], "service");
    assert_eq!(labels("Service", "weir-headless")["weir/headless"], "true");
    assert_eq!(labels("ConfigMap", "weir-dashboard")["grafana_dashboard"], "1");
    let job = object(&objects, "Job", "weir-check-rules");
    assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "pre-install,pre-upgrade");
    assert_eq!(job["spec"]["template"]["metadata"]["annotations"]["sidecar.istio.io/inject"], "true");
    assert_eq!(object(&objects, "Service", "weir")["metadata"]["annotations"]["a"], "service");
    assert_eq!(object(&objects, "ServiceAccount", "weir")["metadata"]["annotations"]["a"], "account");
    for object in objects.iter().filter(|object| !object["metadata"]["labels"].is_null()) {
        let labels = &object["metadata"]["labels"];
        let component = if object["metadata"]["name"] == "weir-valkey" && object["kind"] != "NetworkPolicy" {
            "trial-store"
        } else {
            "ratelimit"
        };
        assert_eq!(labels["app.kubernetes.io/component"], component, "{}", object["kind"]);
    }
}

/// Helm keeps the null of an overlay if the values of the chart do not have its key.
#[test]
fn an_overlay_removes_with_null() {
    let base = "
rules: { files: { a.yaml: { domain: a }, b.yaml: { domain: b } } }
env: { NEAR_LIMIT_RATIO: 0.5, LOG_LEVEL: warn, REDIS_URL: 'a:1' }
commonLabels: { team: edge, tier: one }
commonAnnotations: { a: b }
podLabels: { p: q }
podAnnotations: { p: q }
nodeSelector: { disk: fast }
service: { annotations: { a: b }, labels: { a: b } }
metrics: { prometheusRule: { alertLabels: { team: edge, severity: page } } }
";
    let overlay = "
rules: { files: { a.yaml: null } }
env: { NEAR_LIMIT_RATIO: null, LOG_LEVEL: null, REDIS_URL: null }
commonLabels: { team: null }
commonAnnotations: { a: null }
podLabels: { p: null }
podAnnotations: { p: null }
nodeSelector: { disk: null }
service: { annotations: { a: null }, labels: { a: null } }
metrics: { prometheusRule: { alertLabels: { severity: null, team: null } } }
";
    let objects = rendered(&[EVERYTHING, base, overlay]);
    for object in &objects {
        let text = object.to_string();
        assert!(!text.contains("null") && !text.contains("<nil>"), "{text}");
        assert_eq!(object["metadata"]["labels"]["tier"], "one", "{text}");
        assert!(object["metadata"]["labels"].get("team").is_none(), "{text}");
    }
    for name in ["weir-rules", "weir-check-rules"] {
        let files = object(&objects, "ConfigMap", name)["data"].as_object().expect("files");
        assert_eq!(files.keys().collect::<Vec<_>>(), ["b.yaml"]);
    }
    let pod = &object(&objects, "Deployment", "weir")["spec"]["template"];
    assert!(pod["metadata"]["labels"].get("p").is_none() && pod["spec"].get("nodeSelector").is_none());
    let variables = pod["spec"]["containers"][0]["env"].as_array().expect("variables");
    let variable = |name: &str| variables.iter().find(|variable| variable["name"] == name);
    assert_eq!(variable("NEAR_LIMIT_RATIO"), None);
    // the chart's own value
    assert_eq!(variable("LOG_LEVEL"), Some(&json!({ "name": "LOG_LEVEL", "value": "info" })));
    assert!(variable("REDIS_URL").expect("the trial's")["valueFrom"].is_object());
    let alert = &object(&objects, "PrometheusRule", "weir")["spec"]["groups"][0]["rules"][0];
    assert_eq!(alert["labels"], json!({ "severity": "critical" }));
}

/// `replicas: null` leaves the field to whoever has the number.
#[test]
fn a_number_of_pods_that_is_null_is_no_zero() {
    let spec = |values: &str| object(&rendered(&[values]), "Deployment", "weir")["spec"].clone();
    assert!(spec("redis: { url: 'a:1' }\nreplicas: null").get("replicas").is_none());
    assert_eq!(spec("replicas: 0")["replicas"], 0);
    // weir has a default for each setting
    let env = spec("maxConnectionAge: null")["template"]["spec"]["containers"][0]["env"].to_string();
    assert!(
        env.contains("GRPC_MAX_CONNECTION_AGE_GRACE") && !env.contains("\"GRPC_MAX_CONNECTION_AGE\""),
        "{env}"
    );
}

#[test]
fn names_that_look_like_numbers_stay_texts() {
    let values = "
nameOverride: '1'
fullnameOverride: 'on'
priorityClassName: '1'
serviceAccount: { name: '2' }
redis: { existingSecret: { name: '3', urlKey: '4', authKey: 'true' } }
rules: { existingConfigMap: '5' }
tls: { enabled: true, existingSecret: 'true', clients: { caSecret: 'null' } }
redisProtocol: { enabled: true, authSecret: '7', authKey: '8' }
service: { headless: true }
autoscaling: { enabled: true }
networkPolicy: { enabled: true }
";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.yaml");
    fs::write(&file, values).expect("a file");
    let output =
        helm(&["template", "10", CHART, "--namespace", "20", "--values", file.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let objects = objects(&String::from_utf8(output.stdout).expect("UTF-8"));
    for object in &objects {
        let metadata = &object["metadata"];
        assert_eq!(metadata["namespace"], "20");
        assert!(metadata["name"].is_string(), "{metadata}");
        let labels = metadata["labels"].as_object().expect("labels");
        assert!(labels.values().all(Value::is_string), "{metadata}");
        assert_eq!(
            (&labels["app.kubernetes.io/name"], &labels["app.kubernetes.io/instance"]),
            (&json!("1"), &json!("10"))
        );
    }
    assert_eq!(object(&objects, "HorizontalPodAutoscaler", "on")["spec"]["scaleTargetRef"]["name"], "on");
    let pod = &object(&objects, "Deployment", "on")["spec"]["template"]["spec"];
    assert_eq!((&pod["priorityClassName"], &pod["serviceAccountName"]), (&json!("1"), &json!("2")));
    let variables = pod["containers"][0]["env"].as_array().expect("variables");
    for (name, secret, key) in
        [("REDIS_URL", "3", "4"), ("REDIS_AUTH", "3", "true"), ("WEIR_REDIS_AUTH", "7", "8")]
    {
        let variable = variables.iter().find(|variable| variable["name"] == name).expect(name);
        assert_eq!(variable["valueFrom"]["secretKeyRef"], json!({ "name": secret, "key": key }));
    }
    let volume = |name: &str| {
        let volumes = pod["volumes"].as_array().expect("volumes");
        volumes.iter().find(|volume| volume["name"] == name).expect("the volume").clone()
    };
    assert_eq!(volume("rules")["configMap"]["name"], "5");
    assert_eq!(volume("tls")["secret"]["secretName"], "true");
    assert_eq!(volume("client-ca")["secret"]["secretName"], "null");
}

/// Another chart may depend on weir by a condition.
#[test]
fn the_chart_can_be_a_conditional_dependency() {
    let folder = tempfile::tempdir().expect("a folder");
    let parent = folder.path().join("parent");
    fs::create_dir_all(&parent).expect("a folder");
    let chart = weir_testing::repository(CHART);
    let dependency = format!(
        "apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies:\n\
         - {{ name: weir, version: '*', repository: 'file://{}', condition: weir.enabled }}\n",
        chart.display()
    );
    fs::write(parent.join("Chart.yaml"), dependency).expect("a file");
    let parent = parent.to_str().expect("UTF-8");
    let run = |arguments: &[&str]| {
        let output = helm(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    run(&["dependency", "build", parent, "--skip-refresh"]);
    let kinds = |enabled: &str| {
        let objects =
            objects(&run(&["template", "shop", parent, "--set", &format!("weir.enabled={enabled}")]));
        objects.iter().filter(|object| object["kind"] == "Deployment").count()
    };
    assert_eq!((kinds("true"), kinds("false")), (1, 0));
}
