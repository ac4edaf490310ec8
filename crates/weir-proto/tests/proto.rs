//! The generated code of `crates/weir-proto/src` is that of the files in `proto`. `WEIR_WRITE_PROTO=1` writes it.

use std::{collections::BTreeMap, fs, path::Path};

use prost::Message as _;

/// The folder of the files, from the folder of this crate.
const PROTO: &str = "../../proto";

/// What weir serves, and gRPC reflection therefore shows.
const SERVED: [&str; 2] = ["envoy/service/ratelimit/v3/rls.proto", "weir/v1/limiter.proto"];

/// What weir is a client of.
const CALLED: [&str; 2] =
    ["envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

/// Returns the generated files by name. Compiles with protox, which needs no `protoc`.
fn generated() -> BTreeMap<String, Vec<u8>> {
    let out = tempfile::tempdir().expect("a directory");
    let served = protox::compile(SERVED, [PROTO]).expect("valid files");
    fs::write(out.path().join("descriptors.bin"), served.encode_to_vec()).expect("it is written");
    let all = protox::compile(SERVED.iter().chain(&CALLED), [PROTO]).expect("valid files");
    let builder = tonic_prost_build::configure().out_dir(out.path()).include_file("tree.rs");
    builder.compile_fds(all).expect("it generates code");
    files(out.path())
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file"));
    let read = entries.map(|entry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        (name, fs::read(entry.path()).expect("it can be read"))
    });
    read.filter(|(name, _)| name != "lib.rs").collect()
}

#[test]
fn the_generated_code_is_that_of_the_proto_files() {
    let (folder, generated) = (Path::new("src"), generated());
    let kept = files(folder);
    if std::env::var_os("WEIR_WRITE_PROTO").is_some() {
        for name in kept.keys() {
            fs::remove_file(folder.join(name)).expect("it can be removed");
        }
        for (name, code) in &generated {
            fs::write(folder.join(name), code).expect("it can be written");
        }
        return;
    }
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&kept), names(&generated), "run `make proto`");
    for (name, code) in &generated {
        assert!(kept[name] == *code, "crates/weir-proto/src/{name} differs: run `make proto`");
    }
}
