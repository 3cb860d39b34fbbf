use std::sync::Arc;

use hoplite_core::node::CopyId;

use crate::connection::{Connection, Role};

/// Keeps the store from reusing a local copy's memory. Dropping the reference gives it back to the
/// store, without blocking.
#[derive(Debug)]
pub(crate) struct Reference {
    connection: Arc<Connection>,
    copy: CopyId,
    role: Role,
    owed: Owed,
}

#[derive(Debug, PartialEq, Eq)]
enum Owed {
    Yes,
    No,
}

impl Reference {
    pub(crate) fn new(connection: Arc<Connection>, copy: CopyId, role: Role) -> Self {
        Self { connection, copy, role, owed: Owed::Yes }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn copy(&self) -> CopyId {
        self.copy
    }

    pub(crate) fn becomes_reader(&mut self) {
        self.role = Role::Reader;
    }

    pub(crate) fn given_back(&mut self) {
        self.owed = Owed::No;
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if self.owed == Owed::Yes {
            self.connection.give_back(self.copy, self.role);
        }
    }
}
