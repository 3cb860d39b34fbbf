//! The operations of both clients, driven by the caller's thread or the runtime.

use std::time::{Duration, Instant};

use futures::try_join;
use hoplite_client::{
    AllreduceOptions, ByteRange, Client, DeleteOptions, DeleteWait, Deletion, GetOptions, LostCall,
    ObjectId, ObjectReader, ObjectWriter, PutOptions, ReduceOptions, Result,
};

use crate::buffers::{Input, Output};
use crate::many::{Objects, Outcomes, whole};
use crate::report::{Ids, Page, Status, Summary};
use crate::view::{Between, Reader, View, Writer, left};

/// Bytes that a task copies before it yields, as in the client.
const PIECE_BYTES: usize = 4 << 20;

pub(crate) async fn put(
    client: Client,
    id: ObjectId,
    pieces: Vec<Input>,
    options: PutOptions,
) -> Result<()> {
    if let [piece] = &pieces[..] {
        return client.put_with(&id, piece.bytes(), options).await;
    }
    let put = async {
        let size_bytes = pieces.iter().map(|piece| piece.bytes().len() as u64).sum();
        let mut writer = client.create(&id, size_bytes, options).await?;
        for piece in &pieces {
            write(&mut writer, piece.bytes()).await?;
        }
        writer.seal().await
    };
    put.await.map_err(|error| error.leaving(LostCall::Repeatable))
}

pub(crate) async fn create(
    client: Client,
    id: ObjectId,
    size_bytes: u64,
    options: PutOptions,
) -> Result<Writer> {
    Ok(Writer::new(id.clone(), client.create(&id, size_bytes, options).await?))
}

pub(crate) async fn append(
    between: Between<ObjectWriter>,
    mut writer: ObjectWriter,
    piece: Input,
) -> Result<()> {
    write(&mut writer, piece.bytes()).await.map_err(|error| error.leaving(LostCall::Repeatable))?;
    left(&between, writer);
    Ok(())
}

pub(crate) async fn seal(writer: ObjectWriter) -> Result<()> {
    writer.seal().await.map_err(|error| error.leaving(LostCall::Repeatable))
}

