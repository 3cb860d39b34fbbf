use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit on file descriptors to the hard limit.
pub fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
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
