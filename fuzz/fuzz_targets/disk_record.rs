//! Fuzzes the target `disk_record` of `src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzz::Target::named("disk_record").run(input));
