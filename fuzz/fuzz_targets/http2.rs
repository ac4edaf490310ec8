//! Fuzzes the target `http2` of `src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzz::Target::named("http2").run(input));
