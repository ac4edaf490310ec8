//! Fuzzes the target `redis_commands` of `src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzz::Target::named("redis_commands").run(input));
