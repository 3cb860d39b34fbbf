//! Fuzzes [`hoplite_fuzz::data::stream`].
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: hoplite_fuzz::samples::write(hoplite_fuzz::samples::frames()),
    |bytes: &[u8]| hoplite_fuzz::data::stream(bytes)
);
