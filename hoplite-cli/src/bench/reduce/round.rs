use std::iter;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hoplite_client::blocking::Client;
use hoplite_client::{AllreduceOptions, Confirmation, Dtype, Metadata, PutOptions, ReduceOp};

use super::super::floor::TcpPipe;
use super::super::report::Traffic;
use super::arrays::{Arrays, add};

const TIMEOUT: Duration = Duration::from_secs(120);
const START_DELAY: Duration = Duration::from_millis(20);
const TARGET: &str = "reduce/target";

/// One run of each operation. The first client gets a reduce's result.
pub(super) struct Round<'a> {
    first: &'a Client,
    clients: &'a [Client],
    arrays: &'a Arrays,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) elapsed: Duration,
    pub(super) traffic: Traffic,
}

#[derive(Debug)]
pub(super) struct Sample {
    pub(super) stream: Duration,
    pub(super) reduce: Taken,
    pub(super) gather: Taken,
    pub(super) gather_and_add: Duration,
    pub(super) in_turn: Taken,
    pub(super) composed: Taken,
    pub(super) allreduce: Taken,
}

struct Results {
    reduce: Vec<u8>,
    gather_and_add: Vec<u8>,
    allreduce: Vec<Vec<u8>>,
}

impl<'a> Round<'a> {
    pub(super) fn new(clients: &'a [Client], arrays: &'a Arrays) -> anyhow::Result<Self> {
        let first = clients.first().context("a cluster without nodes")?;
        Ok(Self { first, clients, arrays })
    }

    pub(super) fn check(&self, pipe: &mut TcpPipe) -> anyhow::Result<()> {
        let (_, results) = self.run_all(pipe)?;
        let sum = self.arrays.sum(self.clients.len());
        let Results { reduce, gather_and_add, mut allreduce } = results;
        allreduce.extend([reduce, gather_and_add]);
        ensure!(allreduce.iter().all(|result| *result == sum), "a sum is wrong");
        Ok(())
    }

    pub(super) fn run(&self, pipe: &mut TcpPipe) -> anyhow::Result<Sample> {
        Ok(self.run_all(pipe)?.0)
    }

    fn run_all(&self, pipe: &mut TcpPipe) -> anyhow::Result<(Sample, Results)> {
        let ids = &self.put()?;
        let stream = pipe.transfer(self.arrays.of(0))?;
        let (reduce, sum) = self.reduce(ids)?;
        let in_turn = self.reduce_then_broadcast(ids)?;
        let composed = self.reduce_and_broadcast(ids)?;
        let (allreduce, sums) = self.allreduce(ids)?;
        let (gather, gather_and_add, added) = self.gather_and_add(ids)?;
        self.first.delete(ids, TIMEOUT)?;
        let sample =
            Sample { stream, reduce, gather, gather_and_add, in_turn, composed, allreduce };
        Ok((sample, Results { reduce: sum, gather_and_add: added, allreduce: sums }))
    }

    fn put(&self) -> anyhow::Result<Vec<String>> {
        let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
        let options = PutOptions { metadata, confirm: Confirmation::Confirmed, timeout: TIMEOUT };
        let ids: Vec<_> = (0..self.clients.len()).map(|node| format!("reduce/{node}")).collect();
        for (node, (client, id)) in iter::zip(self.clients, &ids).enumerate() {
            client.put_with(id, self.arrays.of(node), options.clone())?;
        }
        Ok(ids)
    }

    fn reduce(&self, ids: &[String]) -> anyhow::Result<(Taken, Vec<u8>)> {
        let taken = self.counting(|| {
            let started = Instant::now();
            self.first.reduce(TARGET, ids, ReduceOp::Sum, TIMEOUT)?;
            Ok(started.elapsed())
        })?;
        let sum = self.first.get_vec(TARGET, TIMEOUT)?;
        self.first.delete([TARGET], TIMEOUT)?;
        Ok((taken, sum))
    }

