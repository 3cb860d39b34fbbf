//! Default path of the local socket.

use std::ffi::OsString;
use std::path::PathBuf;

/// Environment variable that overrides the default path.
pub const SOCKET_VARIABLE: &str = "HOPLITE_SOCKET";

/// Returns `$HOPLITE_SOCKET`; else `$XDG_RUNTIME_DIR/hoplite/store.sock`; else
/// `/tmp/hoplite-<uid>/store.sock`, whose directory any user may have created. Empty variables
/// count as unset.
pub fn default_socket_path() -> PathBuf {
    let variable = |name| std::env::var_os(name);
    choose(
        variable(SOCKET_VARIABLE),
        variable("XDG_RUNTIME_DIR"),
        rustix::process::geteuid().as_raw(),
    )
}

fn choose(socket: Option<OsString>, runtime_directory: Option<OsString>, uid: u32) -> PathBuf {
    let set = |value: Option<OsString>| value.filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(socket) = set(socket) {
        return socket;
    }
    let directory = match set(runtime_directory) {
        Some(directory) => directory.join("hoplite"),
        None => PathBuf::from(format!("/tmp/hoplite-{uid}")),
    };
    directory.join("store.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_comes_first_then_the_runtime_directory_then_tmp() {
        let text = |value: &str| Some(OsString::from(value));
        assert_eq!(choose(text("/a/b.sock"), text("/run/user/7"), 7), PathBuf::from("/a/b.sock"));
        assert_eq!(
            choose(text(""), text("/run/user/7"), 7),
            PathBuf::from("/run/user/7/hoplite/store.sock")
        );
        assert_eq!(choose(None, text(""), 7), PathBuf::from("/tmp/hoplite-7/store.sock"));
        assert_eq!(choose(None, None, 0), PathBuf::from("/tmp/hoplite-0/store.sock"));
    }
}
