//! The chart as `make package` packs it: it names the image by digest.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};
use weir_testing::{helm, repository};

use crate::{printed, script};

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn the_packaged_chart_names_its_image_by_digest() {
    let folder = tempfile::tempdir().expect("a directory");
    let chart = folder.path().join("weir");
    let chart = chart.to_str().expect("UTF-8");
    for (image, expected) in [
        ("registry.example.com/team/weir", format!("registry.example.com/team/weir@{DIGEST}")),
        ("weir", format!("weir@{DIGEST}")),
    ] {
        let made = script(&repository(""), &["scripts/release.py", "chart", DIGEST, image, chart]);
        assert!(made.status.success(), "{}", printed(&made));
        let rendered = helm::helm(&["template", "weir", chart]);
        assert!(rendered.status.success(), "{}", printed(&rendered));
        let objects = helm::objects(&String::from_utf8_lossy(&rendered.stdout));
        let deployment = helm::object(&objects, "Deployment", "weir");
        assert_eq!(
            deployment.pointer("/spec/template/spec/containers/0/image"),
            Some(&expected.as_str().into())
        );
        let lint = helm::helm(&["lint", "--strict", chart]);
        assert!(lint.status.success(), "{}", printed(&lint));
        let metadata = printed(&helm::helm(&["show", "chart", chart]));
        assert!(metadata.contains(&format!("image: {expected}")), "{metadata}");
    }
    let invalid = script(&repository(""), &["scripts/release.py", "chart", "sha256:12", "weir", chart]);
    assert!(!invalid.status.success());
    assert!(printed(&invalid).contains("invalid digest 'sha256:12'"), "{}", printed(&invalid));
}

#[test]
fn the_chart_has_the_metadata_of_a_public_one() {
    let folder = tempfile::tempdir().expect("a directory");
    let chart = folder.path().join("weir");
    let path = chart.to_str().expect("UTF-8");
    let mut release = Command::new(repository("scripts/release.py"));
    release.args(["chart", DIGEST, "weir", path]).current_dir(repository(""));
    // what the workflow's environment has
    release.envs([("GITHUB_SERVER_URL", "https://git.example.com"), ("GITHUB_REPOSITORY", "team/weir")]);
    let made = release.output().expect("it can be started");
    assert!(made.status.success(), "{}", printed(&made));

    let metadata = helm::helm(&["show", "chart", path]);
    assert!(metadata.status.success(), "{}", printed(&metadata));
    let metadata = helm::objects(&String::from_utf8_lossy(&metadata.stdout)).remove(0);
    assert_eq!(metadata["home"], "https://git.example.com/team/weir");
    for key in ["kubeVersion", "icon", "sources", "keywords", "maintainers"] {
        assert!(!metadata[key].is_null(), "{key}: {metadata}");
    }
    for annotation in ["category", "license", "prerelease", "links", "images", "containsSecurityUpdates"] {
        assert!(
            metadata["annotations"][format!("artifacthub.io/{annotation}")].is_string(),
            "{annotation}: {metadata}"
        );
    }
    // Artifact Hub shows an icon that is a data URI; this one is icon.svg
    let mut base64 = Command::new("base64");
    let encoded = base64.args(["--decode"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut encoded = encoded.expect("base64 can be started");
    let icon =
        metadata["icon"].as_str().expect("text").strip_prefix("data:image/svg+xml;base64,").expect("an SVG");
    encoded.stdin.take().expect("a pipe").write_all(icon.as_bytes()).expect("it reads");
    let icon = encoded.wait_with_output().expect("its output").stdout;
    let file = fs::read_to_string(repository("charts/weir/icon.svg")).expect("text");
    assert_eq!(String::from_utf8_lossy(&icon), file.trim_end());
}
