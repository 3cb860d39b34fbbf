mod fake_store;

mod blocking;
mod collectives;
mod concurrency;
mod connecting;
mod exchanges;
mod forking;
mod losing;
mod reconnecting;
mod round_trips;
mod waiting;

use std::time::Duration;

use fake_store::FakeStore;

const LONG: Duration = Duration::from_secs(20);

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

async fn connect(store: &FakeStore) -> crate::Client {
    crate::Client::connect(store.socket()).await.unwrap()
}
