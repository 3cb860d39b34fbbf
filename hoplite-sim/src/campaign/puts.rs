use std::ops::RangeInclusive;
use std::time::Duration;

use hoplite_core::metadata::Replicas;
use hoplite_core::node::{Confirm, ObjectView, Request, Response};
use hoplite_core::{Dtype, Metadata, ObjectId};

use super::clients::Client;
use super::scenario::DTYPE;
use super::{Kind, Simulation};
use crate::cluster::{Answer, bytes_of};

/// Sizes of an empty object, two inline ones, and objects of a few and many blocks.
const SIZES: [u64; 5] = [0, 100, 4095, 20_000, 65_000];
/// Sizes of objects whose bytes travel in the put's request: from a number that identifies the
/// contents to the request's limit.
const PUT_WHOLE: RangeInclusive<u64> = 8..=8192;

#[derive(Debug, Clone)]
struct Put {
    client: u64,
    store: usize,
    id: ObjectId,
    tag: u64,
}

impl Simulation {
    pub(super) fn put(&mut self, client: u64, id: ObjectId) {
        let is_plain = Kind::of(&id) == Kind::Plain;
        let known = self.app.history.contents_of(&id);
        let (tag, size_bytes) = if !known.is_empty() && self.random.chance(30) {
            *self.random.pick(&known)
        } else {
            let is_large = self.random.chance(25);
            let size_bytes = match is_plain {
                true if is_large => self.app.scenario.largest_bytes,
                true => *self.random.pick(&SIZES),
                false => self.any_size_to_reduce(),
            };
            (if size_bytes == 0 { 0 } else { self.fresh_number() }, size_bytes)
        };
        self.app.history.put_started(&id, tag, size_bytes);
        let store = self.app.clients[&client].store;
        self.app.history.writer_started(&id, store);
        let timeout = self.any_timeout();
        let dtype = if is_plain { Dtype::Opaque } else { DTYPE };
        let wants_copies = self.random.chance(30);
        let wanted = if wants_copies { *self.random.pick(&[2, 3]) } else { 0 };
        let replicas = Replicas {
            wanted,
            awaited: u8::from(wants_copies && self.random.chance(20)),
            quorum: false,
        };
        let metadata = Metadata { dtype, replicas, ..Metadata::default() };
        let put = Put { client, store, id: id.clone(), tag };
        if PUT_WHOLE.contains(&size_bytes) && self.random.chance(50) {
            return self.put_whole(put, size_bytes, metadata, timeout);
        }
        let request = Request::Create { id, size_bytes, metadata, timeout };
        let then = move |sim: &mut Self, answer: Answer| sim.create_answered(put, answer);
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn create_answered(&mut self, put: Put, answer: Answer) {
        match answer {
            Ok(Response::Created(view)) => {
                let store = self.app.clients[&put.client].store;
                self.copy(store, view.copy).tag = Some(put.tag);
                self.write(put, view);
            }
            Ok(Response::Existing(view)) => self.exists_already(&put, &view),
            Ok(other) => panic!("a create is answered with {other:?}"),
            Err(_) => {
                self.put_ended(&put);
                self.act_later(put.client);
            }
        }
    }

    fn exists_already(&mut self, put: &Put, view: &ObjectView) {
        let store = self.app.clients[&put.client].store;
        let copy = self.copy(store, view.copy).clone();
        assert!(
            copy.is_complete && copy.size_bytes == view.size_bytes,
            "an existing copy is whole"
        );
        self.check_contents(&put.id, copy.tag, view.size_bytes, self.now());
        self.put_ended(put);
        self.release_later(put.client, view.copy);
    }

    fn put_whole(&mut self, put: Put, size_bytes: u64, metadata: Metadata, timeout: Duration) {
        let confirm = if self.random.chance(70) { Confirm::Yes } else { Confirm::No };
        let bytes = bytes_of(Some(put.tag), size_bytes);
        let request = Request::Put { id: put.id.clone(), metadata, bytes, confirm, timeout };
        let client = put.client;
        let then = move |sim: &mut Self, answer: Answer| {
            match answer {
                Ok(Response::Sealed) if confirm == Confirm::Yes => {
                    sim.app.history.confirmed(&put.id, sim.now());
                    sim.put_ended(&put);
                }
                Ok(Response::Existing(view)) => return sim.exists_already(&put, &view),
                Ok(Response::Sealed) | Err(_) => sim.put_left_open(&put),
                Ok(other) => panic!("a put is answered with {other:?}"),
            }
            sim.act_later(client);
        };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn put_ended(&mut self, put: &Put) {
        self.app.history.put_ended(&put.id, put.tag, self.now());
        self.app.history.writer_ended(&put.id, put.store, self.now());
    }

    fn put_left_open(&mut self, put: &Put) {
        self.app.history.put_left_open(&put.id, put.tag, self.now());
        self.app.history.writer_ended(&put.id, put.store, self.now());
    }

    fn write(&mut self, put: Put, view: ObjectView) {
        let Some(Client { store, .. }) = self.app.clients.get(&put.client) else { return };
        let store = *store;
        let chunk = self.random.number(4096..50_000);
        let copy = self.copy(store, view.copy);
        copy.valid_bytes = (copy.valid_bytes + chunk).min(copy.size_bytes);
        let is_done = copy.valid_bytes == copy.size_bytes;
        let delay = if self.random.chance(2) {
            self.random.millis(1..800)
        } else {
            self.random.micros(20..800) * self.app.scenario.slowness
        };
        self.after(delay, move |sim| {
            if !sim.app.clients.contains_key(&put.client) {
                return;
            }
            if is_done { sim.end_put(put, &view) } else { sim.write(put, view) }
        });
    }

    fn end_put(&mut self, put: Put, view: &ObjectView) {
        let (client, copy) = (put.client, view.copy);
        match self.random.number(0..100) {
            0..5 => {
                self.put_left_open(&put);
                self.kill_client(client);
            }
            5..10 => {
                self.put_left_open(&put);
                self.release(client, copy);
                self.act_later(client);
            }
            10..25 => {
                self.put_left_open(&put);
                self.call(client, Request::SealUnconfirmed { copy }, None, None);
                self.release_later(client, copy);
            }
            _ => {
                let timeout = self.random.millis(500..4000);
                let then = move |sim: &mut Self, answer: Answer| {
                    match answer {
                        Ok(Response::Sealed) => {
                            sim.app.history.confirmed(&put.id, sim.now());
                            sim.put_ended(&put);
                        }
                        Ok(other) => panic!("a seal is answered with {other:?}"),
                        Err(_) => sim.put_left_open(&put),
                    }
                    sim.release_later(client, copy);
                };
                let request = Request::Seal { copy, timeout };
                self.call(client, request, Some(timeout), Some(Box::new(then)));
            }
        }
    }
}
