//! Bad input gets a typed error on every plane, and the daemons continue.
//!
//! * `calls`: requests of an application that are invalid or impossible.
//! * `reduces`: the same for reduces.
//! * `connecting`: paths without a listening store.
//! * `starting`: daemons that cannot start.
//! * `resources`: limits of the process, and attacks on its memory.
//! * `local_plane`, `control_plane`, `data_plane`: invalid messages.
//! * `sessions`: invalid messages for collectives.
//! * `forged`: forged headers of objects.
//! * `clients`: clients that die between any two messages.
//! * `strangers`: thousands of anonymous peers, and handshakes that stay half open.

mod calls;
mod clients;
mod connecting;
mod control_plane;
mod data_plane;
mod forged;
mod local_plane;
mod reduces;
mod resources;
mod sessions;
mod starting;
mod strangers;

use hoplite_tests::PATIENCE;
