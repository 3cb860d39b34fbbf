//! Puts an object, and reads it in the store's memory.
//!
//! ```console
//! $ hoplite start
//! $ cargo run -p hoplite-client --example put_get
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::time::Duration;

use hoplite_client::{Client, ObjectView, default_socket_path};

#[tokio::main(flavor = "current_thread")]
async fn main() -> hoplite_client::Result<()> {
    let client = Client::connect(default_socket_path()).await?;
    // Copies the bytes once, into the memory of the store.
    client.put("example/sevens", &vec![7; 1 << 20]).await?;
    // The view reads in place; the store keeps the object while the view lives.
    let view: ObjectView = client.get("example/sevens", Duration::from_secs(5)).await?;
    println!("{} bytes, the first is {}", view.len(), view[0]);
    client.delete(["example/sevens"], Duration::from_secs(5)).await?;
    Ok(())
}
