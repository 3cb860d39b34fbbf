//! All-to-all: each participant puts one object, its source, with a part for each participant.
//!
//! The stores exchange the sources (`hoplite_core::collective`), or else complete an empty target;
//! then each pair of ranks exchanges a part as a separate object.

use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::ready;
use futures::stream::{StreamExt, TryStreamExt};
use hoplite_core::metadata::MAX_DIMENSIONS;
use hoplite_core::node::{ByteRange, Reduce, ReduceOrder};
use hoplite_core::plan::collective::{Collective, MAX_MEMBERS, rank_of_part};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::{Error as ObjectError, Metadata, ObjectId, Operation};
use hoplite_proto::bounds::MAX_PUT_BYTES;

use super::gather::{at_once, in_flight, in_order, no_such_rank, one_after_the_other};
use super::participant::{Out, Participant};
use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::PutOptions;
use crate::reader::{ObjectReader, to_index};
use crate::view::ObjectView;
use crate::writer::{ObjectWriter, PIECE_BYTES};

impl Client {
    /// Sends `parts[k]` to rank k. Returns views of the parts from all ranks, by rank.
    ///
    /// Every participant calls this with the same `name`, its own `rank`, and one part for each
    /// participant, itself included. Parts may differ in size or be empty, and have the metadata of
    /// their sender's options.
    ///
    /// Each participant puts its parts as the object `NAME/RANK`. Its node sends and receives
    /// S(n-1)/n bytes, where S is the size of its n parts, and needs memory for both.
    ///
    /// If parts differ in size or metadata, with more than 256 participants, or after a node fails,
    /// each pair of ranks uses an object `NAME/r/k` instead. All objects are deleted at the end.
    /// The name can be used again when all participants have returned. `hoplite stat NAME` explains
    /// the exchange.
    ///
    /// # Errors
    /// The errors of [`Client::put_with`] and [`Client::get`]. [`Error::RanksMissing`] if
    /// participants are late; the timeout covers the whole call. `InvalidRequest` for a bad rank.
    /// `InvalidId` if the parts' ids would be too long. `LimitExceeded` for more than
    /// [`Client::max_ids`] parts. `TypeMismatch` if participants call different collectives.
    ///
    /// # Cancel safety
    /// After a cancelled call or an error, this participant's objects stay, and the others time
    /// out. Then [delete](Client::delete) `NAME` and the objects [listed](Client::list) under
    /// `NAME/`.
    pub async fn all_to_all<P: AsRef<[u8]>>(
        &self,
        name: impl AsRef<[u8]>,
        parts: &[P],
        rank: usize,
        mut options: PutOptions,
    ) -> Result<Vec<ObjectView>> {
        let call = self.begin(&mut options.timeout).await?;
        let timeout = options.timeout;
        let (client, connection) = (call.client(), &call.connection);
        let exchange = AllToAll::new(&client, connection, name, parts, rank, options)?;
        let all = pin!(async {
            if let Some(views) = exchange.together(exchange.views()).await? {
                return Ok(views);
            }
            let (pairs, taken) = Pairs::new(&exchange);
            let gets = exchange.nearest_first().map(|from| pairs.get(from)).collect();
            let views = pairs.run(parts, in_order(connection, gets), taken).await?;
            exchange.forget_target().await?;
            Ok(views)
        });
        let all = pin!(connection.bounded(Operation::AllToAll, timeout, all));
        let request = &exchange.participant.request;
        let wait =
            Wait { operation: "all_to_all", id: Some(&request.target), needs: &request.sources };
        call.run(wait, Repeat::Never, all).await
    }

    /// Acts as [`Client::all_to_all`], but copies the arriving parts into the front of `out`, by
    /// rank. Returns their lengths.
    ///
    /// # Errors
    /// As for [`Client::all_to_all`] and [`Client::get_into`].
    pub async fn all_to_all_into<P: AsRef<[u8]>>(
        &self,
        name: impl AsRef<[u8]>,
        parts: &[P],
        rank: usize,
        out: &mut [u8],
        mut options: PutOptions,
    ) -> Result<Vec<usize>> {
        let call = self.begin(&mut options.timeout).await?;
        let timeout = options.timeout;
        let (client, connection) = (call.client(), &call.connection);
        let exchange = AllToAll::new(&client, connection, name, parts, rank, options)?;
        let all = pin!(async {
            if exchange.together(exchange.copies(out)).await?.is_some() {
                return Ok(parts.iter().map(|part| part.as_ref().len()).collect());
            }
            let (pairs, taken) = Pairs::new(&exchange);
            let openings = exchange.nearest_first().map(|from| pairs.open(from)).collect();
            let copy = |from, reader, place| pairs.copy(from, reader, place);
            let copies = one_after_the_other(connection, openings, out, copy);
            let lengths = pairs.run(parts, copies, taken).await?;
            exchange.forget_target().await?;
            Ok(lengths)
        });
        let all = pin!(connection.bounded(Operation::AllToAll, timeout, all));
        let request = &exchange.participant.request;
        let wait =
            Wait { operation: "all_to_all", id: Some(&request.target), needs: &request.sources };
        call.run(wait, Repeat::Never, all).await
    }
}

