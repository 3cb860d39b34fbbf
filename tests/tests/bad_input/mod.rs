//! Bad input gets a typed error, on every plane, and the daemons go on.
//!
//! * `calls`: what an application may ask for that makes no sense or cannot be.
//! * `reduces`: as `calls`, for reduces.
//! * `connecting`: paths at which no store of ours listens.
//! * `starting`: daemons that cannot start.
//! * `resources`: limits of the process, and memory that others try to take away.
//! * `local_plane`, `control_plane`, `data_plane`: what is not of the protocol.
//! * `sessions`: as `data_plane`, for sessions of collectives.
//! * `forged`: what a client writes into the headers of objects.
//! * `clients`: clients that die between any two messages.
//! * `strangers`: thousands who never say who they are, and handshakes that stay half open.

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
