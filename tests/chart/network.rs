//! What the pods may connect to, and which of their ports the Service has.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::{
    helm::{object, objects, render},
    list, pod,
};

/// Renders with values as YAML.
fn rendered(values: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.yaml");
    fs::write(&file, values).expect("a file");
    objects(&render(&["--values", file.to_str().expect("UTF-8")]).expect("it renders"))
}

/// Returns the ports that the pods may connect to, without those of DNS.
fn egress(values: &str) -> BTreeSet<u64> {
    let objects = rendered(&format!("networkPolicy: {{ enabled: true }}\n{values}"));
    let policy = object(&objects, "NetworkPolicy", "weir");
    let ports = list(&policy["spec"], "egress").iter().flat_map(|rule| list(rule, "ports"));
    let numbers = ports.map(|port| port["port"].as_u64().expect("a number"));
    numbers.filter(|port| ![53, 5353].contains(port)).collect()
}

#[test]
fn the_pods_may_connect_to_the_ports_of_their_store_and_control_plane() {
    for (values, expected) in [
        ("replicas: 1", &[][..]),
        ("redis: { url: redis }", &[6379]),
        ("redis: { url: 'redis:7000' }", &[7000]),
        ("redis: { url: 'rediss://user:p:8@ss@redis.example.com:6380/1' }", &[6380]),
        ("redis: { url: 'redis://:secret@redis/0' }", &[6379]),
        ("redis: { url: '[fd00::1]:6381' }", &[6381]),
        ("redis: { url: 'redis://[fd00::1]/0' }", &[6379]),
        ("redis: { url: /run/redis.sock }", &[]),
        ("redis: { type: CLUSTER, url: 'one:7000,two:7001,three' }", &[6379, 7000, 7001]),
        ("redis: { type: SENTINEL, url: 'main,one,two:26380' }", &[6379, 26379, 26380]),
        ("redis: { existingSecret: { name: a } }", &[6379]),
        ("redis: { type: SENTINEL, existingSecret: { name: a } }", &[6379, 26379]),
        ("redis: { trial: { enabled: true } }", &[6379]),
        ("env: { REDIS_URL: 'redis:6390', REDIS_PERSECOND_URL: 'fast:6391' }", &[6390, 6391]),
        ("env: { REDIS_URL: 'main,one', REDIS_TYPE: sentinel }", &[6379, 26379]),
        ("extraEnv: [{ name: REDIS_URL, value: 'redis:6392' }]", &[6392]),
        ("extraEnv: [{ name: REDIS_URL, valueFrom: { secretKeyRef: { name: a, key: b } } }]", &[6379]),
        ("envFrom: [{ secretRef: { name: a } }]", &[6379]),
        ("memcached: { servers: ['one:11212', two] }", &[11211, 11212]),
        ("memcached: { srv: _memcache._tcp.memcached }", &[11211]),
        ("env: { MEMCACHE_HOST_PORT: 'one:11213,two' }", &[11211, 11213]),
        ("rules: { xds: { server: 'dns:///control-plane:18001' } }", &[18001]),
        ("env: { CONFIG_TYPE: GRPC_XDS_SOTW, CONFIG_GRPC_XDS_SERVER_URL: 'control-plane:18002' }", &[18002]),
        ("tracing: { enabled: true, endpoint: 'http://collector' }", &[80]),
        ("tracing: { enabled: true, endpoint: 'https://collector/otlp' }", &[443]),
        ("env: { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://collector:4318' }", &[4318]),
        (
            "tracing: { enabled: true, endpoint: 'http://traces:4317' }
env: { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'http://traces:4319/v1/traces' }
extraEnv: [{ name: OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, value: 'metrics:4320' }]",
            &[4317, 4319, 4320],
        ),
        ("env: { REDIS_URL: null, OTEL_EXPORTER_OTLP_ENDPOINT: null }", &[]),
    ] {
        assert_eq!(egress(values), expected.iter().copied().collect(), "{values}");
    }
}

/// A policy sees the pods' port, and DNS pods may have another one than their Service.
#[test]
fn the_pods_may_ask_dns_on_both_of_its_ports() {
    let objects = rendered("networkPolicy: { enabled: true }");
    let ports = json!([
        { "port": 53, "protocol": "UDP" },
        { "port": 53, "protocol": "TCP" },
        { "port": 5353, "protocol": "UDP" },
        { "port": 5353, "protocol": "TCP" },
    ]);
    assert_eq!(object(&objects, "NetworkPolicy", "weir")["spec"]["egress"], json!([{ "ports": ports }]));
}

/// Ports that the chart cannot know take the place of the usual ones.
#[test]
fn further_ports_of_the_store_may_be_named() {
    let egress = |values: &str, ports: &str| {
        let objects = rendered(&format!("networkPolicy: {{ enabled: true, storePorts: {ports} }}\n{values}"));
        object(&objects, "NetworkPolicy", "weir").to_string()
    };
    let secret = egress("redis: { existingSecret: { name: a } }", "[6380]");
    assert!(secret.contains("6380") && !secret.contains("6379"), "{secret}");
    let sentinels = egress("redis: { type: SENTINEL, url: 'main,one' }", "[6380]");
    assert!(sentinels.contains("6380") && sentinels.contains("26379"), "{sentinels}");
}

