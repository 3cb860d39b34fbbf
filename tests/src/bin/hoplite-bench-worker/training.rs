//! Training loops. Rank 0 is the parameter server or the trainer.
//!
//! A reduce of the first gradients chooses its workers. The server then sends each of them a small
//! object with the number of its next model.

use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use hoplite_client::blocking::Client;
use hoplite_client::{
    AllreduceOptions, Dtype, Metadata, ObjectId, ObjectView, PutOptions, ReduceOptions,
};

use crate::TIMEOUT;
use crate::contents::factor;

const ROLLOUT_PART: usize = 4;
const STOP: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All gradients; the server adds zeros.
    AllGradients,
    FirstGradients,
    /// The first samples of several workers, which then get a new model.
    FirstSamples,
}

pub(crate) struct Training<'a> {
    pub(crate) kind: Kind,
    pub(crate) client: &'a Client,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) round: usize,
    pub(crate) steps: usize,
    pub(crate) compute: Duration,
    pub(crate) source: &'a [u8],
}

#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) views: Vec<ObjectView>,
    pub(crate) factors: Vec<f32>,
    pub(crate) sum: Vec<u8>,
}

impl Training<'_> {
    pub(crate) fn run(&self) -> anyhow::Result<Outcome> {
        match (self.kind, self.rank) {
            (Kind::AllGradients, _) => self.take_part(),
            (_, 0) => self.serve(),
            _ => self.work(),
        }
    }

    pub(crate) fn ids(&self) -> anyhow::Result<Vec<ObjectId>> {
        let mut ids = vec![];
        for step in 0..self.steps {
            ids.push(ObjectId::new(self.model(step))?);
        }
        for rank in 0..self.ranks {
            for step in 0..=self.steps {
                ids.extend([
                    ObjectId::new(self.gift(rank, step))?,
                    ObjectId::new(self.turn(rank, step))?,
                ]);
            }
        }
        Ok(ids)
    }

    fn model(&self, step: usize) -> String {
        format!("bench-{}-model-{step}", self.round)
    }

    fn gift(&self, rank: usize, step: usize) -> String {
        format!("bench-{}-gift-{rank}-{step}", self.round)
    }

    fn turn(&self, rank: usize, step: usize) -> String {
        format!("bench-{}-turn-{rank}-{step}", self.round)
    }

    fn take_part(&self) -> anyhow::Result<Outcome> {
        let mut sum = vec![0; self.source.len()];
        if self.rank == 0 {
            self.put(self.gift(0, 0), &sum)?;
        }
        for step in 0..self.steps {
            if self.rank > 0 {
                thread::sleep(self.computing(step)?);
                self.put(self.gift(self.rank, step), self.source)?;
            }
            let of_workers = (1..self.ranks).map(|rank| self.gift(rank, step));
            let gifts: Vec<String> = [self.gift(0, 0)].into_iter().chain(of_workers).collect();
            let options = AllreduceOptions { timeout: TIMEOUT, ..AllreduceOptions::default() };
            self.client.allreduce_into(self.model(step), gifts, self.rank, &mut sum, options)?;
        }
        let factors = vec![(1..self.ranks).map(|rank| factor(rank, self.round)).sum()];
        Ok(Outcome { factors, sum, ..Outcome::default() })
    }

    fn serve(&self) -> anyhow::Result<Outcome> {
        let mut at = vec![0; self.ranks];
        let mut outcome = Outcome::default();
        for step in 0..self.steps {
            let gifts: Vec<String> =
                (1..self.ranks).map(|rank| self.gift(rank, at[rank])).collect();
            let first;
            (first, outcome) = if self.kind == Kind::FirstSamples {
                self.learn(step, &gifts, self.ranks / 2)?
            } else {
                self.reduce(step, &gifts, self.ranks / 2)?
            };
            for rank in first {
                self.client.put(self.turn(rank, at[rank]), &u64::try_from(step)?.to_le_bytes())?;
                at[rank] += 1;
            }
        }
        for (rank, step) in at.into_iter().enumerate().skip(1) {
            self.client.put(self.turn(rank, step), &STOP.to_le_bytes())?;
        }
        Ok(outcome)
    }

    fn reduce(
        &self,
        step: usize,
        gifts: &[String],
        count: usize,
    ) -> anyhow::Result<(Vec<usize>, Outcome)> {
        let options = ReduceOptions {
            num_objects: Some(count),
            timeout: TIMEOUT,
            ..ReduceOptions::default()
        };
        let reduced = self.client.reduce_with(self.model(step), gifts, options)?;
        let first = reduced
            .iter()
            .map(|id| {
                gifts.iter().position(|gift| gift.as_bytes() == id.as_ref()).map(|index| index + 1)
            })
            .collect::<Option<Vec<usize>>>()
            .context("what was reduced is no gradient")?;
        ensure!(first.len() == count, "{} gradients were reduced instead of {count}", first.len());
        let sum = first.iter().map(|rank| factor(*rank, self.round)).sum();
        let views = vec![self.client.get(self.model(step), TIMEOUT)?];
        Ok((first, Outcome { views, factors: vec![sum], ..Outcome::default() }))
    }

    fn learn(
        &self,
        step: usize,
        gifts: &[String],
        count: usize,
    ) -> anyhow::Result<(Vec<usize>, Outcome)> {
        let mut ready = self.client.wait(gifts, count, TIMEOUT)?;
        ready.truncate(count);
        let views = self.client.gather(ready.iter().map(|index| &gifts[*index]), TIMEOUT)?;
        self.put(self.model(step), self.source)?;
        let first: Vec<usize> = ready.into_iter().map(|index| index + 1).collect();
        let factors = first.iter().map(|rank| factor(*rank, self.round)).collect();
        Ok((first, Outcome { views, factors, ..Outcome::default() }))
    }

    fn work(&self) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::default();
        for step in 0.. {
            thread::sleep(self.computing(step)?);
            let part = if self.kind == Kind::FirstSamples { ROLLOUT_PART } else { 1 };
            self.put(self.gift(self.rank, step), &self.source[..self.source.len() / part])?;
            let Some(model) = self.next_model(step)? else { break };
            let view = self.client.get(self.model(model), TIMEOUT)?;
            outcome = Outcome {
                factors: vec![self.model_factor(&view)?],
                views: vec![view],
                ..Outcome::default()
            };
        }
        Ok(outcome)
    }

    fn computing(&self, step: usize) -> anyhow::Result<Duration> {
        let parts = 4 + (5 * self.rank + 2 * step) % 9;
        Ok(self.compute * u32::try_from(parts)? / 8)
    }

    fn next_model(&self, step: usize) -> anyhow::Result<Option<usize>> {
        let turn = self.client.get(self.turn(self.rank, step), TIMEOUT)?;
        let number = u64::from_le_bytes(turn[..].try_into().context("a turn is no number")?);
        Ok(if number == STOP { None } else { Some(usize::try_from(number)?) })
    }

    fn model_factor(&self, view: &ObjectView) -> anyhow::Result<f32> {
        if self.kind == Kind::FirstSamples {
            return Ok(factor(0, self.round));
        }
        let found = f32::from_le_bytes(*view.first_chunk().context("an empty model")?);
        ensure!(found >= 1.0, "a model begins with {found}");
        Ok(found)
    }

    fn put(&self, id: String, bytes: &[u8]) -> anyhow::Result<()> {
        let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
        Ok(self.client.put_with(
            id,
            bytes,
            PutOptions { metadata, timeout: TIMEOUT, ..PutOptions::default() },
        )?)
    }
}
