//! `make package` and `make publish`, with a real registry: what was packaged is what others pull.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use weir_testing::repository;

use crate::docker::{docker, make};

/// The version of Helm that `make tools` installs; the Makefile has the same.
const HELM: &str = "target/tools/helm-4.1.4";

/// A registry on a free port of this machine, killed on drop.
struct Registry {
    child: Child,
    address: String,
    _storage: tempfile::TempDir,
}

impl Registry {
    fn start() -> Self {
        let storage = tempfile::tempdir().expect("a directory");
        let config = storage.path().join("config.yaml");
        let data = storage.path().join("data");
        let text = format!(
            "version: 0.1\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\nhttp: {{ addr: \"127.0.0.1:0\" }}\n",
            data.display()
        );
        fs::write(&config, text).expect("it is written");
        let mut command = Command::new(repository("target/tools/docker-registry"));
        command.arg("serve").arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("`make tools` installs it");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let listening = log.find_map(|line| {
            let line = line.ok()?;
            let (_, address) = line.split_once("listening on ")?;
            Some(address.split('"').next()?.to_owned())
        });
        // it must not wait for a reader
        std::thread::spawn(move || log.for_each(drop));
        Self { child, address: listening.expect("it listens"), _storage: storage }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // it may have exited already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_published_chart_runs_the_published_image() {
    let Some(docker) = docker() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (saved, published) = (path("saved.tar"), path("published"));
    docker.run(&["save", "--output", &saved, &docker.image]);
    let registry = Registry::start();
    let address = &registry.address;
    let image = format!("{address}/team/weir");
    let [of_image, artifacts] = [format!("IMAGE={image}"), format!("artifacts={}", path("artifacts"))];
    // `make release-dry-run` also builds the crate
    let crate_flags = "CARGO_PACKAGE_FLAGS=--no-verify --allow-dirty";
    make(&["package", &format!("IMAGES={saved}"), &of_image, &artifacts, crate_flags]);
    let charts = format!("CHARTS={address}/team/charts");
    make(&["publish", &of_image, &charts, &artifacts, &format!("published={published}"), "PLAIN_HTTP=1"]);

    let lines = fs::read_to_string(&published).expect("what was pushed");
    let value = |name: &str| {
        let found = lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name}: {lines}")).to_owned()
    };
    let digest = value("image-digest");
    assert_eq!((value("image-name"), value("image")), (image.clone(), format!("{image}@{digest}")));
    assert!(value("chart").starts_with(&format!("{address}/team/charts/weir@sha256:")), "{lines}");

    let chart = format!("oci://{}", value("chart"));
    let rendered = Command::new(repository(HELM)).args(["template", "weir", &chart, "--plain-http"]).output();
    let rendered = rendered.expect("Helm can be started");
    let objects = String::from_utf8_lossy(&rendered.stdout);
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    assert!(objects.contains(&format!("image: \"{image}@{digest}\"")), "{objects}");

    docker.run(&["pull", "--quiet", &value("image")]);
    let version = docker.run(&["run", "--rm", &value("image"), "--version"]);
    docker.run(&["image", "rm", &value("image")]);
    assert_eq!(version, concat!("weir ", env!("CARGO_PKG_VERSION")));

    // a chart of another image is not published
    let digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    let other = path("other");
    let script = |arguments: &[&str]| {
        let mut command = Command::new(repository(arguments[0]));
        command.args(&arguments[1..]).current_dir(repository("")).output().expect("it can be started")
    };
    assert!(script(&["scripts/release.py", "chart", digest, &image, &other]).status.success());
    assert!(script(&[HELM, "package", &other, "--destination", &path("artifacts")]).status.success());
    let version = env!("CARGO_PKG_VERSION");
    let packed = path(&format!("artifacts/weir-{version}.tgz"));
    fs::rename(packed, path(&format!("artifacts/weir-{version}-chart.tgz"))).expect("it replaces the other");
    let helm = repository(HELM);
    let helm = helm.to_str().expect("UTF-8");
    let charts = format!("{address}/team/charts");
    let refused =
        script(&["scripts/publish.sh", helm, version, &image, &charts, &path("artifacts"), &published]);
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("the chart does not name the image sha256:"), "{text}");
}
