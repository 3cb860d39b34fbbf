//! A reference to a local copy, which protects the copy's memory.

use std::sync::Arc;

use hoplite_core::node::CopyId;

use crate::connection::{Connection, Role};

/// One reference. Dropping it gives it back, on any thread, without blocking.
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

    /// Turns this into the reference of a reader, because the copy is being sealed.
    pub(crate) fn becomes_reader(&mut self) {
        self.role = Role::Reader;
    }

    /// Records that another request gives the reference back.
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
