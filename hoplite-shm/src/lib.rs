//! Shared memory: the arena and its buffers.
//!
//! * [`Arena`], [`Buffer`]: the store's side.
//! * [`Mapping`], [`Reader`], [`Writer`]: a client's side of the same memory.
//! * [`fds`]: sends file descriptors to clients.
//!
//! [`hoplite_core::node`] assigns extents and decides about their writers.
//!
//! # Layout
//!
//! Each object has an extent: a `repr(C)` header of [`HEADER_BYTES`], which consists of atomics,
//! then the object's bytes.
//!
//! ```text
//! offset  0  magic and version      u64
//!         8  size_bytes             u64
//!        16  valid_bytes            u64   the number of valid leading bytes; only grows
//!        24  wanted                 u32   the store waits for a doorbell message of the writer
//!        28  state                  u32   open, complete, failed
//!        32  reserved
//!        64  the object's bytes
//! ```
//!
//! # Memory model
//!
//! Rust's memory model does not cover other processes. This crate stays safe by these rules:
//!
//! * By protocol, each byte has one writer at a time: the creating client until it finishes, or the
//!   store's transfer. A byte is written before `valid_bytes` passes it, and never afterwards.
//! * The creating client raises `valid_bytes` at most to the start of the last block. The store
//!   raises it to the end when the client seals the object.
//! * `valid_bytes` is stored after the bytes, with release ordering or stronger, and loaded before
//!   they are read, with acquire ordering. So bytes below it have their final values.
//! * This crate forms no reference to bytes that may still change, even through a misbehaving
//!   client. It copies them through raw pointers or by the kernel, to or from private memory. A
//!   misbehaving client can therefore corrupt objects, but not the store's memory safety.
//! * The exception is [`Reader::as_slice`], which lends a complete object. It trusts the store's
//!   other clients, of the same user or group, to write only through [`Writer`].
//! * Clients can forge headers, so each read bounds their numbers, and no process waits for a
//!   header alone: a reader that misses bytes queries the store ([`Reader::confirm`]), which counts
//!   the bytes that it fills.
//!
//! All unsafe code of the workspace is in this crate, or in the Python module.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod fds;

mod arena;
mod backing;
mod buffer;
mod mapping;
mod reader;
mod writer;

mod error;
mod header;
mod heap;
mod inbox;
mod limits;
mod peer;
mod progress;
mod region;
mod span;
mod stream;
mod tcp;

mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

pub use arena::Arena;
pub use backing::Backing;
pub use buffer::Buffer;
pub use error::{Error, Result};
pub use heap::{free_heap_bytes, return_free_pages};
pub use hoplite_core::extent::{Extent, HEADER_BYTES};
pub use inbox::receive;
pub use limits::{address_space_limit_bytes, file_size_limit_bytes, ignore_file_size_signal};
pub use mapping::Mapping;
pub use peer::{peer_groups, peer_process, peer_user};
pub use progress::State;
pub use reader::Reader;
pub use tcp::{delivery, set_receive_low_water, set_unsent_limit, unacknowledged};
pub use writer::{Doorbell, Writer};

const _: () = assert!(usize::BITS == u64::BITS, "an arena is addressed with 64 bits");
