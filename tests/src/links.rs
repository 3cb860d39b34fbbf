//! The links between the data planes of stores, all of them through this process, which holds bytes up and breaks connections.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use hoplite_proto::v1;
use prost::Message;

use crate::cluster::{Cluster, await_that};
use crate::raw::{HEADER_BYTES, payload_length};

/// From which node to which one bytes go.
type Way = (usize, usize);

/// A relay in front of each store of a cluster. The directory is reached without them.
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
    /// Where each store listens.
    stores: BTreeMap<usize, SocketAddr>,
    /// The number of bytes that have passed, of all connections.
    passed: BTreeMap<Way, u64>,
    /// How many may pass; all, if nothing is said.
    limits: BTreeMap<Way, u64>,
    /// Open connections by number: from whom to whom, and both sockets.
    connections: BTreeMap<u64, (Way, [TcpStream; 2])>,
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

    /// Waits until some of `length` bytes may pass on a connection; answers how many, or none if it was broken.
    fn pass(&self, number: u64, way: Way, length: usize) -> Option<usize> {
        let mut state = self.state();
        loop {
            if !state.connections.contains_key(&number) {
                return None;
            }
            let limit = state.limits.get(&way).copied().unwrap_or(u64::MAX);
            let passed = state.passed.entry(way).or_default();
            let room = limit.saturating_sub(*passed).min(length as u64);
            if room > 0 {
                *passed += room;
                return usize::try_from(room).ok();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Links {
    /// Relays for stores number 0 to `nodes`. Stores are to advertise [their addresses](Self::addresses).
    ///
    /// # Panics
    /// If there is no port to listen on.
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

    /// Where stores are reached through the relays.
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.iter().map(ToString::to_string).collect()
    }

    /// Relays to the stores of a cluster that run now.
    pub fn attach(&self, cluster: &Cluster) {
        let running = (0..self.addresses.len()).filter(|node| cluster.stores[*node].is_some());
        let stores = running.map(|node| {
            let address = cluster.data_address(node).parse().expect("a store says where it listens");
            (node, address)
        });
        let stores: BTreeMap<usize, SocketAddr> = stores.collect();
        self.shared.change(|state| state.stores = stores);
    }

    /// Counts from zero again what passes.
    pub fn mark(&self) {
        self.shared.change(|state| state.passed.clear());
    }

    /// Holds up what goes from one node to another one after so many bytes, until [`open`](Self::open). Nobody is told.
    pub fn hold(&self, from: usize, to: usize, bytes: u64) {
        self.shared.change(|state| {
            state.limits.insert((from, to), bytes);
        });
    }

    /// Holds up all that goes between two nodes.
    pub fn silence(&self, one: usize, other: usize) {
        self.hold(one, other, 0);
        self.hold(other, one, 0);
    }

    /// Holds up all that goes to a node or comes from it.
    pub fn isolate(&self, node: usize) {
        for other in (0..self.addresses.len()).filter(|other| *other != node) {
            self.silence(node, other);
        }
    }

    /// Lets everything pass again.
    pub fn open(&self) {
        self.shared.change(|state| state.limits.clear());
    }

    /// Waits until what goes from one node to another one is held up.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn await_held(&self, from: usize, to: usize) {
        await_that("bytes that are held up", || {
            let state = self.shared.state();
            let limit = state.limits.get(&(from, to));
            limit.is_some_and(|limit| state.passed.get(&(from, to)).is_some_and(|passed| passed >= limit))
        });
    }

    /// Breaks all connections between two nodes. They may make new ones.
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
            // Wakes the relay up, which then ends.
            drop(TcpStream::connect(address));
        }
    }
}

fn close(sockets: &[TcpStream; 2]) {
    for socket in sockets {
        // It may be closed already.
        let _ = socket.shutdown(Shutdown::Both);
    }
}

/// Relays all connections to one store.
fn relay(shared: &Arc<Shared>, listener: &TcpListener, to: usize) {
    for incoming in listener.incoming() {
        if shared.state().is_over {
            return;
        }
        let Ok(incoming) = incoming else { continue };
        let shared = Arc::clone(shared);
        // A connection that cannot be relayed is closed, which its peer sees.
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

/// Reads who connects, as far as the frame that says so.
fn introduction(incoming: &mut TcpStream) -> io::Result<(usize, Vec<u8>)> {
    let mut frame = vec![0; HEADER_BYTES];
    incoming.read_exact(&mut frame)?;
    frame.resize(HEADER_BYTES + payload_length(&frame), 0);
    incoming.read_exact(&mut frame[HEADER_BYTES..])?;
    let hello = v1::DataHello::decode(&frame[HEADER_BYTES..])?;
    let number = hello.node.strip_prefix("node-").and_then(|number| number.parse().ok());
    Ok((number.ok_or(io::ErrorKind::InvalidData)?, frame))
}

/// Passes on what goes one way, after `first`, until either side ends it.
fn pump(shared: &Shared, number: u64, way: Way, (mut from, mut to): (TcpStream, TcpStream), first: Vec<u8>) {
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
