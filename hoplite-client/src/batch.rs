//! Small objects travel in batches, all in flight together, in about one round trip. Larger objects
//! are put one by one.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesOrdered, StreamExt};
use hoplite_core::node::{self, Confirm, MAX_BATCH_ITEMS, Response, Until};
use hoplite_core::shard::DeleteWait;
use hoplite_core::{Error as ObjectError, Metadata, ObjectId, Operation};
use hoplite_proto::bounds::MAX_PUT_BYTES;

use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::{Confirmation, GetOptions, PutOptions};
use crate::view::ObjectView;
use crate::writer;

/// Most bytes in one request with several puts, which fit into the store's initial read buffer.
const BATCH_BYTES: usize = 48 << 10;
const ITEM_OVERHEAD_BYTES: usize = 64;
const MAX_IN_FLIGHT: usize = 64;

/// An object for [`Client::put_many_with`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject<'a> {
    /// Id of the object.
    pub id: ObjectId,
    /// All bytes of the object.
    pub bytes: Cow<'a, [u8]>,
    /// Metadata; replaces the metadata in the [`PutOptions`].
    pub metadata: Metadata,
}

/// One result for each item of a batch, in order.
pub type Results<T> = Vec<Result<T>>;

impl Client {
    /// Puts many objects of plain bytes, as [`Client::put_many_with`] does.
    pub async fn put_many<I, K, V>(&self, objects: I, options: PutOptions) -> Result<Results<()>>
    where
        I: IntoIterator<Item = (K, V)>,
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let objects: Vec<(K, V)> = objects.into_iter().collect();
        let mut new = Vec::with_capacity(objects.len());
        for (id, bytes) in &objects {
            let (id, metadata) = (ObjectId::new(id)?, options.metadata.clone());
            new.push(NewObject { id, bytes: Cow::Borrowed(bytes.as_ref()), metadata });
        }
        self.put_many_with(new, options).await
    }

    /// Puts many objects, each with its own metadata. Returns a result for each: one may fail while
    /// the others are put. The timeout covers the whole call.
    ///
    /// # Errors
    /// `LimitExceeded` for more than [`Client::max_ids`] objects; nothing is put then. Results have
    /// the errors of [`Client::put_with`].
    ///
    /// # Cancel safety
    /// Some objects may have been put.
    pub async fn put_many_with(
        &self,
        objects: Vec<NewObject<'_>>,
        mut options: PutOptions,
    ) -> Result<Results<()>> {
        let call = self.begin(&mut options.timeout).await?;
        let connection = &call.connection;
        check_count(objects.len(), connection.max_ids())?;
        let Some(first) = objects.first().map(|object| object.id.clone()) else {
            return Ok(Vec::new());
        };
        let put = pin!(put(connection, &objects, &options));
        let put = pin!(connection.bounded(Operation::Put, options.timeout, put));
        call.run(Wait::of("put", &first), Repeat::Harmless, put).await
    }

    /// Gets views of many objects. Returns when all are on this node, or at the timeout with
    /// `Timeout` for each missing object. The store's memory must hold all objects together.
    ///
    /// # Errors
    /// `LimitExceeded` for more than [`Client::max_ids`] ids; nothing is requested then. Results
    /// have the errors of [`Client::get`].
    pub async fn get_many<I>(
        &self,
        ids: I,
        options: impl Into<GetOptions>,
    ) -> Result<Results<ObjectView>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let mut options = options.into();
        let call = self.begin(&mut options.timeout).await?;
        let connection = &call.connection;
        let ids = checked(ids, connection.max_ids())?;
        let get = pin!(get(connection, &ids, options));
        let get = pin!(connection.bounded(Operation::Get, options.timeout, get));
        call.run(Wait::for_objects("get", &ids), Repeat::Harmless, get).await
    }

    /// Removes every copy of many objects. Returns a result for each id: `true` if it named an
    /// object.
    ///
    /// # Errors
    /// `LimitExceeded` for more than [`Client::max_ids`] ids; nothing is deleted then. Results have
    /// the errors of [`Client::delete`].
    pub async fn delete_many<I>(&self, ids: I, mut timeout: Duration) -> Result<Results<bool>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let call = self.begin(&mut timeout).await?;
        let connection = &call.connection;
        let ids = checked(ids, connection.max_ids())?;
        connection.check_usable()?;
        ids.iter().for_each(|id| connection.recent_puts().forget(id));
        let delete = pin!(delete(connection, &ids, timeout));
        let delete = pin!(connection.bounded(Operation::Delete, timeout, delete));
        let wait = Wait { operation: "delete", id: ids.first(), needs: &[] };
        let repeat = if ids.len() <= MAX_BATCH_ITEMS { Repeat::IfUnsent } else { Repeat::Never };
        call.run(wait, repeat, delete).await
    }
}

