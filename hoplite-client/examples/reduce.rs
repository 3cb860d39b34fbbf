//! Four workers (threads) put gradients; the main thread adds up the first three that are ready.
//!
//! ```console
//! $ hoplite start
//! $ cargo run -p hoplite-client --example reduce
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::thread;
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_client::{Dtype, Metadata, PutOptions, ReduceOptions, Result, default_socket_path};

const WORKERS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let gradients: Vec<String> =
        (0..WORKERS).map(|rank| format!("example/gradient/{rank}")).collect();
    let client = Client::connect(default_socket_path())?;
    let options =
        ReduceOptions { num_objects: Some(3), timeout: TIMEOUT, ..ReduceOptions::default() };
    let used = thread::scope(|scope| -> Result<_> {
        let puts: Vec<_> = gradients
            .iter()
            .enumerate()
            .map(|(rank, id)| scope.spawn(move || put(rank, id)))
            .collect();
        let used = client.reduce_with("example/sum", &gradients, options)?;
        puts.into_iter().try_for_each(|put| put.join().expect("a worker panicked"))?;
        Ok(used)
    })?;
    let sum = client.get_vec("example/sum", TIMEOUT)?;
    let first = f32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
    println!("{} gradients, {} bytes, first element {first}", used.len(), sum.len());
    client.delete(gradients.iter().map(String::as_str).chain(["example/sum"]), TIMEOUT)?;
    Ok(())
}

fn put(rank: usize, id: &str) -> Result<()> {
    let client = Client::connect(default_socket_path())?;
    let elements = [1.0_f32; 1024].map(f32::to_le_bytes).concat();
    // A reduce needs the elements' type.
    let metadata = Metadata { dtype: Dtype::F32, shape: Some(vec![1024]), ..Metadata::default() };
    client.put_with(id, &elements, PutOptions { metadata, ..PutOptions::default() })?;
    println!("worker {rank} has put {id}");
    Ok(())
}
