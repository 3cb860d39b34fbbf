//! A client as a process, which tests can kill. Answers each command with `done` or the error.
//!
//! * `create ID SIZE [DTYPE LENGTH]`: begins an object.
//! * `write COUNT`: writes COUNT zero bytes.
//! * `seal`: completes it.
//! * `get ID`: gets and holds a view.
//! * `put ID SIZE`: puts zeros.
//! * `own ID SIZE`: puts zeros that this client owns.
//! * `reduce TARGET SOURCE...`: adds up arrays.
//! * `reduce-default TARGET SOURCE...`: the same with default options.
//! * `reduce-default-async TARGET SOURCE...`: with the asynchronous client.
//! * `allreduce TARGET RANK SOURCE...`: adds up arrays as one of several participants.
#![forbid(unsafe_code)]

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::{Context, bail};
use hoplite_client::blocking::{Client, ObjectWriter};
use hoplite_client::{
    AllreduceOptions, Lifetime, Metadata, ObjectView, PutOptions, ReduceOp, ReduceOptions,
};
use hoplite_tests::TIME_LIMIT;

#[derive(Default)]
struct Held {
    writer: Option<ObjectWriter>,
    views: Vec<ObjectView>,
}

fn main() -> anyhow::Result<()> {
    let socket = std::env::args_os().nth(1).context("the socket is missing")?;
    let client = Client::connect(&socket)?;
    let mut held = Held::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        match perform(socket.as_ref(), &client, &mut held, &line?) {
            Ok(()) => writeln!(out, "done")?,
            Err(error) => writeln!(out, "{error:#}")?,
        }
        out.flush()?;
    }
    Ok(())
}

fn perform(socket: &Path, client: &Client, held: &mut Held, line: &str) -> anyhow::Result<()> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["create", id, size] => {
            held.writer = Some(client.create(id, size.parse()?, PutOptions::default())?);
        }
        ["create", id, size, dtype, length] => {
            let shape = Some(vec![length.parse()?]);
            let metadata = Metadata { dtype: dtype.parse()?, shape, ..Metadata::default() };
            let options = PutOptions { metadata, ..PutOptions::default() };
            held.writer = Some(client.create(id, size.parse()?, options)?);
        }
        ["write", count] => {
            let writer = held.writer.as_mut().context("nothing was created")?;
            writer.write(&vec![0; count.parse()?])?;
        }
        ["seal"] => held.writer.take().context("nothing was created")?.seal()?,
        ["get", id] => held.views.push(client.get(id, TIME_LIMIT)?),
        ["put", id, size] => client.put(id, &vec![0; size.parse()?])?,
        ["own", id, size] => {
            let lifetime = Lifetime::of(Some(client.owner()), None);
            let metadata = Metadata { lifetime, ..Metadata::default() };
            let options = PutOptions { metadata, ..PutOptions::default() };
            client.put_with(id, &vec![0; size.parse()?], options)?;
        }
        ["delete", id] => drop(client.delete(&[id], TIME_LIMIT)?),
        ["reduce", target, ref sources @ ..] => {
            client.reduce(target, sources, ReduceOp::Sum, TIME_LIMIT)?;
        }
        ["reduce-default", target, ref sources @ ..] => {
            client.reduce_with(target, sources, ReduceOptions::default())?;
        }
        ["reduce-default-async", target, ref sources @ ..] => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = hoplite_client::Client::connect(socket).await?;
                client.reduce_with(target, sources, ReduceOptions::default()).await
            })?;
        }
        ["allreduce", target, rank, ref sources @ ..] => {
            client.allreduce(target, sources, rank.parse()?, AllreduceOptions::default())?;
        }
        _ => bail!("{line:?} is no command"),
    }
    Ok(())
}
