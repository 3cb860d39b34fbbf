//! A worker of `tests/bench` that uses Hoplite.
//!
//! Connects to the benchmark's socket, sends `hello RANK`, and obeys one command per line:
//!
//! * `prepare WORKLOAD SIZE ROUND STEPS NANOSECONDS`: creates the objects that exist before the
//!   clock starts. The last two are for training loops: steps, and mean computing time.
//! * `run NANOSECONDS`: performs the workload at that time of the monotonic clock. Answer: `done
//!   START END`.
//! * `check`: compares the result, and drops it.
//! * `clean`: deletes the objects.
//!
//! Other answers are `ok`, or begin with `error`.
#![forbid(unsafe_code)]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hoplite_client::blocking::Client;
use hoplite_client::{
    AllreduceOptions, Confirmation, ConnectOptions, Dtype, Metadata, ObjectView, PutOptions,
    ReduceOptions,
};
use rustix::time::{ClockId, clock_gettime};

mod training;

mod contents;

use contents::{compare, contents, factor};
use training::{Kind, Training};

const TIMEOUT: Duration = Duration::from_secs(3600);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [socket, rank, ranks] = &arguments[..] else {
        bail!("usage: hoplite-bench-worker SOCKET RANK RANKS")
    };
    let (rank, ranks) = (rank.parse()?, ranks.parse()?);
    let mut worker = Worker::connect(rank, ranks)?;
    let mut answers = UnixStream::connect(socket).context("the benchmark's socket")?;
    let commands = BufReader::new(answers.try_clone()?);
    writeln!(answers, "hello {rank}")?;
    for line in commands.lines() {
        let answer = worker.perform(&line?).unwrap_or_else(|error| format!("error {error:#}"));
        answers.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes())?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workload {
    RoundTrip,
    Broadcast,
    Gather,
    Reduce,
    ReduceLate,
    Allreduce,
    AllreduceLate,
    Allgather,
    ReduceScatter,
    AllToAll,
    Training(Kind),
}

impl Workload {
    fn parse(name: &str) -> anyhow::Result<Self> {
        Ok(match name {
            "round_trip" => Self::RoundTrip,
            "broadcast" | "broadcast_late" => Self::Broadcast,
            "gather" => Self::Gather,
            "reduce" => Self::Reduce,
            "reduce_late" => Self::ReduceLate,
            "allreduce" => Self::Allreduce,
            "allreduce_late" => Self::AllreduceLate,
            "allgather" => Self::Allgather,
            "reduce_scatter" => Self::ReduceScatter,
            "all_to_all" => Self::AllToAll,
            "ps_sync" => Self::Training(Kind::AllGradients),
            "ps_async" | "rl_gradients" => Self::Training(Kind::FirstGradients),
            "rl_samples" => Self::Training(Kind::FirstSamples),
            _ => bail!("there is no workload {name:?}"),
        })
    }

    fn parts(self, ranks: usize) -> (usize, usize) {
        match self {
            Self::Allgather => (1, ranks),
            Self::ReduceScatter => (ranks, 1),
            Self::AllToAll => (ranks, ranks),
            _ => (1, 1),
        }
    }
}

struct Worker {
    client: Client,
    rank: usize,
    ranks: usize,
    workload: Workload,
    round: usize,
    steps: usize,
    compute: Duration,
    elements: usize,
    source: Vec<u8>,
    views: Vec<ObjectView>,
    factors: Vec<f32>,
    out: Vec<u8>,
}

impl Worker {
    fn connect(rank: usize, ranks: usize) -> anyhow::Result<Self> {
        let client = Client::connect_with(ConnectOptions::default())?;
        Ok(Self {
            client,
            rank,
            ranks,
            workload: Workload::Broadcast,
            round: 0,
            steps: 0,
            compute: Duration::ZERO,
            elements: 0,
            source: vec![],
            views: vec![],
            factors: vec![],
            out: vec![],
        })
    }

