//! Fuzzes [`hoplite_fuzz::lanes::events`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hoplite_fuzz::lanes::events(bytes));
