//! Compiles `proto/` with protox, which needs no `protoc`, and keeps the descriptors for gRPC reflection and for protobuf's
//! JSON mapping. Without the server there is nothing to compile.

fn main() {
    #[cfg(feature = "server")]
    if let Err(error) = server::compile() {
        panic!("cannot compile proto/: {error}");
    }
}

#[cfg(feature = "server")]
mod server {
    use std::{env, error::Error, fs, path::PathBuf};

    use prost::Message as _;

    const FILES: [&str; 1] = ["envoy/service/ratelimit/v3/rls.proto"];

    pub(super) fn compile() -> Result<(), Box<dyn Error>> {
        println!("cargo:rerun-if-changed=proto");
        let descriptors = protox::compile(FILES, ["proto"])?;
        let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?).join("descriptors.bin");
        fs::write(out, descriptors.encode_to_vec())?;
        tonic_prost_build::configure().include_file("proto.rs").compile_fds(descriptors)?;
        Ok(())
    }
}
