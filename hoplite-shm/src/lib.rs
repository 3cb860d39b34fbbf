//! Shared memory: the arena, the buffers in it, and how both get from the store to its clients.
//!
//! * [`Arena`]: the store's side. It creates the memory, faults it in, and gives out a [`Buffer`] per object.
//! * [`Mapping`]: a client's side of the same memory, with a [`Reader`] or a [`Writer`] per object.
//! * [`fds`]: sends file descriptors from the store to its clients; [`receive`]: what clients and store have to say.
//! * [`ignore_file_size_signal`], [`file_size_limit_bytes`], [`address_space_limit_bytes`]: the limits of a process that
//!   shared memory runs into.
//! * [`kept_bytes`], [`give_back_free_pages`]: the memory that a process has freed and still takes.
//! * [`delivery`]: what only the kernel knows of a connection over which objects go; [`set_receive_low_water`]: when it wakes the
//!   reader of one; [`peer_groups`] and [`peer_user`]: what it knows of the process at the other end of a Unix socket.
//!
//! This crate has no policy. [`hoplite_core::node`] decides which extent belongs to which object and who may write it, with the
//! help of [`hoplite_core::extent::Allocator`].
//!
//! # Layout
//!
//! Each object has one extent of the arena: a header of [`HEADER_BYTES`], then the object's bytes. The header is
//! `repr(C)`, versioned, and made of atomics only:
//!
//! ```text
//! offset  0  magic and version      u64
//!         8  size_bytes             u64
//!        16  valid_bytes            u64   how many leading bytes are valid; only ever grows
//!        24  wanted                 u32   the store waits for progress: the writer must ring the doorbell
//!        28  state                  u32   open, complete, failed
//!        32  reserved
//!        64  the object's bytes
//! ```
//!
//! # Memory model
//!
//! Rust's rules end at the process: they do not cover what another process does to shared memory. This crate, like
//! others that share memory (with guests of a virtual machine, say), stays on the safe side as follows.
//!
//! * Each byte has one writer at a time, by protocol: the client that created the object until it finishes, or the
//!   store's transfer that fills it. A byte is written before `valid_bytes` passes it, and never again.
//! * A client's `valid_bytes` ends before the last block; the store raises it to the end when the client seals.
//! * `valid_bytes` is stored after the bytes, with release ordering or stronger, and loaded with acquire ordering
//!   before they are read. A reader that stays below it sees the bytes that were meant.
//! * No reference is formed to bytes that may still change, by protocol or by a misbehaving client. They are only copied,
//!   through raw pointers, to or from private memory, and the kernel gets raw pointers too. So a client that breaks the
//!   protocol can spoil bytes of objects, but not the store's memory safety.
//! * The exception is [`Reader::as_slice`], which lends a complete object without a copy. It trusts the other clients
//!   of the same store, which are of the same user or group, to write to objects only through [`Writer`].
//! * Numbers in a header are bounded each time they are read. Every client that may write can forge
//!   them, so nobody waits for a header alone: the store keeps its own count of what it fills
//!   itself and of what it has called complete, and a reader that misses bytes asks the store over
//!   its connection ([`Reader::confirm`]).
//!
//! All unsafe code of the workspace is in this crate; outside of `region` and `header` there is hardly any.
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

/// What `progress` uses. Its model has those of loom instead.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

pub use arena::Arena;
pub use backing::Backing;
pub use buffer::Buffer;
pub use error::{Error, Result};
pub use heap::{give_back_free_pages, kept_bytes};
pub use hoplite_core::extent::{Extent, HEADER_BYTES};
pub use inbox::receive;
pub use limits::{address_space_limit_bytes, file_size_limit_bytes, ignore_file_size_signal};
pub use mapping::Mapping;
pub use peer::{peer_groups, peer_user};
pub use progress::State;
pub use reader::Reader;
pub use tcp::{delivery, set_receive_low_water};
pub use writer::{Doorbell, Writer};

// Offsets are u64 in messages and usize in memory. With equal widths, the conversions lose nothing.
const _: () = assert!(usize::BITS == u64::BITS, "an arena is addressed with 64 bits");
