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

    /// What weir serves, and gRPC reflection therefore shows.
    const SERVED: [&str; 2] = ["envoy/service/ratelimit/v3/rls.proto", "weir/v1/limiter.proto"];

    /// What weir is a client of.
    const CALLED: [&str; 2] =
        ["envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

    pub(super) fn compile() -> Result<(), Box<dyn Error>> {
        println!("cargo:rerun-if-changed=proto");
        let served = protox::compile(SERVED, ["proto"])?;
        let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?).join("descriptors.bin");
        fs::write(out, served.encode_to_vec())?;
        let all = protox::compile(SERVED.iter().chain(&CALLED), ["proto"])?;
        tonic_prost_build::configure().include_file("proto.rs").compile_fds(all)?;
        Ok(())
    }
}
