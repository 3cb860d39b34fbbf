//! All-to-all: everybody has something for everybody.
//!
//! Pairwise: each pair of ranks has an object of its own, which one of them puts, and the other one gets and deletes. So there is
//! nobody who coordinates, and who comes late delays only those who wait for its own parts.

use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::ready;
use futures::stream::{StreamExt, TryStreamExt};
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use super::gather::{at_once, in_flight, in_order, no_such_rank, one_after_the_other};
use crate::client::{Client, checked};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::PutOptions;
use crate::reader::ObjectReader;
use crate::view::ObjectView;

impl Client {
    /// Gives `parts[k]` to rank k of the participants, and returns views of what each of them gives to this one, by rank.
    ///
    /// Every participant calls this with the same `name`, its own `rank`, and one part for each participant, itself too. Parts may
    /// differ in size, and be empty; all of one caller have the metadata of its options. Participants join in any order, each in
    /// its own time, and none waits for another one that does not give it anything yet but to get that.
    ///
    /// Communication: one step. Each node sends and receives S(n-1)/n bytes, where S is what a participant has for all n, and
    /// its store needs room for what the participant gives and what it gets. The part of rank r for rank k is the object
    /// `NAME/r/k`. Rank k deletes it once it has it, so that nothing is left when all have returned; views stay readable. Give
    /// each round a name of its own: a name can be used again only when all participants of the earlier round have returned.
    ///
    /// # Errors
    /// Those of [`Client::put_with`] and [`Client::get`], which name the object. [`Error::RanksMissing`] if not all have given
    /// their part before the timeout, which is one for everything. `InvalidRequest` if there is no such rank, `InvalidId` if
    /// the ids of the parts would be too long, `LimitExceeded` if there are more parts than ids may be in a request (65,536
    /// unless the store says otherwise).
    ///
    /// # Cancel safety
    /// Cancelled, or after an error, parts stay that were put and not taken yet, those of this participant and those for it. The
    /// others can still take theirs. Whoever knows that all participants have ended should then
    /// [delete](Client::delete) the objects [listed](Client::list) under `NAME/`.
    pub async fn all_to_all<P: AsRef<[u8]>>(
        &self,
        name: impl AsRef<[u8]>,
        parts: &[P],
        rank: usize,
        options: PutOptions,
    ) -> Result<Vec<ObjectView>> {
        let timeout = options.timeout;
        let (exchange, taken) = AllToAll::new(self, name, parts.len(), rank, timeout)?;
        let gets = exchange.nearest_first().map(|from| exchange.get(from)).collect();
        let all = exchange.run(parts, &options, in_order(&self.connection, gets), taken);
        self.connection.bounded(Operation::Get, timeout, all).await
    }

    /// As [`Client::all_to_all`], but copies what the participants give into the front of `out`, one after the other, by rank,
    /// while it arrives. Returns the lengths.
    ///
    /// # Errors
    /// As there, and [`Error::BufferTooSmall`]. After an error the contents of `out` mean nothing.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn all_to_all_into<P: AsRef<[u8]>>(
        &self,
        name: impl AsRef<[u8]>,
        parts: &[P],
        rank: usize,
        out: &mut [u8],
        options: PutOptions,
    ) -> Result<Vec<usize>> {
        let timeout = options.timeout;
        let (exchange, taken) = AllToAll::new(self, name, parts.len(), rank, timeout)?;
        let openings = exchange.nearest_first().map(|from| exchange.open(from)).collect();
        let copy = |from, reader, place| exchange.copy(from, reader, place);
        let copies = one_after_the_other(&self.connection, openings, out, copy);
        let all = exchange.run(parts, &options, copies, taken);
        self.connection.bounded(Operation::Get, timeout, all).await
    }
}

/// One participant's side of an all-to-all.
struct AllToAll<'a> {
    client: &'a Client,
    name: ObjectId,
    rank: usize,
    deadline: Deadline,
    /// What it puts, by the rank that gets it.
    given: Vec<ObjectId>,
    /// What it gets, by the rank that puts it.
    taken: Vec<ObjectId>,
    /// Where those ranks are named whose parts it has.
    has: UnboundedSender<usize>,
}

