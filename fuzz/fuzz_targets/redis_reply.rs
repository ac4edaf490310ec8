//! Fuzzes the target `redis_reply` of `src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzz::Target::named("redis_reply").run(input));
