//! Fuzzes [`hoplite_fuzz::collective::events`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hoplite_fuzz::collective::events(bytes));
