//! Fuzzes the target `dns_answer` of `src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzz::Target::named("dns_answer").run(input));
