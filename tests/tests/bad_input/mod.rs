//! Bad input on every plane: the sender gets a typed error, and the daemons continue.

mod calls;
mod clients;
mod connecting;
mod control_plane;
mod data_plane;
mod forged;
mod lanes;
mod local_plane;
mod reduces;
mod resources;
mod sessions;
mod starting;
mod strangers;

use hoplite_tests::TIME_LIMIT;
