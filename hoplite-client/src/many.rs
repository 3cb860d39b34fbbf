use std::time::Duration;

use hoplite_core::node::{self, Response};
use hoplite_core::{ObjectId, Operation};

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::Result;

/// Longest pause between two queries for all ids, because each goes to the directory.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) async fn wait(
    connection: &Connection,
    ids: Vec<ObjectId>,
    count: usize,
    timeout: Duration,
) -> Result<Vec<usize>> {
    let maximum = connection.max_ids().max(1);
    if ids.len() <= maximum {
        return wait_part(connection, ids, count, timeout).await;
    }
    let deadline = Deadline::after(timeout);
    let parts: Vec<&[ObjectId]> = ids.chunks(maximum).collect();
    if count == ids.len() {
        return look(connection, &parts, deadline).await;
    }
    loop {
        let ready = look(connection, &parts, Deadline::after(Duration::ZERO)).await?;
        let left = deadline.left();
        if ready.len() >= count || left.is_zero() {
            return Ok(ready);
        }
        // Waits for one more object in the first incomplete part, then queries all parts.
        let ready_in = |part: usize| {
            let range = part * maximum..part * maximum + parts[part].len();
            ready.iter().filter(|index| range.contains(*index)).count()
        };
        let Some(part) = (0..parts.len()).find(|part| ready_in(*part) < parts[*part].len()) else {
            return Ok(ready);
        };
        let wanted = ready_in(part) + 1;
        wait_part(connection, parts[part].to_vec(), wanted, left.min(LOOK_INTERVAL)).await?;
    }
}

pub(crate) async fn look(
    connection: &Connection,
    parts: &[&[ObjectId]],
    deadline: Deadline,
) -> Result<Vec<usize>> {
    let (mut ready, mut first) = (Vec::new(), 0);
    for part in parts {
        let found = wait_part(connection, part.to_vec(), part.len(), deadline.left()).await?;
        ready.extend(found.into_iter().map(|index| first + index));
        first += part.len();
    }
    Ok(ready)
}

async fn wait_part(
    connection: &Connection,
    ids: Vec<ObjectId>,
    count: usize,
    timeout: Duration,
) -> Result<Vec<usize>> {
    let request = node::Request::Wait { ids, count, timeout };
    match connection.call_node(request, Operation::Wait, timeout).await? {
        Response::Ready { indices } => Ok(indices),
        _ => Err(connection.unexpected()),
    }
}
