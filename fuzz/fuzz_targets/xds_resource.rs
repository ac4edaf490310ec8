//! Fuzzes the target `xds_resource` of `src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzz::Target::named("xds_resource").run(input));
