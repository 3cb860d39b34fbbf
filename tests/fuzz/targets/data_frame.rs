//! Fuzzes [`hoplite_fuzz::data::stream`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hoplite_fuzz::data::stream(bytes));
