//! The protocols of Hoplite: generated types, and their checked conversion to and from the types of `hoplite-core`.
//!
//! * [`directory`]: the control plane, sessions between stores and shards.
//! * [`local`]: the local plane, between clients and their store; [`framing`] is how its messages are delimited.
//! * [`data`]: the data plane, between stores; [`data::frame`] is how its messages and bytes are delimited.
//! * [`dashboard`]: what the dashboard's page asks for.
//! * [`error`] and [`metadata`]: what all planes share; [`trouble`]: the troubles of a store; `status`: an error as the status of a gRPC call.
//! * [`trace`]: to which trace a message belongs.
//! * [`socket_path`]: where the local socket is by default; [`socket_place`]: who could replace it,
//!   and how it is reached.
//! * [`bounds`]: limits on what a peer may say. Every length is checked here, once; the core types carry the proof.
//!
//! The feature `grpc` adds the clients and servers of the gRPC services, and `status`. Clients of a store do without it.
#![forbid(unsafe_code)]

/// The generated types, one for one with the files in `proto/hoplite/v1`.
#[allow(missing_docs, clippy::all, clippy::allow_attributes, unreachable_pub, reason = "generated code")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/hoplite.v1.rs"));
}

/// The encoded descriptors of all files, for gRPC reflection.
#[cfg(feature = "grpc")]
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hoplite.bin"));

/// The version that all three planes carry; peers must have the same one.
pub const PROTOCOL_VERSION: u32 = 7;

pub mod socket_path;
pub mod socket_place;

pub mod dashboard;
pub mod data;
pub mod directory;
pub mod local;

pub mod error;
pub mod metadata;
#[cfg(feature = "grpc")]
pub mod status;
pub mod trace;
pub mod trouble;

pub mod bounds;
pub mod framing;

#[cfg(test)]
mod arbitrary;
mod enumeration;
mod reduce;