struct AllToAll<'a, P> {
    client: &'a Client,
    connection: &'a Arc<Connection>,
    parts: &'a [P],
    options: PutOptions,
    /// Ids of the objects with this rank's parts, one for each receiver.
    given: Vec<ObjectId>,
    taken: Vec<ObjectId>,
    participant: Participant,
    /// Metadata of the object with this rank's parts; `None` if parts are empty or differ in
    /// length.
    stacked: Option<Metadata>,
}

impl<'a, P: AsRef<[u8]>> AllToAll<'a, P> {
    fn new(
        client: &'a Client,
        connection: &'a Arc<Connection>,
        name: impl AsRef<[u8]>,
        parts: &'a [P],
        rank: usize,
        options: PutOptions,
    ) -> Result<Self> {
        let participants = parts.len();
        if rank >= participants {
            return Err(no_such_rank());
        }
        let target = ObjectId::new(name)?;
        let id = |from: usize, to: usize| {
            [target.as_bytes(), format!("/{from}/{to}").as_bytes()].concat()
        };
        let source = |rank: usize| [target.as_bytes(), format!("/{rank}").as_bytes()].concat();
        let maximum = connection.max_ids();
        let given = checked((0..participants).map(|to| id(rank, to)), maximum)?;
        let taken = checked((0..participants).map(|from| id(from, rank)), maximum)?;
        let sources = checked((0..participants).map(source), maximum)?;
        let stacked = stacked(parts, &options.metadata);
        let request = Reduce {
            target,
            count: participants,
            sources,
            op: ReduceOp::default(),
            order: ReduceOrder::Any,
            range: None,
            replicas: 0,
            timeout: options.timeout,
        };
        let part_bytes = stacked.as_ref().map_or(0, |_| parts[rank].as_ref().len() as u64);
        let source = (part_bytes * participants as u64, options.metadata.dtype);
        let deadline = Deadline::after(options.timeout);
        let participant =
            Participant::checked(Collective::AllToAll, request, rank, source, deadline)?;
        Ok(Self { client, connection, parts, options, given, taken, participant, stacked })
    }

    /// Returns all ranks, starting after this one: participants begin with different senders.
    fn nearest_first(&self) -> impl Iterator<Item = usize> + use<P> {
        let (rank, participants) = (self.participant.rank, self.parts.len());
        (1..=participants).map(move |step| (rank + step) % participants)
    }

    fn source(&self) -> &ObjectId {
        self.participant.source()
    }

    fn left(&self) -> Duration {
        self.participant.deadline.left()
    }

    fn part_bytes(&self) -> u64 {
        self.participant.source_bytes / self.parts.len() as u64
    }

    /// Puts this rank's parts as one object, and receives the others' parts with `take`. `None` if
    /// the stores cannot exchange parts.
    async fn together<T>(
        &self,
        take: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        if !(2..=MAX_MEMBERS).contains(&self.parts.len()) {
            return Ok(None);
        }
        let taken = self.participant.run(self.connection, take);
        let taken = match tokio::try_join!(self.put_source(), taken) {
            Ok(((), taken)) => taken,
            Err(error) => return Err(self.explained(error).await),
        };
        self.forget(self.source()).await?;
        Ok(taken)
    }

    async fn put_source(&self) -> Result<()> {
        let options = |metadata: &Metadata| PutOptions {
            metadata: metadata.clone(),
            timeout: self.left(),
            ..self.options.clone()
        };
        let Some(stacked) = &self.stacked else {
            return self.client.put_with(self.source(), b"", options(&Metadata::default())).await;
        };
        let size_bytes = self.participant.source_bytes;
        if size_bytes <= MAX_PUT_BYTES as u64 {
            let whole = self.in_order().collect::<Vec<_>>().concat();
            return self.client.put_with(self.source(), &whole, options(stacked)).await;
        }
        let (connection, id) = (self.connection, self.source().clone());
        let mut writer = ObjectWriter::create(connection, id, size_bytes, options(stacked)).await?;
        for part in self.in_order() {
            for piece in part.chunks(PIECE_BYTES) {
                writer.write(piece)?;
                tokio::task::yield_now().await;
            }
        }
        writer.seal().await
    }

