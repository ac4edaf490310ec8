//! Values that the schema or the chart refuses.

use std::fs;

use crate::helm::{CHART, helm, render};

/// Renders with values as YAML, and returns Helm's error.
fn error(values: &str) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.yaml");
    fs::write(&file, values).expect("a file");
    render(&["--values", file.to_str().expect("UTF-8")]).err()
}

#[test]
fn values_of_a_wrong_name_or_kind_are_refused() {
    for (values, place) in [
        ("replica: 2", "replica"),
        ("redis: { uri: a }", "uri"),
        ("redis: { type: sentinel }", "type"),
        ("memcached: { servers: ['a,b'] }", "servers"),
        ("memcached: { srv: memcached }", "srv"),
        ("replicas: two", "replicas"),
        ("rules: { files: { shop.yaml: [] } }", "shop.yaml"),
        ("rules: { files: { ../shop.yaml: {} } }", "../shop.yaml"),
        ("rules: { files: { notes.md: a } }", "notes.md"),
        ("rules: { files: { blocked.txt: {} } }", "blocked.txt"),
        ("rules: { files: { plans.csv: { a: 1 } } }", "plans.csv"),
        // YAML's numbers and booleans would become other texts
        ("rules: { files: { a.yaml: { domain: 1.10 } } }", "a.yaml/domain"),
        ("rules: { files: { a.yaml: { descriptors: [{ key: 010 }] } } }", "descriptors/0/key"),
        (
            "rules: { files: { a.yaml: { descriptors: [{ key: a, descriptors: [{ key: b, value: 2.0 }] }] } } }",
            "descriptors/0/descriptors/0/value",
        ),
        ("rules: { files: { a.yaml: { descriptors: [{ key: a, values: [b, yes] }] } } }", "values/1"),
        ("rules: { xds: { server: 'a:1', defaults: { domains: [{ domain: 2.0 }] } } }", "domains/0/domain"),
        // null would become 0
        ("autoscaling: { minReplicas: null }", "minReplicas"),
        ("autoscaling: { maxReplicas: null }", "maxReplicas"),
        ("probes: { startupPeriodSeconds: null }", "startupPeriodSeconds"),
        ("probes: { readinessPeriodSeconds: null }", "readinessPeriodSeconds"),
        ("probes: { livenessPeriodSeconds: null }", "livenessPeriodSeconds"),
        ("stop: { delaySeconds: null }", "delaySeconds"),
        ("stop: { timeoutSeconds: null }", "timeoutSeconds"),
        ("stop: { preStopSeconds: null }", "preStopSeconds"),
        ("redis: { trial: { memoryMi: null } }", "memoryMi"),
        ("redisProtocol: { port: null }", "port"),
        ("rules: { check: { timeoutSeconds: null } }", "timeoutSeconds"),
        ("revisionHistoryLimit: null", "revisionHistoryLimit"),
        ("coordination: { mode: exact }", "mode"),
        ("coordination: { syncInterval: 100 }", "syncInterval"),
        ("coordination: { decisionBudget: 15 ms }", "decisionBudget"),
        ("disk: { enabled: true, size: big }", "size"),
        ("disk: { enabled: true, sync: often }", "sync"),
        ("disk: { enabled: true, maxBytes: 1GB }", "maxBytes"),
        ("redisProtocol: { port: redis }", "port"),
        ("redisProtocol: { tls: 'yes' }", "tls"),
        ("log: { level: verbose }", "level"),
        ("json: localhost", "json"),
        ("service: { http: 8080 }", "http"),
        ("responseHeaders: 'ietf,other'", "responseHeaders"),
        ("env: { 'A-B': c }", "A-B"),
        ("env: { A: [1] }", "A"),
        ("extraEnv: [{ value: a }]", "extraEnv"),
        ("image: { digest: abc }", "digest"),
        ("stop: { delaySeconds: 5s }", "delaySeconds"),
        ("tracing: { protocol: zipkin }", "protocol"),
        ("tracing: { endpoint: 'collector:4317' }", "endpoint"),
        ("tracing: { samplingRate: 100 }", "samplingRate"),
        ("workers: 5000", "workers"),
        ("service: { type: ExternalName }", "type"),
        ("autoscaling: { method: vpa }", "method"),
        ("metrics: { podMonitor: { interval: often } }", "interval"),
        ("host: example.com", "host"),
        ("rules: { xds: { server: control-plane } }", "server"),
        ("rules: { xds: { server: 'http://control-plane:1' } }", "server"),
        ("rules: { xds: { server: 'a:1', algorithm: leaky } }", "algorithm"),
        ("rules: { xds: { server: 'a:1', tls: { ca: b } } }", "ca"),
    ] {
        let error = error(values).unwrap_or_else(|| panic!("{values} is accepted"));
        assert!(error.contains("schema") && error.contains(place), "{values}: {error}");
    }
}

