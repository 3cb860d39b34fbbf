//! Every participant gets the sum of all arrays. It needs only the ids of the arrays and its rank.
//!
//! ```console
//! $ hoplite start
//! $ cargo run -p hoplite-client --example allreduce
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::thread;

use hoplite_client::blocking::Client;
use hoplite_client::{
    AllreduceOptions, Dtype, Metadata, PutOptions, Result, default_socket_path, default_timeout,
};

const PARTICIPANTS: usize = 3;

fn main() -> Result<()> {
    let ids: Vec<String> = (0..PARTICIPANTS).map(|rank| format!("example/array/{rank}")).collect();
    thread::scope(|scope| {
        let ids = &ids;
        let all: Vec<_> =
            (0..PARTICIPANTS).map(|rank| scope.spawn(move || participate(rank, ids))).collect();
        all.into_iter().try_for_each(|one| one.join().expect("a participant panicked"))
    })?;
    let client = Client::connect(default_socket_path())?;
    client.delete(ids.iter().map(String::as_str).chain(["example/total"]), default_timeout())?;
    Ok(())
}

fn participate(rank: usize, ids: &[String]) -> Result<()> {
    let client = Client::connect(default_socket_path())?;
    let elements = [rank as i64; 8].map(i64::to_le_bytes).concat();
    let metadata = Metadata { dtype: Dtype::I64, shape: Some(vec![8]), ..Metadata::default() };
    client.put_with(&ids[rank], &elements, PutOptions { metadata, ..PutOptions::default() })?;
    // Blocks until all participants have put their arrays.
    let total = client.allreduce("example/total", ids, rank, AllreduceOptions::default())?;
    let first = i64::from_le_bytes(total[..8].try_into().expect("an element has eight bytes"));
    println!("rank {rank}: {} bytes, first element {first}", total.len());
    Ok(())
}
