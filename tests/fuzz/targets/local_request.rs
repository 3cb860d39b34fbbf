//! Fuzzes [`hoplite_fuzz::local::request`].
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: hoplite_fuzz::samples::write(hoplite_fuzz::samples::requests()),
    |bytes: &[u8]| hoplite_fuzz::local::request(bytes)
);
