use std::str::FromStr;

/// Number of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User(pub u32);

/// Number of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group(pub u32);

/// This machine has no user or group with the name.
#[derive(Debug, thiserror::Error)]
#[error("there is no {kind} {name:?} on this machine")]
pub struct NoSuchAccount {
    kind: &'static str,
    name: String,
}

impl User {
    /// `None` if this machine does not know the name.
    pub fn name(self) -> Option<String> {
        nix::unistd::User::from_uid(self.0.into()).ok().flatten().map(|user| user.name)
    }
}

impl FromStr for User {
    type Err = NoSuchAccount;

    fn from_str(text: &str) -> Result<Self, NoSuchAccount> {
        let found = text
            .parse()
            .ok()
            .or_else(|| Some(nix::unistd::User::from_name(text).ok()??.uid.as_raw()));
        found
            .map(Self)
            .ok_or_else(|| NoSuchAccount { kind: "user", name: text.chars().take(64).collect() })
    }
}

impl FromStr for Group {
    type Err = NoSuchAccount;

    fn from_str(text: &str) -> Result<Self, NoSuchAccount> {
        let found = text
            .parse()
            .ok()
            .or_else(|| Some(nix::unistd::Group::from_name(text).ok()??.gid.as_raw()));
        found
            .map(Self)
            .ok_or_else(|| NoSuchAccount { kind: "group", name: text.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_parsed_from_numbers_and_names() {
        assert_eq!("1234".parse::<User>().unwrap(), User(1234));
        assert_eq!("root".parse::<User>().unwrap(), User(0));
        assert_eq!(User(0).name().as_deref(), Some("root"));
        assert_eq!(User(4_000_001).name(), None);
        assert_eq!("1234".parse::<Group>().unwrap(), Group(1234));
        assert_eq!("root".parse::<Group>().unwrap(), Group(0));
        for unknown in ["", "no such name here", "-1", "99999999999", "a\0b"] {
            assert!(unknown.parse::<User>().is_err(), "{unknown}");
            assert!(unknown.parse::<Group>().is_err(), "{unknown}");
        }
    }
}
