//! Relays in front of the data planes of stores, which hold bytes back or break connections.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use hoplite_proto::v1;
use prost::Message;

use crate::cluster::{Cluster, await_that};
use crate::raw::{HEADER_BYTES, payload_length};

type Direction = (usize, usize);

#[derive(Debug)]
pub struct Links {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stores: BTreeMap<usize, SocketAddr>,
    passed: BTreeMap<Direction, u64>,
    limits: BTreeMap<Direction, u64>,
    connections: BTreeMap<u64, (Direction, [TcpStream; 2])>,
    last_number: u64,
    is_over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until bytes may pass; `None` if the connection was broken.
    fn pass(&self, number: u64, way: Direction, length: usize) -> Option<usize> {
        let mut state = self.state();
        loop {
            if !state.connections.contains_key(&number) {
                return None;
            }
            let limit = state.limits.get(&way).copied().unwrap_or(u64::MAX);
            let passed = state.passed.entry(way).or_default();
            let passable_bytes = limit.saturating_sub(*passed).min(length as u64);
            if passable_bytes > 0 {
                *passed += passable_bytes;
                return usize::try_from(passable_bytes).ok();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Links {
    /// Creates relays. Stores must advertise [their addresses](Self::addresses).
    pub fn new(nodes: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let relay = |to: usize| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            let address = listener.local_addr().expect("it listens");
            let shared = Arc::clone(&shared);
            thread::spawn(move || relay(&shared, &listener, to));
            address
        };
        Self { addresses: (0..nodes).map(relay).collect(), shared }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.addresses.iter().map(ToString::to_string).collect()
    }

    pub fn attach(&self, cluster: &Cluster) {
        let running = (0..self.addresses.len()).filter(|node| cluster.stores[*node].is_some());
        let stores = running.map(|node| {
            let address =
                cluster.data_address(node).parse().expect("a store says where it listens");
            (node, address)
        });
        let stores: BTreeMap<usize, SocketAddr> = stores.collect();
        self.shared.change(|state| state.stores = stores);
    }

    pub fn mark(&self) {
        self.shared.change(|state| state.passed.clear());
    }

    /// Holds bytes back after the first `bytes`, until [`open`](Self::open).
    pub fn hold(&self, from: usize, to: usize, bytes: u64) {
        self.shared.change(|state| {
            state.limits.insert((from, to), bytes);
        });
    }

    pub fn silence(&self, one: usize, other: usize) {
        self.hold(one, other, 0);
        self.hold(other, one, 0);
    }

    pub fn isolate(&self, node: usize) {
        for other in (0..self.addresses.len()).filter(|other| *other != node) {
            self.silence(node, other);
        }
    }

    pub fn open(&self) {
        self.shared.change(|state| state.limits.clear());
    }

    pub fn await_held(&self, from: usize, to: usize) {
        await_that("bytes that are held up", || {
            let state = self.shared.state();
            let limit = state.limits.get(&(from, to));
            limit.is_some_and(|limit| {
                state.passed.get(&(from, to)).is_some_and(|passed| passed >= limit)
            })
        });
    }

    pub fn reset(&self, one: usize, other: usize) {
        self.shared.change(|state| {
            state.connections.retain(|_, (way, sockets)| {
                let is_between = *way == (one, other) || *way == (other, one);
                if is_between {
                    close(sockets);
                }
                !is_between
            });
        });
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.is_over = true;
            state.connections.values().for_each(|(_, sockets)| close(sockets));
            state.connections.clear();
        });
        for address in &self.addresses {
            drop(TcpStream::connect(address));
        }
    }
}

fn close(sockets: &[TcpStream; 2]) {
    for socket in sockets {
        let _ = socket.shutdown(Shutdown::Both);
    }
}

fn relay(shared: &Arc<Shared>, listener: &TcpListener, to: usize) {
    for incoming in listener.incoming() {
        if shared.state().is_over {
            return;
        }
        let Ok(incoming) = incoming else { continue };
        let shared = Arc::clone(shared);
        thread::spawn(move || drop(carry(&shared, incoming, to)));
    }
}

fn carry(shared: &Arc<Shared>, mut incoming: TcpStream, to: usize) -> io::Result<()> {
    let (from, introduction) = introduction(&mut incoming)?;
    let store = shared.state().stores.get(&to).copied().ok_or(io::ErrorKind::NotConnected)?;
    let outgoing = TcpStream::connect(store)?;
    for socket in [&incoming, &outgoing] {
        socket.set_nodelay(true)?;
    }
    let sockets = [incoming.try_clone()?, outgoing.try_clone()?];
    let number = {
        let mut state = shared.state();
        state.last_number += 1;
        let number = state.last_number;
        state.connections.insert(number, ((from, to), sockets));
        number
    };
    let back = (outgoing.try_clone()?, incoming.try_clone()?);
    let for_back = Arc::clone(shared);
    let answers = thread::spawn(move || pump(&for_back, number, (to, from), back, Vec::new()));
    pump(shared, number, (from, to), (incoming, outgoing), introduction);
    let _ = answers.join();
    shared.change(|state| {
        state.connections.remove(&number);
    });
    Ok(())
}

fn introduction(incoming: &mut TcpStream) -> io::Result<(usize, Vec<u8>)> {
    let mut frame = vec![0; HEADER_BYTES];
    incoming.read_exact(&mut frame)?;
    frame.resize(HEADER_BYTES + payload_length(&frame), 0);
    incoming.read_exact(&mut frame[HEADER_BYTES..])?;
    let hello = v1::DataHello::decode(&frame[HEADER_BYTES..])?;
    let number = hello.node.strip_prefix("node-").and_then(|number| number.parse().ok());
    Ok((number.ok_or(io::ErrorKind::InvalidData)?, frame))
}

fn pump(
    shared: &Shared,
    number: u64,
    way: Direction,
    (mut from, mut to): (TcpStream, TcpStream),
    first: Vec<u8>,
) {
    let mut bytes = first;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Some(length) = shared.pass(number, way, rest.len()) else { return };
            let (now, later) = rest.split_at(length);
            if to.write_all(now).is_err() {
                return close(&[from, to]);
            }
            rest = later;
        }
        match from.read(&mut buffer) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(length) => bytes = buffer[..length].to_vec(),
            Err(_) => return close(&[from, to]),
        }
    }
}
