//! How many files and connections this process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the number of descriptors that this process may have open as far as the system allows (the hard limit).
///
/// Shells and service managers start programs with a soft limit of 1024, for the sake of programs that use `select`.
pub fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // A system that does not allow that leaves the limit as it is.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

#[cfg(test)]
mod tests {
    use hoplite_net::descriptor_limit;

    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(descriptor_limit(), limit.maximum.unwrap_or(u64::MAX));
    }
}
