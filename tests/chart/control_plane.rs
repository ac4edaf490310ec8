//! Rules from a control plane instead of files.

use serde_json::{Value, json};
use weir_testing::repository;

use crate::helm::{object, objects, render};

fn rendered() -> Vec<Value> {
    let values = repository("charts/weir/ci/xds-values.yaml");
    objects(&render(&["--values", values.to_str().expect("UTF-8")]).expect("it renders"))
}

#[test]
fn the_pod_has_the_variables_and_files_of_the_control_plane() {
    let objects = rendered();
    let deployment = object(&objects, "Deployment", "weir");
    let pod = &deployment["spec"]["template"]["spec"];
    let weir = &pod["containers"][0];
    assert_eq!(weir["args"], json!(["serve"]));
    for (name, value) in [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "control-plane.envoy-gateway-system:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("WEIR_XDS_ALGORITHM", "sliding_window"),
        ("WEIR_XDS_DEFAULTS", "/etc/weir/xds/defaults.yaml"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/etc/weir/xds-ca/ca.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/etc/weir/xds-client/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/etc/weir/xds-client/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
    ] {
        let variable = json!({ "name": name, "value": value });
        assert!(weir["env"].as_array().expect("variables").contains(&variable), "{name}: {}", weir["env"]);
    }
    assert_eq!(
        weir["volumeMounts"],
        json!([
            { "name": "xds-defaults", "mountPath": "/etc/weir/xds", "readOnly": true },
            { "name": "xds-ca", "mountPath": "/etc/weir/xds-ca", "readOnly": true },
            { "name": "xds-client", "mountPath": "/etc/weir/xds-client", "readOnly": true },
        ])
    );
    assert_eq!(
        pod["volumes"],
        json!([
            { "name": "xds-defaults", "configMap": { "name": "weir-xds-defaults" } },
            { "name": "xds-ca", "secret": { "secretName": "control-plane" } },
            { "name": "xds-client", "secret": { "secretName": "weir-client" } },
        ])
    );
}

#[test]
fn there_are_no_rule_files_but_the_defaults() {
    let objects = rendered();
    let names = |kind: &str| -> Vec<&Value> {
        let of_kind = objects.iter().filter(|object| object["kind"] == kind);
        of_kind.map(|object| &object["metadata"]["name"]).collect()
    };
    assert_eq!((names("ConfigMap"), names("Job")), (vec![&json!("weir-xds-defaults")], vec![]));
    let defaults = &object(&objects, "ConfigMap", "weir-xds-defaults")["data"]["defaults.yaml"];
    let defaults: Value = serde_saphyr::from_str(defaults.as_str().expect("a text")).expect("YAML");
    assert_eq!(defaults, json!({ "domains": [{ "domain": "default/eg/*", "coordination": "lease" }] }));
}

/// YAML takes the indentation of a block's first line for that of all.
#[test]
fn defaults_may_be_a_text_that_begins_with_blanks() {
    let text = "\n\n    domains:\n      - domain: a\n        coordination: lease\n";
    let yaml =
        render(&["--set", "rules.xds.server=a:1", "--set-literal", &format!("rules.xds.defaults={text}")]);
    let objects = objects(&yaml.expect("it renders"));
    assert_eq!(object(&objects, "ConfigMap", "weir-xds-defaults")["data"]["defaults.yaml"], text);
}

#[test]
fn the_network_policy_admits_the_control_plane() {
    let objects = rendered();
    let policy = object(&objects, "NetworkPolicy", "weir");
    let control_plane = json!({ "ports": [{ "port": 18001, "protocol": "TCP" }] });
    assert!(policy["spec"]["egress"].as_array().expect("egress").contains(&control_plane), "{policy}");
}