    fn in_order(&self) -> impl Iterator<Item = &[u8]> {
        let participants = self.parts.len();
        (0..participants).map(move |place| {
            self.parts[rank_of_part(self.participant.rank, place, participants)].as_ref()
        })
    }

    /// Returns the offset in bytes of this rank's parts in the target, which has the parts for all
    /// ranks of this node. `order` lacks each rank's part for itself.
    fn start_bytes(&self, order: &[ByteRange]) -> u64 {
        let (source_bytes, own) =
            (self.participant.source_bytes, self.participant.rank as u64 * self.part_bytes());
        let starts = (0..).map(|place| place * source_bytes);
        let is_own = |start: &u64| !order.iter().any(|range| range.offset_bytes == start + own);
        starts.take(order.len() + 1).find(is_own).unwrap_or(0)
    }

    async fn views(&self) -> Result<Option<Vec<ObjectView>>> {
        let mut is_again = false;
        while let Some((reader, order)) =
            self.participant.join_parts(self.connection, is_again).await?
        {
            match reader.into_view(self.participant.deadline).await {
                Err(Error::Object(ObjectError::Superseded { .. })) => is_again = true,
                Err(error) => return Err(error),
                Ok(all) => return self.split(&all, &order).await.map(Some),
            }
        }
        Ok(None)
    }

    async fn split(&self, all: &ObjectView, order: &[ByteRange]) -> Result<Vec<ObjectView>> {
        let own = self.client.get(self.source(), self.left()).await?;
        let (start, part_bytes) = (self.start_bytes(order), self.part_bytes());
        let view = |from: usize| {
            let is_own = from == self.participant.rank;
            let own_start = self.participant.source_bytes - part_bytes;
            let start = if is_own { own_start } else { start + from as u64 * part_bytes };
            let range = to_index(start)..to_index(start + part_bytes);
            let whole = if is_own { &own } else { all };
            let part = whole.part(range, self.options.metadata.clone());
            part.ok_or_else(|| self.connection.unexpected())
        };
        (0..self.parts.len()).map(view).collect()
    }

    async fn copies(&self, out: &mut [u8]) -> Result<Option<()>> {
        let mut is_again = false;
        while let Some((reader, order)) =
            self.participant.join_parts(self.connection, is_again).await?
        {
            match self.copy(reader, &order, out).await {
                Err(Error::Object(ObjectError::Superseded { .. })) => is_again = true,
                ended => return ended.map(Some),
            }
        }
        Ok(None)
    }

    async fn copy(
        &self,
        mut reader: ObjectReader,
        order: &[ByteRange],
        out: &mut [u8],
    ) -> Result<()> {
        let Participant { source_bytes, rank, deadline, .. } = self.participant;
        let mut out = Out::Given(out);
        let out = out.room(source_bytes)?;
        reader.read_ranges(order, self.start_bytes(order), out, deadline).await?;
        reader.completed(deadline).await?;
        let part_bytes = to_index(self.part_bytes());
        out[rank * part_bytes..][..part_bytes].copy_from_slice(self.parts[rank].as_ref());
        Ok(())
    }

    /// Rank 0 deletes the target, which all participants have seen: their parts have arrived.
    async fn forget_target(&self) -> Result<()> {
        if self.participant.rank > 0 || self.parts.len() == 1 {
            return Ok(());
        }
        self.forget(self.participant.target()).await
    }

    async fn forget(&self, id: &ObjectId) -> Result<()> {
        self.client.forget(slice::from_ref(id), self.participant.deadline).await
    }

    async fn explained(&self, error: Error) -> Error {
        let is_wait = match &error {
            Error::Object(ObjectError::Timeout { .. }) => true,
            Error::Object(ObjectError::ObjectLost { id }) => id == self.participant.target(),
            _ => false,
        };
        if !is_wait {
            return error;
        }
        let Participant { request, deadline, .. } = &self.participant;
        let missing =
            self.client.missing(request.target.clone(), &request.sources, deadline.timeout());
        missing.await.unwrap_or(error)
    }
}

