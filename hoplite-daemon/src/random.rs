use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a number that identifies a run of a daemon.
///
/// # Errors
/// System errors.
pub fn random_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