    fn reduce_then_broadcast(&self, ids: &[String]) -> anyhow::Result<Taken> {
        let taken = self.counting(|| {
            let started = Instant::now();
            self.first.reduce(TARGET, ids, ReduceOp::Sum, TIMEOUT)?;
            let reduced = started.elapsed();
            let broadcast = self.together(&mut self.nothing(), |_, client, ()| {
                client.get(TARGET, TIMEOUT)?;
                Ok(())
            })?;
            Ok(reduced + broadcast)
        })?;
        self.first.delete([TARGET], TIMEOUT)?;
        Ok(taken)
    }

    fn reduce_and_broadcast(&self, ids: &[String]) -> anyhow::Result<Taken> {
        let taken = self.counting(|| {
            self.together(&mut self.nothing(), |node, client, ()| {
                if node == 0 {
                    client.reduce(TARGET, ids, ReduceOp::Sum, TIMEOUT)?;
                }
                client.get(TARGET, TIMEOUT)?;
                Ok(())
            })
        })?;
        self.first.delete([TARGET], TIMEOUT)?;
        Ok(taken)
    }

    fn allreduce(&self, ids: &[String]) -> anyhow::Result<(Taken, Vec<Vec<u8>>)> {
        let options = AllreduceOptions { timeout: TIMEOUT, ..AllreduceOptions::default() };
        let mut sums = vec![vec![1; self.arrays.size_bytes]; self.clients.len()];
        let taken = self.counting(|| {
            self.together(&mut sums, |node, client, sum| {
                client.allreduce_into(TARGET, ids, node, sum, options.clone())?;
                Ok(())
            })
        })?;
        self.first.delete([TARGET], TIMEOUT)?;
        Ok((taken, sums))
    }

    fn gather_and_add(&self, ids: &[String]) -> anyhow::Result<(Taken, Duration, Vec<u8>)> {
        let mut views = Vec::new();
        let gather = self.counting(|| {
            let started = Instant::now();
            views = self.first.gather(ids, TIMEOUT)?;
            Ok(started.elapsed())
        })?;
        let mut sum = vec![1; self.arrays.size_bytes];
        let started = Instant::now();
        let (own, others) = views.split_first().context("no arrays")?;
        sum.copy_from_slice(own);
        others.iter().for_each(|view| add(&mut sum, view));
        Ok((gather, gather.elapsed + started.elapsed(), sum))
    }

    fn nothing(&self) -> Vec<()> {
        vec![(); self.clients.len()]
    }

    /// Calls `work` for all nodes concurrently, each with its element of `own`. Returns the time
    /// from the first start to the last end.
    fn together<T: Send>(
        &self,
        own: &mut [T],
        work: impl Fn(usize, &Client, &mut T) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<Duration> {
        let start = Instant::now() + START_DELAY;
        let work = &work;
        let times = thread::scope(|scope| {
            let participants = iter::zip(self.clients, own).enumerate();
            let threads: Vec<_> = participants
                .map(|(node, (client, own))| {
                    scope.spawn(move || {
                        thread::sleep(start.saturating_duration_since(Instant::now()));
                        let started = Instant::now();
                        work(node, client, own)?;
                        anyhow::Ok((started, Instant::now()))
                    })
                })
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, anyhow::Result<_>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a participant panicked")))
            };
            threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let started = times.iter().map(|(started, _)| *started).min().context("no participants")?;
        let ended = times.iter().map(|(_, ended)| *ended).max().context("no participants")?;
        Ok(ended - started)
    }

    fn counting(&self, work: impl FnOnce() -> anyhow::Result<Duration>) -> anyhow::Result<Taken> {
        let before = self.counters()?;
        let elapsed = work()?;
        let after = self.counters()?;
        let most = |counter: fn(&(u64, u64)) -> u64| {
            let moved =
                iter::zip(&after, &before).map(|(after, before)| counter(after) - counter(before));
            moved.max().unwrap_or_default() as f64 / self.arrays.size_bytes.max(1) as f64
        };
        let traffic = Traffic {
            sent_objects: most(|(sent, _)| *sent),
            received_objects: most(|(_, got)| *got),
        };
        Ok(Taken { elapsed, traffic })
    }

    fn counters(&self) -> anyhow::Result<Vec<(u64, u64)>> {
        let counters = self.clients.iter().map(|client| {
            let status = client.status()?;
            Ok((status.sent_bytes, status.received_bytes))
        });
        counters.collect()
    }
}
