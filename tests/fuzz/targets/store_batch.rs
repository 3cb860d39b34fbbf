//! Fuzzes [`hoplite_fuzz::session::store_batch`].
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: hoplite_fuzz::samples::write(hoplite_fuzz::samples::store_batches()),
    |bytes: &[u8]| hoplite_fuzz::session::store_batch(bytes)
);
