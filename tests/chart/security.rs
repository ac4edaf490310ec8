//! Every pod keeps to Kubernetes' restricted pod security standard, and to a little more.

use serde_json::{Value, json};

use crate::{examples, list, pod};

/// The kinds of volumes that the standard admits.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Returns what violates the restricted standard.
fn violations(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut demand = |holds: bool, what: &str| {
        if !holds {
            found.push(what.to_owned());
        }
    };
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        demand(pod[host].as_bool() != Some(true), host);
    }
    for volume in list(pod, "volumes") {
        let kinds = volume.as_object().expect("a volume").keys().filter(|key| *key != "name");
        demand(
            kinds.clone().count() == 1 && kinds.clone().all(|kind| VOLUMES.contains(&kind.as_str())),
            "volume",
        );
    }
    let of_pod = &pod["securityContext"];
    for container in list(pod, "containers").iter().chain(list(pod, "initContainers")) {
        let own = &container["securityContext"];
        let either = |key: &str| if own[key].is_null() { of_pod[key].clone() } else { own[key].clone() };
        demand(either("runAsNonRoot") == true, "runAsNonRoot");
        demand(either("runAsUser") != 0, "runAsUser");
        demand(
            ["RuntimeDefault", "Localhost"].iter().any(|kind| either("seccompProfile")["type"] == **kind),
            "seccomp",
        );
        demand(own["allowPrivilegeEscalation"] == false, "allowPrivilegeEscalation");
        demand(own["privileged"].as_bool() != Some(true), "privileged");
        demand(list(&own["capabilities"], "drop").contains(&json!("ALL")), "capabilities");
        demand(
            list(&own["capabilities"], "add").iter().all(|added| added == "NET_BIND_SERVICE"),
            "capabilities",
        );
        demand(list(container, "ports").iter().all(|port| port["hostPort"].is_null()), "hostPort");
    }
    found
}

#[test]
fn pods_are_restricted() {
    for (name, objects) in examples() {
        for object in &objects {
            let Some(pod) = pod(object) else { continue };
            let kind = &object["kind"];
            assert_eq!(violations(pod), [""; 0], "{name}: {kind}");
            assert_eq!(pod["automountServiceAccountToken"], false, "{name}: {kind}");
            assert_eq!(pod["enableServiceLinks"], false, "{name}: {kind}");
            let own = &pod["containers"][0];
            assert_eq!(own["securityContext"]["readOnlyRootFilesystem"], true, "{name}: {kind}");
            assert!(own["resources"]["limits"]["memory"].is_string(), "{name}: {kind}");
        }
    }
}

#[test]
fn the_check_finds_violations() {
    let pod = json!({
        "hostNetwork": true,
        "volumes": [{ "name": "a", "hostPath": { "path": "/" } }],
        "containers": [{ "securityContext": { "capabilities": { "drop": ["ALL"], "add": ["SYS_ADMIN"] } } }],
    });
    let found = violations(&pod);
    for expected in
        ["hostNetwork", "volume", "runAsNonRoot", "seccomp", "allowPrivilegeEscalation", "capabilities"]
    {
        assert!(found.iter().any(|violation| violation == expected), "{expected}: {found:?}");
    }
}

#[test]
fn passwords_are_in_secrets_only() {
    for (name, objects) in examples() {
        for object in objects.iter().filter(|object| object["kind"] != "Secret") {
            assert!(!object.to_string().contains("user:secret@"), "{name}: {}", object["kind"]);
        }
    }
}
