//! Orderings, schedules, sizes of blocks, and what is known of the links.

pub mod blocks;
pub mod broadcast;
pub mod chain;
pub mod collective;
pub mod link;
pub mod reduce;