async fn write(writer: &mut ObjectWriter, bytes: &[u8]) -> Result<()> {
    let mut parts = bytes.chunks(PIECE_BYTES).peekable();
    while let Some(part) = parts.next() {
        writer.write(part)?;
        if parts.peek().is_some() {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

pub(crate) async fn get(client: Client, id: ObjectId, options: GetOptions) -> Result<View> {
    client.get_with(&id, options).await.map(View)
}

pub(crate) async fn put_many(
    client: Client,
    objects: Objects,
    options: PutOptions,
) -> Result<Outcomes<Option<bool>>> {
    let results = client.put_many_with(objects.new_objects(), options).await?;
    Ok(Outcomes::new(objects.ids(), results, |()| None))
}

pub(crate) async fn get_many(
    client: Client,
    ids: Vec<ObjectId>,
    options: GetOptions,
) -> Result<Outcomes<View>> {
    let results = client.get_many(&ids, options).await?;
    Ok(Outcomes::new(ids, results, View))
}

pub(crate) async fn delete_many(
    client: Client,
    ids: Vec<ObjectId>,
    timeout: Duration,
) -> Result<Outcomes<bool>> {
    let results = client.delete_many(&ids, timeout).await?;
    Ok(Outcomes::new(ids, results, |was_there| was_there))
}

pub(crate) async fn open(client: Client, id: ObjectId, options: GetOptions) -> Result<Reader> {
    let reader = client.get_reader_with(&id, options).await?;
    Ok(Reader::new(id, reader))
}

pub(crate) async fn read(
    between: Between<ObjectReader>,
    mut reader: ObjectReader,
    mut out: Output,
    timeout: Duration,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    let mut room = out.bytes_mut();
    while !room.is_empty() {
        let read = reader.read(room, deadline.saturating_duration_since(Instant::now())).await;
        let length = read.map_err(|error| error.leaving(LostCall::Repeatable))?;
        room = &mut room[length..];
        tokio::task::yield_now().await;
    }
    if reader.position_bytes() < reader.size_bytes() {
        left(&between, reader);
    }
    Ok(())
}

pub(crate) async fn get_into(
    client: Client,
    id: ObjectId,
    mut out: Output,
    timeout: Duration,
) -> Result<usize> {
    client.get_into(&id, out.bytes_mut(), timeout).await
}

pub(crate) async fn gather(
    client: Client,
    ids: Vec<ObjectId>,
    timeout: Duration,
) -> Result<Vec<View>> {
    Ok(client.gather(ids, timeout).await?.into_iter().map(View).collect())
}

pub(crate) async fn gather_into(
    client: Client,
    ids: Vec<ObjectId>,
    mut out: Output,
    timeout: Duration,
) -> Result<Vec<usize>> {
    client.gather_into(ids, out.bytes_mut(), timeout).await
}

pub(crate) async fn allgather(
    client: Client,
    ids: Vec<ObjectId>,
    own: ObjectId,
    pieces: Vec<Input>,
    options: PutOptions,
) -> Result<Vec<View>> {
    let timeout = options.timeout;
    let ((), views) =
        try_join!(put(client.clone(), own, pieces, options), gather(client, ids, timeout))?;
    Ok(views)
}

pub(crate) async fn reduce(
    client: Client,
    target: ObjectId,
    sources: Vec<ObjectId>,
    options: ReduceOptions,
) -> Result<Ids> {
    client.reduce_with(&target, sources, options).await.map(Ids)
}

pub(crate) fn range(start: u64, stop: u64) -> ByteRange {
    ByteRange { offset_bytes: start, length_bytes: stop.saturating_sub(start) }
}

pub(crate) async fn allreduce_into(
    client: Client,
    target: ObjectId,
    sources: Vec<ObjectId>,
    rank: usize,
    mut out: Output,
    options: AllreduceOptions,
) -> Result<usize> {
    client.allreduce_into(&target, sources, rank, out.bytes_mut(), options).await
}

pub(crate) async fn reduce_scatter_into(
    client: Client,
    target: ObjectId,
    sources: Vec<ObjectId>,
    rank: usize,
    mut out: Output,
    options: AllreduceOptions,
) -> Result<usize> {
    client.reduce_scatter_into(&target, sources, rank, out.bytes_mut(), options).await
}

pub(crate) async fn allgather_into(
    client: Client,
    target: ObjectId,
    sources: Vec<ObjectId>,
    rank: usize,
    mut out: Output,
    timeout: Duration,
) -> Result<usize> {
    client.allgather_into(&target, sources, rank, out.bytes_mut(), timeout).await
}

pub(crate) async fn all_to_all(
    client: Client,
    name: ObjectId,
    parts: Vec<Vec<Input>>,
    rank: usize,
    options: PutOptions,
) -> Result<Vec<View>> {
    let parts: Vec<_> = parts.iter().map(|pieces| whole(pieces)).collect();
    Ok(client.all_to_all(&name, &parts, rank, options).await?.into_iter().map(View).collect())
}

pub(crate) async fn barrier(
    client: Client,
    name: ObjectId,
    participants: usize,
    rank: usize,
    timeout: Duration,
) -> Result<()> {
    client.barrier(&name, participants, rank, timeout).await
}

pub(crate) async fn delete(
    client: Client,
    ids: Vec<ObjectId>,
    timeout: Duration,
    wait_all: bool,
) -> Result<(usize, Vec<String>, u64)> {
    let wait = if wait_all { DeleteWait::All } else { DeleteWait::Reachable };
    let Deletion { count, absent, absent_count } =
        client.delete_with(ids, DeleteOptions { timeout, wait }).await?;
    Ok((count, absent.iter().map(ToString::to_string).collect(), absent_count))
}

pub(crate) async fn wait(
    client: Client,
    ids: Vec<ObjectId>,
    count: usize,
    timeout: Duration,
) -> Result<Vec<usize>> {
    client.wait(ids, count, timeout).await
}

pub(crate) async fn contains(client: Client, id: ObjectId) -> Result<bool> {
    client.contains(&id).await
}

pub(crate) async fn locate(client: Client, id: ObjectId, timeout: Duration) -> Result<Summary> {
    client.locate(&id, timeout).await.map(Summary::from)
}

pub(crate) async fn describe(client: Client, id: ObjectId) -> Result<Summary> {
    client.describe(&id).await.map(Summary::from)
}

pub(crate) async fn list(
    client: Client,
    prefix: Vec<u8>,
    after: Vec<u8>,
    limit: usize,
) -> Result<Page> {
    client.list(&prefix, &after, limit).await.map(Page::from)
}

pub(crate) async fn status(client: Client) -> Result<Status> {
    client.status().await.map(Status)
}
