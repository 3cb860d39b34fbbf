//! Reduce-scatter and allgather: the participants' stores exchange parts in a ring
//! (`hoplite_core::collective`), or else complete an empty target; then each participant gets its
//! parts separately.

use std::pin::pin;
use std::sync::Arc;

use hoplite_core::collective::MAX_STAR_BYTES;
use hoplite_core::node::{ByteRange, ReduceOrder};
use hoplite_core::plan::collective::Collective;
use hoplite_core::reduce::combine;
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use super::participant::{Out, Participant};
use super::reduce::reduce;
use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::options::{AllreduceOptions, ReduceOptions};
use crate::reader::{ObjectReader, get_into, to_index};
use crate::view::ObjectView;

impl Client {
    /// Reduces the objects of all participants as [`Client::reduce_scatter_into`] does. Returns a
    /// new vector.
    pub async fn reduce_scatter<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        rank: usize,
        options: AllreduceOptions,
    ) -> Result<Vec<u8>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let mut out = Vec::new();
        let scatter = Collective::ReduceScatter;
        self.parts_to(scatter, target.as_ref(), sources, rank, Out::New(&mut out), options).await?;
        Ok(out)
    }

    /// Reduces the objects of n participants, and copies the k-th of n equal parts into the front
    /// of `out` at rank k, as `MPI_Reduce_scatter_block` does. Returns the part's length.
    ///
    /// Participants call this like [`Client::allreduce_into`]. The sources of S bytes must divide
    /// into n equal parts of whole elements. Each node sends and receives S(n-1)/n bytes, and needs
    /// memory for S more bytes during the call.
    ///
    /// If sources are late or share a node, or a node fails, participants reduce missing parts as
    /// `TARGET/part/RANK`, which may stay after an error. If all sources have at most 64 KiB
    /// together, each participant gets all of them instead.
    ///
    /// The sources stay. If they have more than 8 KiB in all, the empty object `target` stays, too.
    /// Delete them when all participants have their result.
    ///
    /// # Errors
    /// As for [`Client::allreduce_into`]. `InvalidRequest` if the sources do not divide into equal
    /// parts. Some participants may get an error while others get their part.
    ///
    /// # Cancel safety
    /// Only this participant's call ends. If rank 0 has not begun, participants that wait for it
    /// fail.
    pub async fn reduce_scatter_into<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        rank: usize,
        out: &mut [u8],
        options: AllreduceOptions,
    ) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let scatter = Collective::ReduceScatter;
        self.parts_to(scatter, target.as_ref(), sources, rank, Out::Given(out), options).await
    }

    /// Copies the objects of n participants into the front of `out` at each, in the order of
    /// `sources`. Returns their total length.
    ///
    /// Participants call this like [`Client::allreduce_into`]. The sources must have the same
    /// length and type; [`Client::allgather`] has no such limit. Each node sends and receives
    /// S(n-1)/n of the result's S bytes, and needs memory for S bytes during the call. If sources
    /// are late or share a node, or a node fails, participants use `gather`.
    ///
    /// The sources and `target` stay, as after [`Client::reduce_scatter_into`].
    ///
    /// # Errors
    /// As for [`Client::gather`] and [`Client::allreduce_into`].
    ///
    /// # Cancel safety
    /// See [`Client::reduce_scatter_into`].
    pub async fn allgather_into<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        rank: usize,
        out: &mut [u8],
        timeout: std::time::Duration,
    ) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let options = AllreduceOptions { timeout, ..AllreduceOptions::default() };
        let (gather, out) = (Collective::Allgather, Out::Given(out));
        self.parts_to(gather, target.as_ref(), sources, rank, out, options).await
    }

    async fn parts_to<I>(
        &self,
        kind: Collective,
        target: &[u8],
        sources: I,
        rank: usize,
        mut out: Out<'_>,
        mut options: AllreduceOptions,
    ) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let call = self.begin(&mut options.timeout).await?;
        let timeout = options.timeout;
        let (client, connection) = (call.client(), &call.connection);
        let sources = checked(sources, connection.max_ids())?;
        let target = ObjectId::new(target)?;
        let (operation, class) = match kind {
            Collective::Allgather => ("allgather_into", Operation::Allgather),
            _ => ("reduce_scatter", Operation::ReduceScatter),
        };
        let all = pin!(async {
            let (target, sources) = (target.clone(), sources.clone());
            let parts = Parts::prepare(connection, kind, target, sources, rank, options).await?;
            let out = out.room(parts.result_bytes())?;
            match kind {
                Collective::Allgather => parts.allgather(&client, connection, out).await?,
                _ => parts.reduce_scatter(&client, connection, out).await?,
            }
            Ok(out.len())
        });
        let all = pin!(connection.bounded(class, timeout, all));
        let wait = Wait { operation, id: Some(&target), needs: &sources };
        call.run(wait, Repeat::Never, all).await
    }
}

struct Parts {
    participant: Participant,
    part_bytes: u64,
}

impl Parts {
    async fn prepare(
        connection: &Arc<Connection>,
        kind: Collective,
        target: ObjectId,
        sources: Vec<ObjectId>,
        rank: usize,
        options: AllreduceOptions,
    ) -> Result<Self> {
        let participant =
            Participant::prepare(connection, kind, target, sources, rank, options).await?;
        let source_bytes = participant.source_bytes;
        if kind == Collective::Allgather {
            return Ok(Self { part_bytes: source_bytes, participant });
        }
        let count = participant.request.sources.len() as u64;
        if !source_bytes.is_multiple_of(count * participant.dtype.size_bytes()) {
            let reason = "the sources do not divide into equal parts of whole elements, one for each participant";
            return Err(ObjectError::invalid_request(reason).into());
        }
        let parts = Self { part_bytes: source_bytes / count, participant };
        let own = parts.own_target()?;
        if parts.sources().contains(&own) {
            return Err(ObjectError::DuplicateId { id: own }.into());
        }
        Ok(parts)
    }