/// Returns `LimitExceeded` if a call has more than `maximum` objects.
pub fn check_count(objects: usize, maximum: usize) -> Result<()> {
    if objects > maximum {
        return Err(ObjectError::limit_exceeded("ids in a request", maximum as u64).into());
    }
    Ok(())
}

async fn put(
    connection: &Arc<Connection>,
    objects: &[NewObject<'_>],
    options: &PutOptions,
) -> Result<Results<()>> {
    let deadline = Deadline::after(options.timeout);
    let mut parts = parts(objects);
    let mut running = FuturesOrdered::new();
    let mut results = Vec::with_capacity(objects.len());
    loop {
        while running.len() < MAX_IN_FLIGHT
            && let Some(part) = parts.next()
        {
            running.push_back(put_part(connection, part, options, deadline));
        }
        match running.next().await {
            Some(part) => results.extend(part?),
            None => return Ok(results),
        }
    }
}

fn parts<'a, 'b>(mut rest: &'a [NewObject<'b>]) -> impl Iterator<Item = &'a [NewObject<'b>]> {
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let mut bytes = 0;
        let fits = |object: &&NewObject<'_>| {
            bytes += object.bytes.len() + object.id.as_bytes().len() + ITEM_OVERHEAD_BYTES;
            object.bytes.len() <= MAX_PUT_BYTES && bytes <= BATCH_BYTES
        };
        let small = rest.iter().take(MAX_BATCH_ITEMS).take_while(fits).count();
        let count = if first.bytes.len() > MAX_PUT_BYTES { 1 } else { small.max(1) };
        let (part, others) = rest.split_at(count);
        rest = others;
        Some(part)
    })
}

async fn put_part(
    connection: &Arc<Connection>,
    objects: &[NewObject<'_>],
    options: &PutOptions,
    deadline: Deadline,
) -> Result<Results<()>> {
    if let [object] = objects {
        return Ok(vec![put_one(connection, object, options, deadline).await]);
    }
    // If the client can drop unneeded views, a full store refuses the batch at once, unless a put
    // waits for the directory. A refused object is put alone, after the views are dropped.
    let awaits_directory = |object: &NewObject<'_>| {
        options.confirm == Confirmation::Confirmed || object.metadata.replicas.to_await() > 1
    };
    let is_patient = !connection.has_on_full() || objects.iter().any(awaits_directory);
    let timeout = if is_patient { deadline.left() } else { Duration::ZERO };
    let mut results = Vec::with_capacity(objects.len());
    let mut requests = Vec::with_capacity(objects.len());
    for object in objects {
        let size_bytes = object.bytes.len() as u64;
        let valid = object.metadata.validate(size_bytes).map_err(Error::from);
        if valid.is_ok() {
            let is_confirmed =
                awaits_directory(object) || size_bytes >= connection.confirmed_from_bytes();
            requests.push(node::Request::Put {
                id: object.id.clone(),
                metadata: object.metadata.clone(),
                bytes: Bytes::copy_from_slice(&object.bytes),
                confirm: if is_confirmed { Confirm::Yes } else { Confirm::No },
                timeout,
            });
        }
        results.push(valid);
    }
    let answers = batch(connection, requests, Operation::Put, timeout).await?;
    let mut delayed = Vec::new();
    let sent =
        objects.iter().zip(&mut results).enumerate().filter(|(_, (_, result))| result.is_ok());
    // Reads all answers, because a reference in an answer must be given back.
    for ((index, (object, result)), answer) in sent.zip(answers) {
        *result = match answer {
            Ok(Response::Sealed) => Ok(()),
            Ok(Response::Existing(view)) => compared(connection, object, view),
            Ok(_) => Err(connection.unexpected()),
            Err(
                ObjectError::StoreFull { .. }
                | ObjectError::QuotaExceeded(_)
                | ObjectError::Timeout { .. },
            ) if !is_patient => {
                delayed.push(index);
                Ok(())
            }
            Err(error) => Err(error.into()),
        };
    }
    for index in delayed {
        results[index] = put_one(connection, &objects[index], options, deadline).await;
    }
    Ok(results)
}

