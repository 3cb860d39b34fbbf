//! Fuzzes [`hoplite_fuzz::node::events`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hoplite_fuzz::node::events(bytes));
