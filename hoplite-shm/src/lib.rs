//! Shared memory: the arena, the buffers in it, and their transfer from the store to its clients.
//!
//! * [`Arena`]: the store's side. It creates the memory, prefaults it, and has a [`Buffer`] for
//!   each object.
//! * [`Mapping`]: a client's side of the same memory, with a [`Reader`] or a [`Writer`] for each
//!   object.
//! * [`fds`]: sends file descriptors from the store to its clients. [`receive`] receives messages
//!   between both.
//! * [`ignore_file_size_signal`], [`file_size_limit_bytes`], [`address_space_limit_bytes`]: the
//!   limits of a process that affect shared memory.
//! * [`kept_bytes`], [`give_back_free_pages`]: free memory that the allocator keeps.
//! * [`delivery`]: the kernel's statistics of a TCP connection. [`set_receive_low_water`]: the
//!   threshold at which the kernel wakes a reader. [`peer_groups`] and [`peer_user`]: the groups
//!   and the user of the process at the other end of a Unix socket.
//!
//! This crate has no policy. [`hoplite_core::node`] assigns extents to objects and decides who may
//! write them, with the help of [`hoplite_core::extent::Allocator`].
//!
//! # Layout
//!
//! Each object has one extent of the arena: a header of [`HEADER_BYTES`], then the object's bytes.
//! The header is `repr(C)`, has a version, and consists of atomics only:
//!
//! ```text
//! offset  0  magic and version      u64
//!         8  size_bytes             u64
//!        16  valid_bytes            u64   the number of valid leading bytes; only grows
//!        24  wanted                 u32   the store waits: the writer must ring the doorbell
//!        28  state                  u32   open, complete, failed
//!        32  reserved
//!        64  the object's bytes
//! ```
//!
//! # Memory model
//!
//! Rust's rules end at the process: they do not cover other processes that access shared memory.
//! This crate stays safe by these rules, like other crates that share memory (for example with
//! guests of a virtual machine):
//!
//! * By protocol, each byte has one writer at a time: the client that created the object until the
//!   client finishes, or the store's transfer that fills the object. A byte is written before
//!   `valid_bytes` passes it, and never afterwards.
//! * A client's `valid_bytes` ends before the last block. The store raises it to the end when the
//!   client seals the object.
//! * `valid_bytes` is stored after the bytes, with release ordering or stronger. It is loaded
//!   before the bytes are read, with acquire ordering. A reader below `valid_bytes` sees the final
//!   bytes.
//! * No reference is formed to bytes that may still change, by protocol or by a misbehaving client.
//!   Such bytes are only copied, through raw pointers, to or from private memory. The kernel also
//!   gets raw pointers. A client that breaks the protocol can therefore corrupt bytes of objects,
//!   but not the store's memory safety.
//! * The exception is [`Reader::as_slice`], which lends a complete object without a copy. It trusts
//!   the other clients of the same store to write objects only through [`Writer`]. These clients
//!   belong to the same user or group.
//! * Numbers in a header are bounded on each read. Every client that may write can forge them, so
//!   no process waits for a header alone. The store has its own count of the bytes that it fills
//!   and of the objects that it has completed. A reader that misses bytes queries the store over
//!   its connection ([`Reader::confirm`]).
//!
//! All unsafe code of the workspace is in this crate, and nearly all of it in `region` and
//! `header`.
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

/// The atomics of `progress`. Its model uses loom's atomics instead.
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
pub use tcp::{delivery, set_receive_low_water, set_unsent_limit};
pub use writer::{Doorbell, Writer};

// Offsets are u64 in messages and usize in memory. With equal widths, conversions are lossless.
const _: () = assert!(usize::BITS == u64::BITS, "an arena is addressed with 64 bits");