/// Returns the names of the ports of both Services.
fn service_ports(values: &str) -> Vec<Vec<String>> {
    let objects =
        rendered(&format!("{values}\nservice: {{ headless: true, http: {} }}", values.contains("# http")));
    let services = objects.iter().filter(|object| object["kind"] == "Service");
    let names = |service: &Value| {
        let ports = list(&service["spec"], "ports").iter();
        ports.map(|port| port["name"].as_str().expect("a name").to_owned()).collect()
    };
    services.map(names).collect()
}

#[test]
fn the_service_has_the_http_port_only_if_asked_to() {
    assert_eq!(service_ports(""), [["grpc"], ["grpc"]]);
    assert_eq!(service_ports("# http"), [["grpc", "http"], ["grpc", "http"]]);
    // probes and Prometheus use the pods' own port
    let objects = rendered("metrics: { serviceMonitor: { enabled: true } }");
    let container = &pod(object(&objects, "Deployment", "weir")).expect("a pod")["containers"][0];
    assert!(
        list(container, "ports").contains(&json!({ "name": "http", "containerPort": 8080 })),
        "{container}"
    );
    for probe in ["startupProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"], json!({ "path": "/healthcheck", "port": "http" }));
    }
    let endpoint = &object(&objects, "ServiceMonitor", "weir")["spec"]["endpoints"][0];
    assert_eq!((&endpoint["targetPort"], &endpoint["port"]), (&json!("http"), &Value::Null));
}

#[test]
fn who_may_use_json_is_a_value() {
    for (values, expected) in [
        ("json: ''", None),
        ("json: 'on'", Some("on")),
        // booleans in YAML
        ("json: on", Some("on")),
        ("json: off", Some("off")),
        ("json: loopback", Some("loopback")),
    ] {
        let objects = rendered(values);
        let container = &pod(object(&objects, "Deployment", "weir")).expect("a pod")["containers"][0];
        let variable = list(container, "env").iter().find(|variable| variable["name"] == "WEIR_JSON");
        assert_eq!(
            variable.map(|variable| variable["value"].as_str().expect("a text")),
            expected,
            "{values}"
        );
    }
}

/// Redis' protocol has no port anywhere until it is on, and then the same one everywhere.
#[test]
fn redis_protocol_has_a_port_of_the_pods_the_services_and_the_policy() {
    let ports = |values: &str| {
        let objects = rendered(&format!("service: {{ headless: true }}\n{values}"));
        let pod = objects.iter().find_map(pod).expect("a pod");
        let container = &pod["containers"][0];
        let named = |list: &[Value]| list.iter().find(|port| port["name"] == "redis").cloned();
        let services = ["weir", "weir-headless"].map(|name| {
            named(list(&object(&objects, "Service", name)["spec"], "ports")).map(|port| port["port"].clone())
        });
        let policy = object(&objects, "NetworkPolicy", "weir");
        let rules = list(&policy["spec"], "ingress").iter();
        let from = rules.filter(|rule| rule["ports"][0]["port"] == "redis").map(|rule| rule["from"].clone());
        let variables: Vec<Value> = list(container, "env")
            .iter()
            .filter(|variable| variable["name"].as_str().is_some_and(|name| name.starts_with("WEIR_REDIS")))
            .cloned()
            .collect();
        let own = named(list(container, "ports")).map(|port| port["containerPort"].clone());
        (own, services, from.collect::<Vec<_>>(), variables)
    };
    assert_eq!(ports("networkPolicy: { enabled: true }"), (None, [None, None], vec![], vec![]));
    let port = Some(json!(6379));
    let from = json!([{ "podSelector": {} }]);
    let secret = json!({ "secretKeyRef": { "name": "clients", "key": "password" } });
    let values = "networkPolicy: { enabled: true, redisFrom: [{ podSelector: {} }] }
redisProtocol: { enabled: true, port: 6379, authSecret: clients, authKey: password, allowReset: true }
host: '::'";
    assert_eq!(
        ports(values),
        (
            port.clone(),
            [port.clone(), port],
            vec![from],
            vec![
                json!({ "name": "WEIR_REDIS_HOST", "value": "::" }),
                json!({ "name": "WEIR_REDIS_PORT", "value": "6379" }),
                json!({ "name": "WEIR_REDIS_RESET", "value": "true" }),
                json!({ "name": "WEIR_REDIS_AUTH", "valueFrom": secret }),
            ]
        )
    );
    // the caller's variable takes precedence
    let (_, _, _, variables) = ports(
        "networkPolicy: { enabled: true }
redisProtocol: { enabled: true, authSecret: a }
env: { WEIR_REDIS_AUTH: secret }",
    );
    let auth: Vec<_> = variables.iter().filter(|variable| variable["name"] == "WEIR_REDIS_AUTH").collect();
    assert_eq!(auth, [&json!({ "name": "WEIR_REDIS_AUTH", "value": "secret" })]);
}
