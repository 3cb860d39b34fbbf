use std::collections::BTreeMap;
use std::mem;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{self, FuturesUnordered, Stream, StreamExt, TryStreamExt};
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::PutOptions;
use crate::reader::ObjectReader;
use crate::view::ObjectView;

/// Most objects requested at once: more than a cluster usually has senders, and far below the limit
/// of calls.
const MAX_IN_FLIGHT: usize = 256;

impl Client {
    /// Gets views of all objects at once, in the order of `ids`.
    ///
    /// Each node receives the objects that it lacks, and can serve them. If n participants gather n
    /// objects of S bytes, each receives, and sends about, (n-1)S bytes. The store's memory must
    /// hold all objects together.
    ///
    /// # Errors
    /// As for [`Client::get`], as soon as one get fails.
    pub async fn gather<I>(&self, ids: I, mut timeout: Duration) -> Result<Vec<ObjectView>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let call = self.begin(&mut timeout).await?;
        let (client, connection) = (call.client(), &call.connection);
        let ids = checked(ids, connection.max_ids())?;
        let views = pin!(views(&client, connection, ids.clone(), Deadline::after(timeout)));
        let gather = pin!(connection.bounded(Operation::Gather, timeout, views));
        call.run(Wait::for_objects("gather", &ids), Repeat::Harmless, gather).await
    }

    /// Copies all objects into the front of `out` while they arrive, in the order of `ids`. Returns
    /// their lengths.
    ///
    /// The copy of an object starts when the lengths of all earlier objects are known.
    ///
    /// # Errors
    /// As for [`Client::gather`] and [`Client::get_into`].
    pub async fn gather_into<I>(
        &self,
        ids: I,
        out: &mut [u8],
        mut timeout: Duration,
    ) -> Result<Vec<usize>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let call = self.begin(&mut timeout).await?;
        let connection = &call.connection;
        let ids = checked(ids, connection.max_ids())?;
        let deadline = Deadline::after(timeout);
        let openings = ids.iter().cloned().enumerate().map(|(index, id)| async move {
            ObjectReader::open(connection, id, deadline.left()).await.map(|reader| (index, reader))
        });
        let copy = |_, reader: ObjectReader, place| reader.read_whole(place, deadline);
        let copied = pin!(one_after_the_other(connection, openings.collect(), out, copy));
        let gather = pin!(connection.bounded(Operation::Gather, timeout, copied));
        call.run(Wait::for_objects("gather", &ids), Repeat::Harmless, gather).await
    }

    /// Puts `bytes` under `ids[rank]`, and gets views of all participants' objects, in the order of
    /// `ids`. Each participant calls this with the same ids and its own rank.
    ///
    /// This is [`Client::put_with`] and [`Client::gather`] at the same time, under one timeout. The
    /// objects stay: delete them when all participants are done.
    ///
    /// # Errors
    /// As for [`Client::put_with`] and [`Client::gather`]; `InvalidRequest` for a bad rank.
    ///
    /// # Cancel safety
    /// This participant's object stays.
    pub async fn allgather<I>(
        &self,
        ids: I,
        rank: usize,
        bytes: &[u8],
        mut options: PutOptions,
    ) -> Result<Vec<ObjectView>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let call = self.begin(&mut options.timeout).await?;
        let timeout = options.timeout;
        let (client, connection) = (call.client(), &call.connection);
        let ids = checked(ids, connection.max_ids())?;
        let own = ids.get(rank).cloned().ok_or_else(no_such_rank)?;
        let both = pin!(async {
            let put = client.put_with(own, bytes, options);
            let views = views(&client, connection, ids.clone(), Deadline::after(timeout));
            let ((), views) = tokio::try_join!(put, views)?;
            Ok(views)
        });
        let allgather = pin!(connection.bounded(Operation::Allgather, timeout, both));
        call.run(Wait::for_objects("allgather", &ids), Repeat::Harmless, allgather).await
    }
}

pub(super) fn no_such_rank() -> Error {
    ObjectError::invalid_request("a rank is less than the number of participants").into()
}

async fn views(
    client: &Client,
    connection: &Connection,
    ids: Vec<ObjectId>,
    deadline: Deadline,
) -> Result<Vec<ObjectView>> {
    let gets = ids.into_iter().enumerate().map(|(index, id)| async move {
        client.get(id, deadline.left()).await.map(|view| (index, view))
    });
    in_order(connection, gets.collect()).await
}

pub(super) async fn in_order<F>(connection: &Connection, gets: Vec<F>) -> Result<Vec<ObjectView>>
where
    F: Future<Output = Result<(usize, ObjectView)>>,
{
    let mut views: Vec<_> = at_once(connection, gets).try_collect().await?;
    views.sort_unstable_by_key(|(index, _)| *index);
    Ok(views.into_iter().map(|(_, view)| view).collect())
}

/// Copies the readers' objects into the front of `out`, one behind the other. Readers may open in
/// any order.
pub(super) async fn one_after_the_other<'a, Opening, Copy>(
    connection: &Connection,
    openings: Vec<Opening>,
    out: &'a mut [u8],
    copy: impl Fn(usize, ObjectReader, &'a mut [u8]) -> Copy,
) -> Result<Vec<usize>>
where
    Opening: Future<Output = Result<(usize, ObjectReader)>>,
    Copy: Future<Output = Result<()>>,
{
    let in_flight = in_flight(connection);
    let mut openings = pin!(at_once(connection, openings));
    // Readers whose offset in `out` is unknown, because an earlier object's length is.
    let mut unplaced = BTreeMap::new();
    let mut copies = FuturesUnordered::new();
    let given_bytes = out.len() as u64;
    let mut room = out;
    let mut lengths = Vec::new();
    loop {
        while copies.len() < in_flight
            && let Some(reader) = unplaced.remove(&lengths.len())
        {
            let (place, rest) = split(mem::take(&mut room), given_bytes, &reader)?;
            room = rest;
            let index = lengths.len();
            lengths.push(place.len());
            copies.push(copy(index, reader, place));
        }
        tokio::select! {
            Some(opened) = openings.next(), if copies.len() < in_flight => {
                let (index, reader) = opened?;
                unplaced.insert(index, reader);
            }
            Some(copied) = copies.next() => copied?,
            else => return Ok(lengths),
        }
    }
}

fn split<'a>(
    room: &'a mut [u8],
    given_bytes: u64,
    reader: &ObjectReader,
) -> Result<(&'a mut [u8], &'a mut [u8])> {
    let taken_bytes = given_bytes.saturating_sub(room.len() as u64);
    let length = usize::try_from(reader.size_bytes()).unwrap_or(usize::MAX);
    room.split_at_mut_checked(length).ok_or(Error::BufferTooSmall {
        needed_bytes: taken_bytes.saturating_add(reader.size_bytes()),
        given_bytes,
    })
}

pub(super) fn at_once<F: Future>(
    connection: &Connection,
    all: Vec<F>,
) -> impl Stream<Item = F::Output> {
    stream::iter(all).buffer_unordered(in_flight(connection))
}

pub(super) fn in_flight(connection: &Connection) -> usize {
    (connection.max_calls() / 4).clamp(1, MAX_IN_FLIGHT)
}
