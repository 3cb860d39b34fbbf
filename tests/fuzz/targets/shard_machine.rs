//! Fuzzes [`hoplite_fuzz::shard::events`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hoplite_fuzz::shard::events(bytes));
