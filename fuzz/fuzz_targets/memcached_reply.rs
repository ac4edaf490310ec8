//! Fuzzes the target `memcached_reply` of `src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzz::Target::named("memcached_reply").run(input));