#[test]
fn values_that_do_not_go_together_are_refused() {
    for (values, reason) in [
        ("replicas: 2", "2 pods without a shared store"),
        // an autoscaler that the chart does not know
        ("replicas: null", "N pods without a shared store"),
        ("autoscaling: { enabled: true }", "6 pods without a shared store"),
        (
            "autoscaling: { enabled: true, minReplicas: 5, maxReplicas: 4 }\nredis: { url: a }",
            "must not be below",
        ),
        (
            "autoscaling: { enabled: true, minReplicas: 0 }\nredis: { url: a }",
            "minReplicas 0 needs autoscaling.method keda",
        ),
        (
            "autoscaling: { enabled: true, method: keda, minReplicas: 0 }\nredis: { url: a }",
            "autoscaling.triggers",
        ),
        (
            "autoscaling: { enabled: true, method: keda, targetCPUPercent: 0, triggers: null }\nredis: { url: a }",
            "needs autoscaling.targetCPUPercent or autoscaling.triggers",
        ),
        (
            "autoscaling: { enabled: true, targetCPUPercent: 0 }\nredis: { url: a }",
            "needs autoscaling.targetCPUPercent or autoscaling.metrics",
        ),
        ("fullnameOverride: 1weir", "1weir cannot be the name of a Service"),
        ("fullnameOverride: a.b", "set fullnameOverride"),
        ("commonLabels: { app.kubernetes.io/name: a }", "commonLabels must not have app.kubernetes.io/name"),
        ("podLabels: { app.kubernetes.io/component: a }", "podLabels must not have"),
        ("service: { labels: { app.kubernetes.io/instance: a } }", "service.labels must not have"),
        ("env: { PORT: 9090 }", "must not set PORT"),
        ("env: { GRPC_PORT: 9091 }", "must not set GRPC_PORT"),
        ("extraEnv: [{ name: GRPC_UDS, value: /run/weir.sock }]", "must not set GRPC_UDS"),
        ("env: { WEIR_REDIS_PORT: 6379 }", "set redisProtocol.enabled and redisProtocol.port"),
        ("env: { WEIR_STOP_DELAY: 60s }", "set stop.delaySeconds"),
        ("extraEnv: [{ name: WEIR_STOP_TIMEOUT, value: 90s }]", "set stop.timeoutSeconds"),
        ("service: { ipFamilyPolicy: RequireDualStack }", "needs host"),
        ("service: { ipFamilyPolicy: RequireDualStack }\nhost: 10.0.0.1", "needs host"),
        // the HTTP port's
        ("service: { ipFamilyPolicy: RequireDualStack }\nenv: { HOST: '::' }", "needs host"),
        ("rules: { existingConfigMap: a, files: { a.yaml: {} } }", "not both"),
        ("rules: { xds: { server: 'a:1' }, files: { a.yaml: {} } }", "not both"),
        ("rules: { xds: { nodeId: a } }", "no effect without rules.xds.server"),
        (
            "rules: { xds: { server: 'a:1', tls: { caSecret: b } } }",
            "no effect without rules.xds.tls.enabled",
        ),
        ("redis: { url: a, trial: { enabled: true } }", "set one of"),
        ("memcached: { servers: [a], srv: _a._tcp.b }", "not both"),
        ("memcached: { servers: [a] }\nredis: { url: b }", "not both"),
        ("memcached: { keyPrefix: a }", "no effect without memcached.servers"),
        ("memcached: { servers: [a], tls: { caSecret: b } }", "no effect without memcached.tls.enabled"),
        ("disk: { enabled: true }\nredis: { url: a }", "set disk.enabled, or redis or memcached, not both"),
        ("disk: { enabled: true }\nreplicas: 2", "without a shared store"),
        ("disk: { enabled: true }\nallowUnsharedReplicas: true\nautoscaling: { enabled: true }", "not both"),
        ("disk: { sync: always }", "no effect without disk.enabled"),
        ("redisProtocol: { authSecret: a }", "no effect without redisProtocol.enabled"),
        ("redisProtocol: { tls: false }", "no effect without redisProtocol.enabled"),
        ("redisProtocol: { enabled: true, tls: true }", "redisProtocol.tls needs tls.enabled"),
        ("redisProtocol: { enabled: true, port: 8081 }", "8081, which is another port of weir"),
        ("networkPolicy: { redisFrom: [{}] }", "no effect without redisProtocol.enabled"),
        ("tls: { enabled: true }", "tls.existingSecret"),
        ("tls: { existingSecret: a }", "no effect without tls.enabled"),
        ("tls: { certManager: { enabled: true, issuerRef: { name: a } } }", "no effect without tls.enabled"),
        ("tls: { clients: { caSecret: a } }", "no effect without tls.enabled"),
        ("tls: { clients: { san: a } }", "no effect without tls.enabled"),
        (
            "tls: { enabled: true, existingSecret: a, clients: { san: b } }",
            "no effect without tls.clients.caSecret",
        ),
        ("redis: { url: a, tls: { caSecret: b } }", "no effect without redis.tls.enabled"),
        ("redis: { url: a, tls: { clientSecret: b } }", "no effect without redis.tls.enabled"),
        ("redis: { trial: { enabled: true }, tls: { enabled: true } }", "redis.trial, which has no TLS"),
        ("redis: { tls: { enabled: true } }\nenv: { REDIS_URL: a }", "set REDIS_TLS there too"),
        ("tls: { enabled: true, certManager: { enabled: true } }", "issuerRef.name"),
        ("tls: { enabled: true, existingSecret: a, certManager: { enabled: true } }", "not both"),
        ("tracing: { enabled: true }", "tracing.endpoint"),
        ("metrics: { podMonitor: { enabled: true }, serviceMonitor: { enabled: true } }", "twice"),
        ("podDisruptionBudget: { minAvailable: 1 }", "set one of podDisruptionBudget"),
    ] {
        let error = error(values).unwrap_or_else(|| panic!("{values} is accepted"));
        assert!(error.contains(reason), "{values}: {error}");
    }
}

