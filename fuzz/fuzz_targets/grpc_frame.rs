//! Fuzzes the target `grpc_frame` of `src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzz::Target::named("grpc_frame").run(input));
