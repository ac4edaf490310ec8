//! The Helm chart, rendered by the real Helm: whether its objects are valid and safe, and what it refuses.
//! `tests/envoy/pod.rs` runs the rendered pod.

mod control_plane;
mod documents;
mod names;
mod network;
mod refused;
mod rendered;
mod rollouts;
mod rules_check;
mod security;

use weir_testing::helm;

use std::{fs, path::PathBuf};

use serde_json::Value;

/// Returns every file of example values.
fn example_values() -> Vec<PathBuf> {
    let files = fs::read_dir(weir_testing::repository("charts/weir/ci")).expect("the folder");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Returns the objects of each file of example values, with the file's name.
fn examples() -> Vec<(String, Vec<Value>)> {
    let rendered = example_values().into_iter().map(|file| {
        let yaml = helm::render(&["--values", file.to_str().expect("UTF-8")]).expect("it renders");
        (file.file_name().expect("a name").to_string_lossy().into_owned(), helm::objects(&yaml))
    });
    rendered.collect()
}

/// Returns the pod that an object makes, if it makes one.
fn pod(object: &Value) -> Option<&Value> {
    object.pointer("/spec/template/spec")
}

/// Returns the elements of a list, of which there may be none.
fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}