async fn put_one(
    connection: &Arc<Connection>,
    object: &NewObject<'_>,
    options: &PutOptions,
    deadline: Deadline,
) -> Result<()> {
    let options = PutOptions {
        metadata: object.metadata.clone(),
        timeout: deadline.left(),
        confirm: options.confirm,
    };
    writer::put(connection, object.id.clone(), &object.bytes, options).await
}

fn compared(
    connection: &Arc<Connection>,
    object: &NewObject<'_>,
    view: node::ObjectView,
) -> Result<()> {
    let view = ObjectView::open(connection, view)?;
    if *view != *object.bytes || !view.metadata().describes_same(&object.metadata) {
        return Err(ObjectError::AlreadyExists { id: object.id.clone() }.into());
    }
    Ok(())
}

async fn get(
    connection: &Arc<Connection>,
    ids: &[ObjectId],
    GetOptions { timeout, allow_stale }: GetOptions,
) -> Result<Results<ObjectView>> {
    let request = |id: &ObjectId| node::Request::Get {
        id: id.clone(),
        until: Until::Contents,
        timeout,
        allow_stale,
    };
    let open = |response| match response {
        Response::Object(view) => ObjectView::open(connection, view),
        Response::Contents { view, bytes } => Ok(ObjectView::copied(view, &bytes)),
        _ => Err(connection.unexpected()),
    };
    of_ids(connection, ids, (Operation::Get, timeout), request, open).await
}

async fn delete(
    connection: &Arc<Connection>,
    ids: &[ObjectId],
    timeout: Duration,
) -> Result<Results<bool>> {
    let request = |id: &ObjectId| node::Request::Delete {
        ids: vec![id.clone()],
        timeout,
        wait: DeleteWait::Reachable,
    };
    let was_there = |response| match response {
        Response::Deleted { count, .. } => Ok(count > 0),
        _ => Err(connection.unexpected()),
    };
    of_ids(connection, ids, (Operation::Delete, timeout), request, was_there).await
}

async fn of_ids<T>(
    connection: &Connection,
    ids: &[ObjectId],
    (operation, timeout): (Operation, Duration),
    request: impl Fn(&ObjectId) -> node::Request,
    result: impl Fn(Response) -> Result<T>,
) -> Result<Results<T>> {
    // All batches begin at once, because the store sends one answer for a whole batch.
    let mut running = FuturesOrdered::new();
    for ids in ids.chunks(MAX_BATCH_ITEMS) {
        let requests = ids.iter().map(&request).collect();
        running.push_back(batch_of(connection, requests, operation, timeout, &result));
    }
    let mut results = Vec::with_capacity(ids.len());
    while let Some(part) = running.next().await {
        results.extend(part?);
    }
    Ok(results)
}

async fn batch_of<T>(
    connection: &Connection,
    requests: Vec<node::Request>,
    operation: Operation,
    timeout: Duration,
    result: impl Fn(Response) -> Result<T>,
) -> Result<Results<T>> {
    let mut results = Vec::with_capacity(requests.len());
    for answer in batch(connection, requests, operation, timeout).await? {
        results.push(answer.map_err(Error::from).and_then(&result));
    }
    Ok(results)
}

async fn batch(
    connection: &Connection,
    requests: Vec<node::Request>,
    operation: Operation,
    timeout: Duration,
) -> Result<Vec<hoplite_core::error::Result<Response>>> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let count = requests.len();
    match connection.call_node(node::Request::Batch(requests), operation, timeout).await? {
        Response::Batch(answers) if answers.len() == count => Ok(answers),
        _ => Err(connection.unexpected()),
    }
}
