//! A change of the settings replaces the pods; a change of the rules does not.

use serde_json::{Value, json};

use crate::helm::{object, objects, render};

/// Renders with `--set` or `--set-json`, and returns weir's Deployment.
fn deployment(set: &str) -> Value {
    let yaml = render(&["--set", set]).unwrap_or_else(|error| panic!("{set}: {error}"));
    object(&objects(&yaml), "Deployment", "weir").clone()
}

/// Returns a variable of weir's container.
fn variable<'a>(deployment: &'a Value, name: &str) -> Option<&'a Value> {
    let env = deployment.pointer("/spec/template/spec/containers/0/env")?.as_array()?;
    let found: Vec<&Value> = env.iter().filter(|variable| variable["name"] == name).collect();
    assert!(found.len() < 2, "{name} is set twice");
    found.first().copied()
}

#[test]
fn changed_rules_leave_the_pods_alone() {
    let one = deployment("rules.files.a\\.yaml.domain=a");
    let other = deployment("rules.files.a\\.yaml.domain=b,rules.files.c\\.yaml.domain=c");
    assert_eq!(one, other);
    // the file of defaults changes likewise
    let one = deployment("rules.xds.server=a:1,rules.xds.defaults.algorithm=token_bucket");
    let other = deployment("rules.xds.server=a:1,rules.xds.defaults.algorithm=sliding_window");
    assert_eq!(one, other);
}

#[test]
fn changed_settings_replace_the_pods() {
    let settings = [
        "log.level=debug",
        "coordination.mode=lease,redis.url=a:1",
        "redis.url=a:1",
        "redis.url=b:1",
        "redis.existingSecret.name=a",
        "env.NEAR_LIMIT_RATIO=0.5",
        "extraEnv[0].name=A,extraEnv[0].value=b",
        "maxCounters=5",
        "stop.delaySeconds=7",
        "tls.enabled=true,tls.existingSecret=a",
        "shadowMode=true",
        "rules.xds.server=a:1",
        "rules.xds.server=a:1,rules.xds.algorithm=token_bucket",
        "rules.xds.server=a:1,rules.xds.defaults.algorithm=sliding_window",
    ];
    let templates: Vec<Value> =
        settings.iter().map(|set| deployment(set)["spec"]["template"].clone()).collect();
    for (i, template) in templates.iter().enumerate() {
        for (j, other) in templates.iter().enumerate().skip(i + 1) {
            assert_ne!(template, other, "{} and {}", settings[i], settings[j]);
        }
    }
}

#[test]
fn variables_given_by_the_user_win() {
    let deployment = deployment(
        "env.LOG_LEVEL=warn,env.WEIR_MAX_COUNTERS=3000000,env.REDIS_URL=mine:1,redis.url=a:1,env.SHADOW_MODE=true,\
         extraEnv[0].name=LOG_FORMAT,extraEnv[0].value=text,log.format=json",
    );
    for (name, value) in [
        ("LOG_LEVEL", "warn"),
        ("WEIR_MAX_COUNTERS", "3000000"),
        ("REDIS_URL", "mine:1"),
        ("SHADOW_MODE", "true"),
        ("LOG_FORMAT", "text"),
    ] {
        assert_eq!(variable(&deployment, name), Some(&json!({ "name": name, "value": value })));
    }
}

#[test]
fn the_grace_period_is_longer_than_all_that_stopping_may_take() {
    let deployment = deployment("stop.preStopSeconds=3,stop.delaySeconds=4,stop.timeoutSeconds=50");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 3 + 4 + 50 + 15);
    assert_eq!(pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"], 3);
    assert_eq!(
        variable(&deployment, "WEIR_STOP_DELAY"),
        Some(&json!({ "name": "WEIR_STOP_DELAY", "value": "4s" }))
    );
    assert_eq!(
        variable(&deployment, "WEIR_STOP_TIMEOUT"),
        Some(&json!({ "name": "WEIR_STOP_TIMEOUT", "value": "50s" }))
    );
}

#[test]
fn an_autoscaler_owns_the_number_of_pods() {
    assert_eq!(deployment("replicas=1")["spec"]["replicas"], 1);
    assert!(deployment("autoscaling.enabled=true,redis.url=a:1")["spec"].get("replicas").is_none());
}
