//! Generated protocol types, and their checked conversion to types of `hoplite-core`.
//!
//! * [`directory`]: the control plane. [`data`]: the data plane. [`local`], [`framing`]: the local
//!   plane.
//! * [`dashboard`]: requests of the dashboard's page.
//! * [`error`], [`lifetime`], [`metadata`], [`trouble`], [`trace`]: types of all planes. `status`:
//!   errors in gRPC. [`report`]: JSON for users.
//! * [`socket_path`], [`socket_place`]: the local socket, safe from other users.
//! * [`bounds`]: limits on peers' messages. This crate checks every length once, so core types are
//!   valid.
//!
//! The feature `grpc` adds gRPC's clients and servers.
#![forbid(unsafe_code)]

use hoplite_core::Version;

/// Types generated from the files in `proto/hoplite/v1`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::allow_attributes,
    clippy::too_many_lines,
    unreachable_pub,
    reason = "generated code"
)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/hoplite.v1.rs"));
}

/// Descriptors of all protocol files, for gRPC reflection.
#[cfg(feature = "grpc")]
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hoplite.bin"));

/// Newest protocol version of this program, on the local, control and data planes.
pub const PROTOCOL_VERSION: u32 = Version::NEWEST.number();

pub mod socket_path;
pub mod socket_place;

pub mod dashboard;
pub mod data;
pub mod directory;
pub mod local;

pub mod error;
pub mod lifetime;
pub mod metadata;
pub mod report;
#[cfg(feature = "grpc")]
pub mod status;
pub mod trace;
pub mod trouble;

pub mod bounds;
pub mod framing;

#[cfg(test)]
mod arbitrary;
mod enumeration;
mod quota;
mod reduce;
