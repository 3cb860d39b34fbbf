//! Changes of the list of shards: see `hoplite-core/src/shard/shards.rs`.

use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use hoplite_core::error::Error;
use hoplite_core::placement::{ShardChange, ShardList};
use hoplite_core::shard::{ListStep, Proposal, may_commit};
use hoplite_core::text::escape;
use hoplite_core::{Version, session};
use hoplite_daemon::random_number;
use hoplite_proto::directory::{encode_list_step, encode_shard_list};
use hoplite_proto::local::Response;
use hoplite_proto::{error, v1};

use super::LocalPlane;
use super::nodes::ask;
use crate::shard_link::ShardLink;

/// Longest wait until this store uses the changed list.
const LEARN_LIMIT: Duration = session::ANSWER_TIMEOUT;
const LEARN_POLL: Duration = Duration::from_millis(10);

pub(super) async fn describe_shards(plane: &LocalPlane) -> Response {
    let shards = plane.engine.shards();
    let described = shards.listed().map(|shard| {
        let (address, link) = (shards.name(shard).to_owned(), plane.shards.get(shard));
        async move {
            let answer = match &link {
                Some(link) => perform(link, None).await,
                None => Err(Error::unavailable("a shard whose address is none")),
            };
            let (state, error) = match answer {
                Ok(state) => (Some(state), None),
                Err(error) => (None, Some(error::encode(&error))),
            };
            v1::directory_shards::Shard { address, state, error }
        }
    });
    let list = Some(encode_shard_list(&shards.list()));
    Response::Shards(Box::new(v1::DirectoryShards { list, shards: join_all(described).await }))
}

pub(super) async fn change_shards(
    plane: &LocalPlane,
    change: &ShardChange,
    force: bool,
) -> Result<Response, Error> {
    let begun = Instant::now();
    let shards = plane.engine.shards();
    let next = shards.list().changed(change)?;
    let old = plane.shards.of(shards.listed());
    if old.iter().any(ShardLink::is_in_process) {
        return Err(Error::invalid_request(
            "the directory of this store has no address for other stores: start the store with --directory-listen",
        ));
    }
    for (_, version) in plane.engine.shard_versions() {
        version.map_or(Ok(()), |version| version.require(Version::WITH_SHARD_CHANGES))?;
    }
    let joining = match change {
        ShardChange::Add(address) => Some(joining_shard(plane, address).await?),
        ShardChange::Remove(_) => None,
    };
    let proposer =
        random_number().map_err(|_| Error::unavailable("the system's random numbers"))?;
    let proposal = Proposal { list: next.clone(), proposer };
    let proposed = perform_all(&old, &ListStep::Propose(proposal.clone())).await;
    let accepted = proposed.iter().filter(|answer| answer.is_ok()).count();
    let all = shards.list().len();
    if !may_commit(accepted, all, force, begun.elapsed()) {
        perform_all(&old, &ListStep::Withdraw(proposal)).await;
        return Err(refusal(proposed, accepted, all));
    }
    let commit = ListStep::Commit(proposal);
    let (committed, _) = join(perform_all(&old, &commit), async {
        match &joining {
            Some(link) => perform(link, Some(&commit)).await.map(drop),
            None => Ok(()),
        }
    })
    .await;
    if let Some(error) = committed.iter().all(Result::is_err).then(|| first_error(committed)) {
        return Err(error);
    }
    learn(plane, &next).await?;
    Ok(describe_shards(plane).await)
}

/// Connects to a shard about to join.
///
/// # Errors
/// [`Error::InvalidRequest`] for an invalid address, and for a shard that has served stores: it may
/// remember deleted objects. [`Error::Unavailable`]. [`Error::VersionMismatch`].
async fn joining_shard(plane: &LocalPlane, address: &str) -> Result<ShardLink, Error> {
    let refuse = |reason: String| Err(Error::InvalidRequest { reason: reason.into() });
    let Some(link) = plane.shards.to(address) else {
        return refuse(format!("{} is not the address HOST:PORT of a shard", escape(address)));
    };
    let known = perform(&link, None).await.map_err(|error| match error {
        Error::Unavailable { .. } => {
            Error::Unavailable { what: format!("the new shard at {address}").into() }
        }
        other => other,
    })?;
    if known.has_served || known.list.is_some() {
        return refuse(format!(
            "the shard at {address} has served stores already: restart it, so that it joins the directory empty"
        ));
    }
    Ok(link)
}

async fn perform(link: &ShardLink, step: Option<&ListStep>) -> Result<v1::ShardsReply, Error> {
    match ask(link.client().shards(encode_list_step(step))).await {
        // An older shard does not know the call.
        Err(Error::Malformed { .. }) if step.is_none() => Err(Error::VersionMismatch {
            ours: Version::WITH_SHARD_CHANGES,
            theirs: Version::WITH_SHARD_CHANGES - 1,
        }),
        answer => answer,
    }
}

async fn perform_all(links: &[ShardLink], step: &ListStep) -> Vec<Result<v1::ShardsReply, Error>> {
    join_all(links.iter().map(|link| perform(link, Some(step)))).await
}

fn refusal(proposed: Vec<Result<v1::ShardsReply, Error>>, accepted: usize, all: usize) -> Error {
    let is_absence = |error: &Error| matches!(error, Error::Unavailable { .. });
    let refused = proposed.into_iter().filter_map(Result::err).find(|error| !is_absence(error));
    refused.unwrap_or_else(|| {
        let what =
            format!("a majority of the directory's shards ({accepted} of {all} accept the change)");
        Error::Unavailable { what: what.into() }
    })
}

fn first_error(answers: Vec<Result<v1::ShardsReply, Error>>) -> Error {
    answers.into_iter().find_map(Result::err).unwrap_or(Error::unavailable("the directory"))
}

async fn learn(plane: &LocalPlane, next: &ShardList) -> Result<(), Error> {
    let begun = Instant::now();
    let has_learnt = || {
        let shards = plane.engine.shards();
        shards.version() >= next.version() && plane.shards.count() >= shards.len()
    };
    while !has_learnt() {
        if begun.elapsed() > LEARN_LIMIT {
            return Err(Error::unavailable("a session of this store with a shard of the new list"));
        }
        tokio::time::sleep(LEARN_POLL).await;
    }
    Ok(())
}
