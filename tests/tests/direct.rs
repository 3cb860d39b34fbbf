//! Direct connections through a relay that breaks and changes them.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hoplite_client::blocking::Client;
use hoplite_daemon::launch;
use hoplite_proto::directory::Preface;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Daemon, Plan, await_that};
use hoplite_tests::contents::{bytes, seed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    IsSwallowed,
    IsClosed,
    EndsSoon,
    IsDeaf,
    FallsDeaf,
    FallsMute,
    Flips,
}

const SOME_BYTES: u64 = 300;
const FATED_CONNECTIONS: usize = 2;

struct Relay {
    address: SocketAddr,
    fate: Fate,
    seed: u64,
    connections: AtomicU64,
    flips: AtomicU64,
    direct: Mutex<Vec<TcpStream>>,
}

impl Relay {
    fn start(shard: SocketAddr, fate: Fate) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seed = if fate == Fate::Flips { seed() } else { 0 };
        let (connections, flips) = (AtomicU64::default(), AtomicU64::default());
        let relay =
            Arc::new(Self { address, fate, seed, connections, flips, direct: Mutex::default() });
        let shared = Arc::clone(&relay);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, stream) = (Arc::clone(&shared), stream.unwrap());
                thread::spawn(move || shared.relay(stream, shard));
            }
        });
        relay
    }

    fn relay(self: &Arc<Self>, store: TcpStream, shard: SocketAddr) {
        let mut first = [0];
        if store.peek(&mut first).is_err() {
            return;
        }
        let is_direct = first == Preface::Direct.bytes()[..1];
        let is_fated = is_direct && {
            let mut direct = self.direct.lock().unwrap();
            direct.push(store.try_clone().unwrap());
            direct.len() <= FATED_CONNECTIONS
        };
        let fate = if is_fated || self.fate == Fate::Flips { self.fate } else { Fate::Passes };
        match fate {
            Fate::IsClosed => return drop(store.shutdown(Shutdown::Both)),
            Fate::IsSwallowed => return,
            _ => {}
        }
        let Ok(shard) = TcpStream::connect(shard) else { return };
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let ways = [(store.try_clone(), shard.try_clone(), true), (Ok(shard), Ok(store), false)];
        for (from, to, is_from_store) in ways {
            let (from, mut to) = (from.unwrap(), to.unwrap());
            to.set_nodelay(true).unwrap();
            let limit = match fate {
                Fate::EndsSoon => SOME_BYTES,
                Fate::FallsMute if is_from_store => SOME_BYTES,
                Fate::FallsDeaf if !is_from_store => SOME_BYTES,
                Fate::IsDeaf if !is_from_store => 0,
                _ => u64::MAX,
            };
            if fate == Fate::Flips {
                let random = bytes(self.seed ^ (2 * number + u64::from(is_from_store)), 1 << 16);
                let relay = Arc::clone(self);
                thread::spawn(move || relay.pass_with_flips(from, to, &random));
                continue;
            }
            thread::spawn(move || {
                let is_over =
                    io::copy(&mut (&from).take(limit), &mut to).is_ok_and(|bytes| bytes < limit);
                if fate == Fate::EndsSoon && !is_over {
                    let _ = from.shutdown(Shutdown::Both);
                } else {
                    let _ = io::copy(&mut &from, &mut io::sink());
                }
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    }

    fn pass_with_flips(&self, mut from: TcpStream, mut to: TcpStream, random: &[u8]) {
        let mut part = vec![0; 16 << 10];
        let mut words =
            random.chunks_exact(8).cycle().map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let mut random =
            |limit: usize| usize::try_from((words.next().unwrap() >> 16) % limit as u64).unwrap();
        while let Ok(length @ 1..) = from.read(&mut part) {
            if random(50) == 0 {
                part[random(length)] ^= 1 << random(8);
                self.flips.fetch_add(1, Ordering::Relaxed);
            }
            if to.write_all(&part[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn cut(&self) {
        self.direct.lock().unwrap().iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    fn direct_connections(&self) -> usize {
        self.direct.lock().unwrap().len()
    }
}

struct Relayed {
    stores: Vec<Daemon>,
    relay: Arc<Relay>,
    cluster: Cluster,
}

impl Relayed {
    fn start(fate: Fate) -> Self {
        let cluster = Cluster::start(Plan { nodes: 0, ..Plan::default() });
        let relay = Relay::start(cluster.shard_addresses[0].parse().unwrap(), fate);
        let start = |node: usize| {
            let name = format!("node-{node}");
            let shards = [relay.address.to_string()];
            let socket = cluster.socket(node);
            let store =
                launch::Store { node: &name, socket: &socket, memory: "64MiB", shards: &shards };
            Daemon::start(&name, &mut store.command())
        };
        let stores = (0..2).map(start).collect();
        let relayed = Self { stores, relay, cluster };
        for node in 0..2 {
            relayed.cluster.await_sessions(node);
        }
        relayed
    }

    fn assert_serves(&self, round: usize) {
        let (putter, getter) = (self.client(0), self.client(1));
        for size in [0, 100, 30_000, 300_000] {
            let (id, bytes) = (format!("{round}/{size}"), vec![7; size]);
            thread::scope(|scope| {
                let got = scope.spawn(|| getter.get(&id, TIME_LIMIT).unwrap().to_vec());
                putter.put(&id, &bytes).unwrap();
                assert_eq!(got.join().unwrap(), bytes);
            });
        }
    }

    fn client(&self, node: usize) -> Client {
        self.cluster.client(node)
    }
}

#[test]
fn each_session_has_a_direct_connection() {
    let relayed = Relayed::start(Fate::Passes);
    relayed.assert_serves(0);
    assert!(relayed.relay.direct_connections() >= relayed.stores.len());
}

#[test]
fn a_store_retries_a_failed_connection() {
    for fate in [Fate::IsSwallowed, Fate::IsClosed, Fate::IsDeaf] {
        let relayed = Relayed::start(fate);
        relayed.assert_serves(0);
        assert!(relayed.relay.direct_connections() > FATED_CONNECTIONS, "{fate:?}");
    }
}

#[test]
fn a_store_reconnects_after_a_short_connection() {
    for fate in [Fate::EndsSoon, Fate::FallsDeaf, Fate::FallsMute] {
        let relayed = Relayed::start(fate);
        for round in 0..3 {
            relayed.assert_serves(round);
        }
        await_that("both stores come back", || {
            relayed.relay.direct_connections() >= 2 * FATED_CONNECTIONS
        });
        relayed.assert_serves(3);
    }
}

#[test]
fn flipped_bits_change_no_object() {
    let relayed = Relayed::start(Fate::Flips);
    let (putter, getter) = (relayed.client(0), relayed.client(1));
    let (mut got, began) = (0, Instant::now());
    for number in 0..200_usize {
        assert!(began.elapsed() < TIME_LIMIT * 2, "{got} of {number} objects were got in time");
        let (id, bytes) = (format!("flipped/{number}"), vec![(number % 251) as u8; 100 + number]);
        if putter.put(&id, &bytes).is_err() {
            continue;
        }
        if let Ok(found) = getter.get(&id, Duration::from_secs(5)) {
            assert!(*found == bytes[..], "{id} is another object");
            got += 1;
        }
    }
    let flips = relayed.relay.flips.load(Ordering::Relaxed);
    assert!(got > 100 && flips > 0, "most of the time it works: {got} got, {flips} bits flipped");
}

#[test]
fn a_call_continues_when_the_direct_connections_break() {
    let relayed = Relayed::start(Fate::Passes);
    let (putter, getter) = (relayed.client(0), relayed.client(1));
    thread::scope(|scope| {
        let waits = scope.spawn(|| getter.get("late", TIME_LIMIT).unwrap().to_vec());
        relayed.relay.cut();
        await_that("both stores come back", || relayed.relay.direct_connections() >= 4);
        relayed.assert_serves(0);
        putter.put("late", b"it is here").unwrap();
        assert_eq!(waits.join().unwrap(), b"it is here");
    });
}
