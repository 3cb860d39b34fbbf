//! Fuzzes [`hoplite_fuzz::dashboard::question`].
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: hoplite_fuzz::samples::write(hoplite_fuzz::samples::questions()),
    |bytes: &[u8]| hoplite_fuzz::dashboard::question(bytes)
);