    fn perform(&mut self, line: &str) -> anyhow::Result<String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["prepare", workload, size, round, steps, compute] => {
                self.steps = steps.parse()?;
                self.compute = Duration::from_nanos(compute.parse()?);
                self.prepare(Workload::parse(workload)?, size.parse()?, round.parse()?)?;
            }
            ["run", at] => {
                let started = sleep_until(Duration::from_nanos(at.parse()?));
                self.run()?;
                return Ok(format!("done {} {}", started.as_nanos(), now().as_nanos()));
            }
            ["check"] => self.check()?,
            ["clean"] => self.clean()?,
            _ => bail!("{line:?} is no command"),
        }
        Ok("ok".to_owned())
    }

    fn part_bytes(&self) -> usize {
        self.elements.max(1) * size_of::<f32>()
    }

    fn id(&self, rank: usize) -> String {
        format!("bench-{}-{rank}", self.round)
    }

    fn ids(&self) -> Vec<String> {
        (0..self.ranks).map(|rank| self.id(rank)).collect()
    }

    fn target(&self) -> String {
        format!("bench-{}-target", self.round)
    }

    fn prepare(
        &mut self,
        workload: Workload,
        size_bytes: usize,
        round: usize,
    ) -> anyhow::Result<()> {
        self.workload = workload;
        self.round = round;
        let (given, taken) = workload.parts(self.ranks);
        self.elements = size_bytes / size_of::<f32>() / given.max(taken);
        let part =
            |part: usize| contents(factor(self.rank, round) * (part + 1) as f32, self.elements);
        self.source = (0..given).flat_map(part).collect();
        self.out = match workload {
            Workload::Allreduce
            | Workload::AllreduceLate
            | Workload::Allgather
            | Workload::ReduceScatter
            | Workload::AllToAll => {
                vec![0; taken * self.elements * size_of::<f32>()]
            }
            _ => vec![],
        };
        match workload {
            Workload::RoundTrip
            | Workload::ReduceLate
            | Workload::AllreduceLate
            | Workload::AllToAll
            | Workload::Training(_) => Ok(()),
            Workload::Broadcast if self.rank > 0 => Ok(()),
            _ => self.put(),
        }
    }

    fn put(&self) -> anyhow::Result<()> {
        let options = PutOptions { confirm: Confirmation::Confirmed, ..put_options() };
        Ok(self.client.put_with(self.id(self.rank), &self.source, options)?)
    }

    fn get(&self, id: String) -> anyhow::Result<Vec<ObjectView>> {
        Ok(vec![self.client.get(id, TIMEOUT)?])
    }

    fn training(&self, kind: Kind) -> Training<'_> {
        Training {
            kind,
            client: &self.client,
            rank: self.rank,
            ranks: self.ranks,
            round: self.round,
            steps: self.steps,
            compute: self.compute,
            source: &self.source,
        }
    }

    fn run(&mut self) -> anyhow::Result<()> {
        let (target, ids) = (self.target(), self.ids());
        self.views = match (self.workload, self.rank) {
            (Workload::RoundTrip, 0) => {
                self.put()?;
                self.get(self.id(1))?
            }
            (Workload::RoundTrip, 1) => {
                let view = self.get(self.id(0))?;
                self.put()?;
                view
            }
            (Workload::Broadcast, 1..) => self.get(self.id(0))?,
            (Workload::Gather, 0) => self.client.gather(self.ids(), TIMEOUT)?,
            (Workload::Reduce, 0) => self.reduce()?,
            (Workload::ReduceLate, _) => {
                self.put()?;
                if self.rank == 0 { self.reduce()? } else { vec![] }
            }
            (Workload::Allreduce | Workload::AllreduceLate, _) => {
                if self.workload == Workload::AllreduceLate {
                    self.put()?;
                }
                let options = AllreduceOptions { timeout: TIMEOUT, ..AllreduceOptions::default() };
                self.client.allreduce_into(target, ids, self.rank, &mut self.out, options)?;
                vec![]
            }
            (Workload::ReduceScatter, _) => {
                let options = AllreduceOptions { timeout: TIMEOUT, ..AllreduceOptions::default() };
                self.client.reduce_scatter_into(target, ids, self.rank, &mut self.out, options)?;
                vec![]
            }
            (Workload::Allgather, _) => {
                self.client.allgather_into(target, ids, self.rank, &mut self.out, TIMEOUT)?;
                vec![]
            }
            (Workload::AllToAll, _) => {
                let parts: Vec<&[u8]> = self.source.chunks_exact(self.part_bytes()).collect();
                let options = put_options();
                self.client.all_to_all_into(target, &parts, self.rank, &mut self.out, options)?;
                vec![]
            }
            (Workload::Training(kind), _) => {
                let outcome = self.training(kind).run()?;
                (self.factors, self.out) = (outcome.factors, outcome.sum);
                outcome.views
            }
            (
                Workload::RoundTrip | Workload::Broadcast | Workload::Gather | Workload::Reduce,
                _,
            ) => vec![],
        };
        Ok(())
    }

    fn reduce(&self) -> anyhow::Result<Vec<ObjectView>> {
        let options = ReduceOptions { timeout: TIMEOUT, ..ReduceOptions::default() };
        self.client.reduce_with(self.target(), self.ids(), options)?;
        self.get(self.target())
    }

    fn check(&mut self) -> anyhow::Result<()> {
        let elements = self.elements;
        let value = |rank: usize| factor(rank, self.round);
        let sum: f32 = (0..self.ranks).map(value).sum();
        for (index, view) in self.views.iter().enumerate() {
            let expected = match self.workload {
                Workload::RoundTrip => value(1 - self.rank),
                Workload::Broadcast => value(0),
                Workload::Gather => value(index),
                Workload::Reduce | Workload::ReduceLate => sum,
                Workload::Training(_) => self.factors[index],
                Workload::Allreduce
                | Workload::AllreduceLate
                | Workload::Allgather
                | Workload::ReduceScatter
                | Workload::AllToAll => {
                    bail!("what is copied has no views")
                }
            };
            let elements = if self.workload == Workload::Training(Kind::FirstSamples) {
                view.len() / size_of::<f32>()
            } else {
                elements
            };
            compare(view, expected, elements)?;
        }
        match self.workload {
            Workload::Allreduce | Workload::AllreduceLate => compare(&self.out, sum, elements)?,
            Workload::Training(Kind::AllGradients) => {
                compare(&self.out, self.factors[0], elements)?
            }
            Workload::ReduceScatter => compare(&self.out, sum * (self.rank + 1) as f32, elements)?,
            Workload::Allgather | Workload::AllToAll => {
                let part = if self.workload == Workload::AllToAll { self.rank + 1 } else { 1 };
                for (rank, found) in self.out.chunks_exact(self.part_bytes()).enumerate() {
                    compare(found, value(rank) * part as f32, elements)?;
                }
            }
            _ => {}
        }
        self.views.clear();
        Ok(())
    }

    fn clean(&self) -> anyhow::Result<()> {
        if self.rank == 0 {
            self.client.delete(self.ids(), TIMEOUT)?;
            self.client.delete([self.target()], TIMEOUT)?;
            if let Workload::Training(kind) = self.workload {
                self.client.delete(self.training(kind).ids()?, TIMEOUT)?;
            }
        }
        Ok(())
    }
}

fn put_options() -> PutOptions {
    let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
    PutOptions { metadata, timeout: TIMEOUT, ..PutOptions::default() }
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn sleep_until(at: Duration) -> Duration {
    let begun = Instant::now();
    let wait = at.saturating_sub(now());
    while let Some(left) = wait.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        thread::sleep(left);
    }
    now()
}
