//! Reduce, and collectives composed of puts, reduces and gets.

mod all_to_all;
mod allreduce;
mod barrier;
mod gather;
mod participant;
mod parts;
mod reduce;
