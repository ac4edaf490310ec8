//! The image of a release, as an archive.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Write as _},
    process::Command,
};

use serde_json::Value;
use weir_testing::repository;

use crate::docker::docker;

/// Runs a script of the repository, and returns what it prints.
#[track_caller]
fn script(arguments: &[&str]) -> String {
    let mut command = Command::new(repository(arguments[0]));
    let output =
        command.args(&arguments[1..]).current_dir(repository("")).output().expect("it can be started");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Returns the files of a tar archive, by name.
fn unpack(path: &str) -> BTreeMap<String, Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("the archive");
    let mut files = BTreeMap::new();
    let mut rest = &bytes[..];
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    while let Some(name) = rest.get(..100).map(text).filter(|name| !name.is_empty()) {
        let size = usize::from_str_radix(text(&rest[124..135]).trim(), 8).expect("a size");
        files.insert(name, rest[512..512 + size].to_vec());
        rest = &rest[512 + size.next_multiple_of(512)..];
    }
    files
}

/// Returns the digest that `sha256sum` computes, in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("it is written");
    let output = Command::new("sha256sum").arg(file.path()).output().expect("it can be started");
    String::from_utf8_lossy(&output.stdout)[..64].to_owned()
}

#[test]
fn the_packaged_image_is_a_valid_layout_that_docker_loads() {
    let Some(docker) = docker() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (saved, packed) = (path("saved.tar"), path("image.tar"));
    docker.run(&["save", "--output", &saved, &docker.image]);
    let digest = script(&["scripts/oci-image.py", "weir-test-packed:1", &packed, &saved]);
    let again = script(&["scripts/oci-image.py", "weir-test-packed:1", &path("again.tar"), &saved]);
    assert_eq!(digest, again);

    // every blob is what its name and its descriptor say
    let files = unpack(&packed);
    let json = |name: &str| -> Value { serde_json::from_slice(&files[name]).expect("JSON") };
    let blob = |descriptor: &Value| {
        let digest =
            descriptor["digest"].as_str().expect("a digest").strip_prefix("sha256:").expect("SHA-256");
        let bytes = &files[&format!("blobs/sha256/{digest}")];
        assert_eq!(sha256(bytes), digest);
        assert_eq!(descriptor["size"], bytes.len());
        bytes.clone()
    };
    assert_eq!(json("oci-layout")["imageLayoutVersion"], "1.0.0");
    let index = json("index.json");
    assert_eq!(index["manifests"][0]["digest"], digest.as_str());
    let index: Value = serde_json::from_slice(&blob(&index["manifests"][0])).expect("JSON");
    assert_eq!(index["manifests"][0]["platform"]["os"], "linux");
    let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])).expect("JSON");
    let config: Value = serde_json::from_slice(&blob(&manifest["config"])).expect("JSON");
    assert_eq!(config["config"]["User"], "65532:65532");
    let layers = manifest["layers"].as_array().expect("layers");
    assert_eq!(Some(layers.len()), config["rootfs"]["diff_ids"].as_array().map(Vec::len));
    for layer in layers {
        blob(layer);
    }

    // the same image as before
    docker.run(&["load", "--input", &packed]);
    let version = docker.run(&["run", "--rm", "weir-test-packed:1", "--version"]);
    docker.run(&["image", "rm", "weir-test-packed:1"]);
    assert_eq!(version, concat!("weir ", env!("CARGO_PKG_VERSION")));

    // with the same program for another architecture, the image is an index of both, and shares their layers
    let other = path("other");
    let arm = format!(
        "mkdir {other} && tar -xf {saved} -C {other} && cd {other} && \
         sed -i 's/\"architecture\":\"[a-z0-9]*\"/\"architecture\":\"s390x\"/' \
         \"$(sed 's/.*\"Config\":\"\\([^\"]*\\)\".*/\\1/' manifest.json)\" && tar -cf {other}.tar ."
    );
    let made = Command::new("sh").args(["-c", &arm]).output().expect("a shell");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let both = path("both.tar");
    script(&["scripts/oci-image.py", "weir:1", &both, &saved, &format!("{other}.tar")]);
    let files = unpack(&both);
    let top: Value = serde_json::from_slice(&files["index.json"]).expect("JSON");
    let digest = top["manifests"][0]["digest"].as_str().expect("a digest").replace(':', "/");
    let index: Value = serde_json::from_slice(&files[&format!("blobs/{digest}")]).expect("JSON");
    let architecture = |i: usize| index["manifests"][i]["platform"]["architecture"].clone();
    assert_eq!((architecture(0), architecture(1)), (config["architecture"].clone(), "s390x".into()));
    let blobs = files.keys().filter(|name| name.starts_with("blobs/")).count();
    assert_eq!(
        blobs,
        layers.len() + 2 * 2 + 1,
        "the layers, two configurations and manifests, and the index"
    );

    // two archives of one architecture cannot be one image
    let twice = Command::new(repository("scripts/oci-image.py"))
        .args(["weir:1", &path("twice.tar"), &saved, &saved])
        .output()
        .expect("it can be started");
    assert!(String::from_utf8_lossy(&twice.stderr).contains("of one architecture"), "{twice:?}");
}