    fn own_target(&self) -> Result<ObjectId> {
        let target = self.participant.target().as_bytes();
        let rank = self.participant.rank.to_string();
        Ok(ObjectId::new([target, b"/part/", rank.as_bytes()].concat())?)
    }

    fn sources(&self) -> &[ObjectId] {
        &self.participant.request.sources
    }

    fn count(&self) -> u64 {
        self.sources().len() as u64
    }

    fn result_bytes(&self) -> u64 {
        match self.participant.kind {
            Collective::Allgather => self.all_bytes(),
            _ => self.part_bytes,
        }
    }

    fn part(&self, rank: usize) -> ByteRange {
        ByteRange { offset_bytes: rank as u64 * self.part_bytes, length_bytes: self.part_bytes }
    }

    fn all_bytes(&self) -> u64 {
        self.participant.source_bytes.saturating_mul(self.count())
    }

    async fn reduce_scatter(
        &self,
        client: &Client,
        connection: &Arc<Connection>,
        out: &mut [u8],
    ) -> Result<()> {
        if self.exchanged(connection, out).await? {
            return Ok(());
        }
        if self.all_bytes() <= MAX_STAR_BYTES {
            return self.reduce_all(client, out).await;
        }
        self.reduce_own(client, connection, out).await
    }

    async fn allgather(
        &self,
        client: &Client,
        connection: &Arc<Connection>,
        out: &mut [u8],
    ) -> Result<()> {
        if self.exchanged(connection, out).await? {
            return Ok(());
        }
        let mut room = out;
        for view in self.all_sources(client).await? {
            let (place, rest) = room.split_at_mut(view.len().min(room.len()));
            place.copy_from_slice(&view);
            room = rest;
        }
        Ok(())
    }

    async fn all_sources(&self, client: &Client) -> Result<Vec<ObjectView>> {
        let views = client.gather(self.sources(), self.participant.deadline.left()).await?;
        let (source_bytes, dtype) =
            (to_index(self.participant.source_bytes), self.participant.dtype);
        let is_unlike =
            |view: &ObjectView| view.len() != source_bytes || view.metadata().dtype != dtype;
        let Some(other) = views.iter().position(is_unlike) else { return Ok(views) };
        let reason = "it is not like that of this participant".into();
        Err(ObjectError::TypeMismatch { id: self.sources()[other].clone(), reason }.into())
    }

    async fn exchanged(&self, connection: &Arc<Connection>, out: &mut [u8]) -> Result<bool> {
        if self.all_bytes() <= self.participant.kind.properties().max_general_bytes {
            return Ok(false);
        }
        self.participant.run(connection, self.join(connection, out)).await
    }

    async fn join(&self, connection: &Arc<Connection>, out: &mut [u8]) -> Result<bool> {
        let mut is_again = false;
        while let Some((mut reader, order)) =
            self.participant.join_parts(connection, is_again).await?
        {
            match self.take(connection, &mut reader, &order, out).await {
                Err(Error::Object(ObjectError::Superseded { .. })) => is_again = true,
                ended => return ended,
            }
        }
        Ok(false)
    }

    async fn take(
        &self,
        connection: &Arc<Connection>,
        reader: &mut ObjectReader,
        order: &[ByteRange],
        out: &mut [u8],
    ) -> Result<bool> {
        let deadline = self.participant.deadline;
        if self.participant.kind == Collective::ReduceScatter {
            let own = self.part(self.participant.rank);
            if !order.contains(&own) {
                return Ok(false);
            }
            return reader.read_ranges(order, own.offset_bytes, out, deadline).await.map(|()| true);
        }
        for (rank, source) in self.sources().iter().enumerate() {
            let part = self.part(rank);
            if !order.contains(&part) {
                let (start, end) = (part.offset_bytes, part.offset_bytes + part.length_bytes);
                let place = &mut out[to_index(start)..to_index(end)];
                get_into(connection, source.clone(), place, deadline.left()).await?;
            }
        }
        reader.read_ranges(order, 0, out, deadline).await.map(|()| true)
    }

    async fn reduce_own(
        &self,
        client: &Client,
        connection: &Arc<Connection>,
        out: &mut [u8],
    ) -> Result<()> {
        let Participant { request, deadline, rank, .. } = &self.participant;
        let target = self.own_target()?;
        let mut sources = request.sources.clone();
        if request.order == ReduceOrder::Any {
            // Participants begin with different senders, and end with their own sources.
            sources.rotate_left(rank + 1);
        }
        let options = ReduceOptions {
            op: request.op,
            num_objects: None,
            order: request.order,
            range: Some(self.part(*rank)),
            replicas: 0,
            timeout: deadline.left(),
        };
        tokio::try_join!(
            reduce(connection, target.clone(), sources, options),
            get_into(connection, target.clone(), out, deadline.left()),
        )?;
        let _ = client.delete([target], deadline.left()).await;
        Ok(())
    }

    async fn reduce_all(&self, client: &Client, out: &mut [u8]) -> Result<()> {
        let Participant { request, dtype, .. } = &self.participant;
        let views = self.all_sources(client).await?;
        let start = to_index(self.part(self.participant.rank).offset_bytes);
        let range = start..start + out.len();
        if let Some((first, others)) = views.split_first() {
            out.copy_from_slice(&first[range.clone()]);
            others.iter().for_each(|other| combine(request.op, *dtype, out, &other[range.clone()]));
        }
        Ok(())
    }
}