#[test]
fn several_pods_are_accepted_with_any_shared_store() {
    for values in [
        "redis: { url: redis:6379 }",
        "redis: { existingSecret: { name: a } }",
        "redis: { trial: { enabled: true } }",
        "memcached: { servers: [memcached:11211] }",
        "memcached: { srv: _memcache._tcp.memcached }",
        "env: { REDIS_URL: redis:6379 }",
        "env: { MEMCACHE_HOST_PORT: memcached:11211 }",
        "extraEnv: [{ name: REDIS_URL, valueFrom: { secretKeyRef: { name: a, key: b } } }]",
        "envFrom: [{ secretRef: { name: a } }]",
        "allowUnsharedReplicas: true",
    ] {
        assert_eq!(error(&format!("replicas: 2\n{values}\n")), None, "{values}");
    }
}

#[test]
fn an_old_kubernetes_is_refused() {
    let error = render(&["--kube-version", "1.29.9"]).expect_err("an error");
    assert!(error.contains(">=1.30.0-0"), "{error}");
    // vendors add suffixes
    assert!(render(&["--kube-version", "1.30.0-eks-1a2b3c"]).is_ok());
}

/// What looks like one of the refused values.
#[test]
fn values_with_a_meaning_are_accepted() {
    for values in [
        "rules: { files: { a.yaml: { domain: '2.0', descriptors: [{ key: a, value: null }, { key: b, values: ['1'] }] } } }",
        // of no file, and of one whose errors `weir check` explains better
        "rules: { files: { a.yaml: null, b.yaml: { descriptors: null, domain: a } } }",
        "rules: { files: { a.yaml: null }, existingConfigMap: b }",
        "redis: { url: 'a:1' }\nreplicas: null",
        "redis: { url: 'a:1' }\nautoscaling: { enabled: true, method: keda, minReplicas: 0, triggers: [{ type: kafka }] }",
        "redis: { url: 'a:1' }\nautoscaling: { enabled: true, targetCPUPercent: 0, metrics: [{ type: Pods }] }",
        "env: { GRPC_HOST: '::' }\nservice: { ipFamilyPolicy: RequireDualStack }",
        "host: '::'\nservice: { ipFamilyPolicy: RequireDualStack }",
        // a cluster with one family gives it that one
        "service: { ipFamilyPolicy: PreferDualStack }",
        "service: { ipFamilyPolicy: SingleStack }",
        // by a condition of the chart that depends on it
        "enabled: true",
    ] {
        assert_eq!(error(values), None, "{values}");
    }
}

/// A release may have names that a Service may not have.
#[test]
fn a_release_whose_name_no_service_can_have_is_refused() {
    let rendered = |arguments: &[&str]| {
        let output = helm(&[&["template", "1.edge", CHART], arguments].concat());
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (succeeds, error) = rendered(&[]);
    assert!(!succeeds && error.contains("1.edge-weir cannot be the name of a Service"), "{error}");
    let (succeeds, error) = rendered(&["--set", "fullnameOverride=edge"]);
    assert!(succeeds, "{error}");
}
