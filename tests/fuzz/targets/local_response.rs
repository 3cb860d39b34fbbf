//! Fuzzes [`hoplite_fuzz::local::response`].
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: hoplite_fuzz::samples::write(hoplite_fuzz::samples::responses()),
    |bytes: &[u8]| hoplite_fuzz::local::response(bytes)
);