impl<'a> AllToAll<'a> {
    fn new(
        client: &'a Client,
        name: impl AsRef<[u8]>,
        participants: usize,
        rank: usize,
        timeout: Duration,
    ) -> Result<(Self, UnboundedReceiver<usize>)> {
        if rank >= participants {
            return Err(no_such_rank());
        }
        let name = ObjectId::new(name)?;
        let id = |from: usize, to: usize| [name.as_bytes(), format!("/{from}/{to}").as_bytes()].concat();
        let maximum = client.connection.max_ids();
        let given = checked((0..participants).map(|to| id(rank, to)), maximum)?;
        let taken = checked((0..participants).map(|from| id(from, rank)), maximum)?;
        let (has, had) = unbounded();
        Ok((Self { client, name, rank, deadline: Deadline::after(timeout), given, taken, has }, had))
    }

    /// Puts, takes, and deletes what was taken, all at the same time.
    async fn run<P: AsRef<[u8]>, T>(
        &self,
        parts: &[P],
        options: &PutOptions,
        take_all: impl Future<Output = Result<T>>,
        had: UnboundedReceiver<usize>,
    ) -> Result<T> {
        let take_all = async {
            let all = take_all.await;
            self.has.close_channel();
            all
        };
        let ((), all, ()) = tokio::try_join!(self.put_all(parts, options), take_all, self.delete_all(had))?;
        Ok(all)
    }

    /// The ranks in the order in which this one gets their parts: so that not all begin with the same sender.
    fn nearest_first(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, participants) = (self.rank, self.given.len());
        (1..=participants).map(move |step| (rank + step) % participants)
    }

    /// Puts all parts, first the one for the participant that begins with this one.
    async fn put_all<P: AsRef<[u8]>>(&self, parts: &[P], options: &PutOptions) -> Result<()> {
        let participants = self.given.len();
        let order = (1..=participants).map(|step| (self.rank + participants - step) % participants);
        let puts = order.map(|to| self.put(to, parts[to].as_ref(), options));
        at_once(&self.client.connection, puts.collect()).try_collect().await
    }

    async fn put(&self, to: usize, part: &[u8], options: &PutOptions) -> Result<()> {
        let options = PutOptions { timeout: self.deadline.left(), ..options.clone() };
        match self.client.put_with(&self.given[to], part, options).await {
            // By the one that it is for, which had it sooner than the directory has confirmed it here.
            Err(Error::Object(ObjectError::Deleted { .. })) => Ok(()),
            ended => ended,
        }
    }

    async fn get(&self, from: usize) -> Result<(usize, ObjectView)> {
        let got = self.client.get(&self.taken[from], self.deadline.left()).await;
        let view = got.map_err(|error| self.missing(from, error))?;
        self.took(from);
        Ok((from, view))
    }

    async fn open(&self, from: usize) -> Result<(usize, ObjectReader)> {
        let id = self.taken[from].clone();
        let opened = ObjectReader::open(&self.client.connection, id, self.deadline.left()).await;
        opened.map(|reader| (from, reader)).map_err(|error| self.missing(from, error))
    }

    async fn copy(&self, from: usize, reader: ObjectReader, place: &mut [u8]) -> Result<()> {
        let copied = reader.read_whole(place, self.deadline).await;
        copied.map_err(|error| self.missing(from, error))?;
        self.took(from);
        Ok(())
    }

    fn took(&self, from: usize) {
        // If nobody deletes any more, the call has failed.
        let _ = self.has.unbounded_send(from);
    }

    /// Deletes what was taken, as many at once as there are: the directory and the stores are told of these together.
    async fn delete_all(&self, had: UnboundedReceiver<usize>) -> Result<()> {
        let deletes = had.ready_chunks(self.taken.len()).map(async |ranks| {
            let ids = ranks.into_iter().map(|from| &self.taken[from]);
            self.client.delete(ids, self.deadline.left()).await
        });
        deletes.buffer_unordered(in_flight(&self.client.connection)).try_for_each(|_| ready(Ok(()))).await
    }

    /// Says of a timeout who was waited for.
    fn missing(&self, from: usize, error: Error) -> Error {
        match error {
            Error::Object(ObjectError::Timeout { .. }) => {
                let waited = self.deadline.timeout();
                Error::RanksMissing { name: self.name.clone(), ranks: vec![from], waited }
            }
            error => error,
        }
    }
}
