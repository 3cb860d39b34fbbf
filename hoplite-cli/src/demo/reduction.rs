use std::iter;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hoplite_client::{Client, Confirmation, Dtype, Metadata, PutOptions, ReduceOp};

use super::{rate, say};
use crate::cluster::Cluster;
use crate::output::size;

pub(super) const ARRAY_BYTES: u64 = 16 << 20;
const SUM: &str = "demo/sum";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Elements are integers below this, so sums are exact.
const ELEMENTS_BELOW: u64 = 1000;

pub(super) async fn reduce(cluster: &Cluster) -> anyhow::Result<()> {
    let mut clients = Vec::new();
    for node in &cluster.nodes {
        clients.push(Client::connect(&node.socket).await?);
    }
    let receiver = clients.first().context("a cluster without nodes")?;
    let ids: Vec<_> =
        cluster.nodes.iter().map(|node| format!("demo/array/{}", node.name)).collect();

    let metadata =
        Metadata { dtype: Dtype::F32, shape: Some(vec![ARRAY_BYTES / 4]), ..Metadata::default() };
    let options = PutOptions { metadata, timeout: TIMEOUT, confirm: Confirmation::Confirmed };
    for (node, (client, id)) in iter::zip(&clients, &ids).enumerate() {
        client.put_with(id, &bytes(&array(node as u64)), options.clone()).await?;
    }

    let before = received(&clients).await?;
    let started = Instant::now();
    let reduced = receiver.reduce(SUM, &ids, ReduceOp::Sum, TIMEOUT).await?;
    let elapsed = started.elapsed();
    let total_bytes = ARRAY_BYTES * ids.len() as u64;
    say(&format!(
        "reduce: an array of {} of f32 on each node, their sum on {}: {}",
        size(ARRAY_BYTES),
        receiver.node(),
        rate(total_bytes, elapsed)
    ))?;

    let expected: Vec<f32> = (0..ids.len() as u64).map(array).reduce(add).context("no arrays")?;
    let sum = receiver.get(SUM, TIMEOUT).await?;
    ensure!(*sum == *bytes(&expected), "the sum is wrong");
    let moved = iter::zip(received(&clients).await?, before).map(|(after, before)| after - before);
    say(&format!(
        "compared: it is the sum that this program computes; they joined as {}",
        reduced.iter().map(|id| id.readable()).collect::<Vec<_>>().join(", ")
    ))?;
    say(&format!(
        "no node received more than {:.2} times an array",
        moved.max().unwrap_or_default() as f64 / ARRAY_BYTES as f64
    ))?;
    Ok(())
}

async fn received(clients: &[Client]) -> anyhow::Result<Vec<u64>> {
    let mut received = Vec::new();
    for client in clients {
        received.push(client.status().await?.received_bytes);
    }
    Ok(received)
}

fn array(node: u64) -> Vec<f32> {
    let element = |index: u64| ((index * 31 + node * 17) % ELEMENTS_BELOW) as f32;
    (0..ARRAY_BYTES / 4).map(element).collect()
}

fn add(mut sum: Vec<f32>, array: Vec<f32>) -> Vec<f32> {
    for (sum, element) in sum.iter_mut().zip(array) {
        *sum += element;
    }
    sum
}

fn bytes(array: &[f32]) -> Vec<u8> {
    array.iter().flat_map(|element| element.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact() {
        let largest = 64.0 * ELEMENTS_BELOW as f32;
        assert_eq!(largest + 1.0 - largest, 1.0);
        assert_ne!(array(0)[..100], array(1)[..100]);
        assert_eq!(add(vec![1.0, 2.0], vec![3.0, 5.0]), [4.0, 7.0]);
    }
}
