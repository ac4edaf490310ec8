//! The pod of a rendered Deployment, run as a process: its arguments, variables, volumes, probes and end.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    http::{self, HttpRequest},
    process::Process,
    wait,
    weir::{listening, program},
};

/// weir's container of a Deployment, as a process on ports of the system's choice.
pub(crate) struct Pod {
    process: Process,
    spec: Value,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
}

impl Pod {
    /// Starts the first container of the Deployment. Its volumes are those of `volumes`, folders by their name, and its
    /// Secrets are `secrets`, values by NAME/KEY. Writes its output to `folder`.
    pub(crate) fn start(
        deployment: &Value,
        volumes: &BTreeMap<&str, PathBuf>,
        secrets: &BTreeMap<&str, String>,
        folder: &Path,
    ) -> Self {
        let spec = deployment.pointer("/spec/template/spec").expect("a pod").clone();
        let container = &spec["containers"][0];
        // this process sees the volumes at other paths
        let mounts: Vec<(&str, &str)> = container["volumeMounts"]
            .as_array()
            .expect("mounts")
            .iter()
            .map(|mount| {
                let name = text(&mount["name"]);
                let volume = volumes.get(name).unwrap_or_else(|| panic!("no volume {name}"));
                (text(&mount["mountPath"]), volume.to_str().expect("UTF-8"))
            })
            .collect();
        let mounted = |text: &str| {
            let moved = |text: String, (path, volume): &(&str, &str)| text.replace(path, volume);
            mounts.iter().fold(text.to_owned(), moved)
        };
        let mut command = Command::new(program());
        command.args(texts(&container["args"]).iter().map(|arg| mounted(arg))).env_clear();
        for variable in container["env"].as_array().expect("variables") {
            let secret = &variable["valueFrom"]["secretKeyRef"];
            let value = if secret.is_null() {
                mounted(text(&variable["value"]))
            } else {
                let key = format!("{}/{}", text(&secret["name"]), text(&secret["key"]));
                secrets.get(key.as_str()).unwrap_or_else(|| panic!("no secret {key}")).clone()
            };
            command.env(text(&variable["name"]), value);
        }
        // many pods share this host
        command.envs([("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0")]);
        let mut process = Process::start("pod", &mut command, folder);
        let [grpc, http, _] = wait::until("the pod listens", || {
            process.assert_running();
            listening(&process.output())
        });
        // the pod listens on all addresses
        let reachable = |address: SocketAddr| SocketAddr::from(([127, 0, 0, 1], address.port()));
        let pod = Self { process, spec, grpc: reachable(grpc), http: reachable(http) };
        wait::until("the startup probe passes", || pod.probe("startupProbe").then_some(()));
        pod
    }

    /// Makes one attempt of a probe as the kubelet does, and returns whether it passed.
    pub(crate) fn probe(&self, name: &str) -> bool {
        let probe = &self.spec["containers"][0][name];
        let port = |action: &Value| match text(&action["port"]) {
            "http" => self.http,
            "grpc" => self.grpc,
            other => panic!("no port {other}"),
        };
        if let Some(get) = probe.get("httpGet") {
            let response = http::try_send(port(get), &HttpRequest::get(text(&get["path"])));
            response.is_ok_and(|response| (200..400).contains(&response.status))
        } else {
            let socket = probe.get("tcpSocket").expect("an action");
            TcpStream::connect(port(socket)).is_ok()
        }
    }

    pub(crate) fn output(&self) -> String {
        self.process.output()
    }

    /// Stops as the kubelet does: runs the preStop hook, sends SIGTERM, and waits for at most the rest of the grace
    /// period. Returns whether the process exited with 0 in that time.
    pub(crate) fn stop(&mut self) -> bool {
        let begun = Instant::now();
        let grace = self.spec["terminationGracePeriodSeconds"].as_u64().expect("seconds");
        let hook = &self.spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"];
        // not a wait for a condition: the kubelet sleeps as long
        thread::sleep(Duration::from_secs(hook.as_u64().unwrap_or(0)));
        self.process.terminate();
        let ended = wait::until("the pod ends", || self.process.ended());
        ended.success() && begun.elapsed() < Duration::from_secs(grace)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().expect("a list").iter().map(|part| text(part).to_owned()).collect()
}
