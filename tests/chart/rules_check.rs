//! The Job that checks the rules before an upgrade rejects what a pod would reject.

use serde_json::{Value, json};

use crate::helm::{object, objects, render};

/// Returns the variables of the Job.
fn variables(set: &str) -> Value {
    let yaml = render(&["--set", set]).unwrap_or_else(|error| panic!("{set}: {error}"));
    let job = object(&objects(&yaml), "Job", "weir-check-rules").clone();
    job["spec"]["template"]["spec"]["containers"][0]["env"].clone()
}

#[test]
fn the_rules_are_checked_for_the_store_and_the_coordination_of_the_pods() {
    let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
    let (redis, memcached) = (variable("BACKEND_TYPE", "redis"), variable("BACKEND_TYPE", "memcache"));
    for (set, expected) in [
        ("redis.url=redis:6379", json!([redis])),
        ("redis.existingSecret.name=a", json!([redis])),
        ("redis.trial.enabled=true", json!([redis])),
        ("env.REDIS_URL=redis:6379", json!([redis])),
        ("memcached.servers={memcached:11211}", json!([memcached])),
        ("env.MEMCACHE_HOST_PORT=memcached:11211", json!([memcached])),
        ("env.REDIS_URL=a,env.BACKEND_TYPE=memory", json!([variable("BACKEND_TYPE", "memory")])),
        (
            "redis.url=a:1,coordination.mode=split,env.MERGE_DOMAIN_CONFIG=true",
            json!([redis, variable("MERGE_DOMAIN_CONFIG", "true"), variable("WEIR_COORDINATION", "split")]),
        ),
        (
            "redis.url=a:1,extraEnv[0].name=WEIR_COORDINATION,extraEnv[0].value=split",
            json!([redis, variable("WEIR_COORDINATION", "split")]),
        ),
        ("extraEnv[0].name=REDIS_URL,extraEnv[0].valueFrom.secretKeyRef.name=a", json!([redis])),
        ("env.REDIS_URL=", Value::Null),
        ("log.level=debug", Value::Null),
    ] {
        assert_eq!(variables(set), expected, "{set}");
    }
}

/// Clusters differ: sidecars would keep the Job from ending, quotas demand limits, and nodes have places for such pods.
#[test]
fn the_job_adapts_to_the_cluster() {
    let job = |arguments: &[&str]| {
        let yaml = render(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        object(&objects(&yaml), "Job", "weir-check-rules")["spec"].clone()
    };
    let plain = job(&[]);
    let pod = &plain["template"];
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({ "sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled" })
    );
    assert_eq!(plain["activeDeadlineSeconds"], 120);
    assert!(pod["spec"].get("affinity").is_none());

    let affinity = r#"affinity={"nodeAffinity": {"a": "b"}, "podAffinity": {"c": "d"}}"#;
    let check = r#"rules.check={"timeoutSeconds": 600, "podAnnotations": {"e": "f"}, "resources": {"limits": {"cpu": "1"}}}"#;
    let adapted = job(&["--set-json", affinity, "--set-json", check]);
    let pod = &adapted["template"];
    assert_eq!(
        (&adapted["activeDeadlineSeconds"], &pod["metadata"]["annotations"]["e"]),
        (&json!(600), &json!("f"))
    );
    // weir's pods, which the other kinds may name, may not run yet
    assert_eq!(pod["spec"]["affinity"], json!({ "nodeAffinity": { "a": "b" } }));
    assert_eq!(
        pod["spec"]["containers"][0]["resources"],
        json!({ "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "256Mi", "cpu": "1" } })
    );
}
