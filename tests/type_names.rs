//! One thing, one name: a type's name is defined once in the program and its crates, but for a short list.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The names that several crates may define: each is read beside the name of its crate or module.
const SEVERAL: [&str; 15] = [
    "AcquireError",
    "Auth",
    "Bucket",
    "Command",
    "Connection",
    "Heartbeat",
    "Key",
    "Limiter",
    "Outcome",
    "Rejection",
    "Rules",
    "Series",
    "Server",
    "Service",
    "Value",
];

/// Returns the Rust files below `dir`, without tests, fuzz targets and generated code.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let of = |path: PathBuf| match path.file_name().and_then(|name| name.to_str()) {
        Some("tests" | "tests.rs" | "fuzz.rs" | "weir-harness" | "weir-proto" | "weir-testing") => Vec::new(),
        _ if path.is_dir() => files(&path),
        Some(_) if path.extension().is_some_and(|extension| extension == "rs") => vec![path],
        _ => Vec::new(),
    };
    entries.flat_map(of).collect()
}

/// Returns the name of the type that `line` defines at the top of its file.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let is_type = !line.starts_with(' ')
        && words.next().is_some_and(|word| ["struct", "enum", "trait", "type", "union"].contains(&word));
    words.next().filter(|_| is_type).and_then(|name| name.split(|c: char| !c.is_alphanumeric()).next())
}

#[test]
fn a_type_name_is_defined_once() {
    let mut names: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in ["src", "crates"].into_iter().flat_map(|dir| files(Path::new(dir))) {
        let text = fs::read_to_string(&file).expect("it can be read");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for name in code.lines().filter_map(defined) {
            names.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    assert!(names.len() > 500, "{}", names.len());
    names.retain(|_, files| files.len() > 1);
    let several: Vec<&str> = names.keys().map(String::as_str).collect();
    assert_eq!(several, SEVERAL, "{names:#?}");
}
