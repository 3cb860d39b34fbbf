//! The protocols of Hoplite: generated types, and their checked conversion to and from the types of
//! `hoplite-core`.
//!
//! * [`directory`]: the control plane, between stores and shards.
//! * [`local`]: the local plane, between clients and their store; [`framing`]: its frames.
//! * [`data`]: the data plane, between stores; [`data::frame`]: its frames.
//! * [`dashboard`]: the requests of the dashboard's page.
//! * [`error`] and [`metadata`]: types that all planes share; [`trouble`]: the problems of a store;
//!   `status`: an error as the status of a gRPC call.
//! * [`trace`]: the trace of a message.
//! * [`socket_path`]: the default path of the local socket; [`socket_place`]: checks that no other
//!   user can replace it.
//! * [`bounds`]: limits on messages of peers. Every length is checked here, once; the core types
//!   carry the proof.
//!
//! The feature `grpc` adds the clients and servers of the gRPC services, and `status`.
#![forbid(unsafe_code)]

/// The types generated from the files in `proto/hoplite/v1`.
#[allow(missing_docs, clippy::all, clippy::allow_attributes, unreachable_pub, reason = "generated code")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/hoplite.v1.rs"));
}

/// The encoded descriptors of all files, for gRPC reflection.
#[cfg(feature = "grpc")]
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hoplite.bin"));

/// The version of all three planes; peers must have the same one.
pub const PROTOCOL_VERSION: u32 = 8;

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
