//! A cluster in which single stores can be cut off from single shards.

use std::collections::BTreeSet;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io, thread};

use hoplite_core::ObjectId;
use hoplite_core::placement::ShardMap;

use crate::cluster::{Cluster, Daemon, Plan};

#[derive(Debug)]
pub struct Split {
    pub cluster: Cluster,
    addresses: Vec<SocketAddr>,
    shared: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    stores: Vec<u32>,
    cut: BTreeSet<(usize, usize)>,
    connections: Vec<((usize, usize), [TcpStream; 2])>,
    is_over: bool,
}

impl Split {
    pub fn start(nodes: usize) -> Self {
        let mut cluster = Cluster::start(Plan { nodes: 0, shards: 2, ..Plan::default() });
        let shared = Arc::<Mutex<State>>::default();
        let relays = cluster.shard_addresses.iter().enumerate();
        let relays = relays.map(|(shard, address)| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            let relay = listener.local_addr().expect("it listens");
            let (shared, address) =
                (Arc::clone(&shared), address.parse().expect("it is an address"));
            thread::spawn(move || accept(&shared, &listener, shard, address));
            relay
        });
        let addresses: Vec<SocketAddr> = relays.collect();
        cluster.shard_addresses = addresses.iter().map(ToString::to_string).collect();
        for node in 0..nodes {
            let daemon = Daemon::start(&format!("node-{node}"), &mut cluster.store_command(node));
            lock(&shared).stores.push(daemon.pid());
            cluster.stores.push(Some(daemon));
        }
        for node in 0..nodes {
            cluster.await_sessions(node);
        }
        Self { cluster, addresses, shared }
    }

    /// Returns the shards of an id; the first one decides about it.
    pub fn shards_of(&self, id: &str) -> [usize; 2] {
        let id = ObjectId::new(id).expect("it is an id");
        let ranked = ShardMap::new(&self.cluster.shard_addresses).ranked(&id);
        ranked.try_into().expect("there are two shards")
    }

    pub fn cut(&self, node: usize, shard: usize) {
        let mut state = lock(&self.shared);
        state.cut.insert((node, shard));
        state.connections.retain(|(link, ends)| {
            let is_cut = *link == (node, shard);
            if is_cut {
                close(ends);
            }
            !is_cut
        });
    }

    pub fn restore(&self, node: usize, shard: usize) {
        lock(&self.shared).cut.remove(&(node, shard));
    }

    pub fn heal(&self) {
        lock(&self.shared).cut.clear();
    }
}

impl Drop for Split {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.is_over = true;
        state.connections.drain(..).for_each(|(_, ends)| close(&ends));
        drop(state);
        for address in &self.addresses {
            drop(TcpStream::connect(address));
        }
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close(ends: &[TcpStream; 2]) {
    for end in ends {
        let _ = end.shutdown(Shutdown::Both);
    }
}

fn accept(shared: &Arc<Mutex<State>>, listener: &TcpListener, shard: usize, address: SocketAddr) {
    for store in listener.incoming() {
        if lock(shared).is_over {
            return;
        }
        let Ok(store) = store else { continue };
        let shared = Arc::clone(shared);
        thread::spawn(move || drop(carry(&shared, store, shard, address)));
    }
}

/// Relays a store's connection to a shard, but closes it while the store's process is unknown.
fn carry(
    shared: &Mutex<State>,
    store: TcpStream,
    shard: usize,
    address: SocketAddr,
) -> io::Result<()> {
    let processes = lock(shared).stores.clone();
    let port = store.peer_addr()?.port();
    let Some(node) = processes.iter().position(|process| owns(*process, port)) else {
        return Ok(());
    };
    let shard_end = TcpStream::connect(address)?;
    let ends = [store, shard_end];
    let [store, shard_end] = [ends[0].try_clone()?, ends[1].try_clone()?];
    {
        let mut state = lock(shared);
        if state.is_over || state.cut.contains(&(node, shard)) {
            close(&ends);
            return Ok(());
        }
        state.connections.push(((node, shard), ends));
    }
    let back = (shard_end.try_clone()?, store.try_clone()?);
    thread::spawn(move || pass(back.0, back.1));
    pass(store, shard_end);
    Ok(())
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let _ = to.set_nodelay(true);
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn owns(process: u32, port: u16) -> bool {
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let local = format!("0100007F:{port:04X}");
    let sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let sockets = sockets.filter(|fields| fields.get(1) == Some(&&local[..]));
    let names: Vec<String> =
        sockets.filter_map(|fields| Some(format!("socket:[{}]", fields.get(9)?))).collect();
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    targets.any(|target| names.iter().any(|name| target.as_os_str() == name.as_str()))
}