fn stacked<P: AsRef<[u8]>>(parts: &[P], metadata: &Metadata) -> Option<Metadata> {
    let part_bytes = parts.first()?.as_ref().len();
    let is_whole = (part_bytes as u64).is_multiple_of(metadata.dtype.size_bytes());
    if part_bytes == 0 || !is_whole || parts.iter().any(|part| part.as_ref().len() != part_bytes) {
        return None;
    }
    metadata.validate(part_bytes as u64).ok()?;
    let stack = |shape: &Vec<u64>| [&[parts.len() as u64][..], shape].concat();
    let shape = metadata.shape.as_ref().map(stack);
    let fits = shape.as_ref().is_none_or(|shape| shape.len() <= MAX_DIMENSIONS);
    fits.then(|| Metadata { shape, ..metadata.clone() })
}

struct Pairs<'a, 'b, P> {
    exchange: &'a AllToAll<'b, P>,
    has: UnboundedSender<usize>,
}

impl<'a, 'b, P: AsRef<[u8]>> Pairs<'a, 'b, P> {
    fn new(exchange: &'a AllToAll<'b, P>) -> (Self, UnboundedReceiver<usize>) {
        let (has, had) = unbounded();
        (Self { exchange, has }, had)
    }

    async fn run<T>(
        &self,
        parts: &[P],
        take_all: impl Future<Output = Result<T>>,
        had: UnboundedReceiver<usize>,
    ) -> Result<T> {
        let take_all = async {
            let all = take_all.await;
            self.has.close_channel();
            all
        };
        let ((), all, ()) = tokio::try_join!(self.put_all(parts), take_all, self.delete_all(had))?;
        Ok(all)
    }

    async fn put_all(&self, parts: &[P]) -> Result<()> {
        let (rank, participants) = (self.exchange.participant.rank, parts.len());
        let order = (1..=participants).map(|step| (rank + participants - step) % participants);
        let puts = order.map(|to| self.put(to, parts[to].as_ref()));
        at_once(self.exchange.connection, puts.collect()).try_collect().await
    }

    async fn put(&self, to: usize, part: &[u8]) -> Result<()> {
        let AllToAll { client, given, options, .. } = self.exchange;
        let options = PutOptions { timeout: self.exchange.left(), ..options.clone() };
        match client.put_with(&given[to], part, options).await {
            // The receiver deleted the object before the put was confirmed.
            Err(Error::Object(ObjectError::Deleted { .. })) => Ok(()),
            ended => ended,
        }
    }

    async fn get(&self, from: usize) -> Result<(usize, ObjectView)> {
        let AllToAll { client, taken, .. } = self.exchange;
        let got = client.get(&taken[from], self.exchange.left()).await;
        let view = got.map_err(|error| self.missing(from, error))?;
        self.took(from);
        Ok((from, view))
    }

    async fn open(&self, from: usize) -> Result<(usize, ObjectReader)> {
        let AllToAll { connection, taken, .. } = self.exchange;
        let opened =
            ObjectReader::open(connection, taken[from].clone(), self.exchange.left()).await;
        opened.map(|reader| (from, reader)).map_err(|error| self.missing(from, error))
    }

    async fn copy(&self, from: usize, reader: ObjectReader, place: &mut [u8]) -> Result<()> {
        let copied = reader.read_whole(place, self.exchange.participant.deadline).await;
        copied.map_err(|error| self.missing(from, error))?;
        self.took(from);
        Ok(())
    }

    fn took(&self, from: usize) {
        let _ = self.has.unbounded_send(from);
    }

    async fn delete_all(&self, had: UnboundedReceiver<usize>) -> Result<()> {
        let AllToAll { client, connection, taken, .. } = self.exchange;
        let deletes = had.ready_chunks(taken.len()).map(async |ranks| {
            let ids = ranks.into_iter().map(|from| &taken[from]);
            client.delete(ids, self.exchange.left()).await
        });
        deletes.buffer_unordered(in_flight(connection)).try_for_each(|_| ready(Ok(()))).await
    }

    fn missing(&self, from: usize, error: Error) -> Error {
        match error {
            Error::Object(ObjectError::Timeout { .. }) => {
                let (name, waited) = (
                    self.exchange.participant.target().clone(),
                    self.exchange.participant.deadline.timeout(),
                );
                Error::RanksMissing { name, ranks: vec![from], waited }
            }
            error => error,
        }
    }
}
