use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::placement::{MAX_SHARD_NAME_BYTES, MAX_SHARDS, ShardList};
use hoplite_core::shard::{KnownShards, ListStep, Proposal};

use crate::bounds::check_count;
use crate::v1;
use crate::v1::shards_request::Step;

/// Highest version (number of changes) of a list of shards.
const MAX_LIST_VERSION: u64 = 1 << 32;

/// Encodes a list of shards.
pub fn encode_shard_list(list: &ShardList) -> v1::ShardList {
    v1::ShardList { version: list.version(), names: list.names().map(str::to_owned).collect() }
}

/// Decodes a list of shards.
pub fn decode_shard_list(list: v1::ShardList) -> Result<ShardList> {
    check_count("directory shards", list.names.len(), MAX_SHARDS)?;
    if list.names.is_empty()
        || list.names.iter().any(|name| !(1..=MAX_SHARD_NAME_BYTES).contains(&name.len()))
    {
        return Err(malformed("a store names the directory shards, in 1 to 260 bytes each"));
    }
    if list.version > MAX_LIST_VERSION {
        return Err(malformed("a version of the list of shards above 2^32"));
    }
    let count = list.names.len();
    let decoded = ShardList::new(list.names).with_version(list.version);
    if decoded.len() == count { Ok(decoded) } else { Err(malformed("a directory shard twice")) }
}

/// Encodes a step of a change of the list; `None` requests its state.
pub fn encode_list_step(step: Option<&ListStep>) -> v1::ShardsRequest {
    let encode = |proposal: &Proposal| v1::ShardProposal {
        list: Some(encode_shard_list(&proposal.list)),
        proposer: proposal.proposer,
    };
    let step = step.map(|step| match step {
        ListStep::Propose(proposal) => Step::Propose(encode(proposal)),
        ListStep::Commit(proposal) => Step::Commit(encode(proposal)),
        ListStep::Withdraw(proposal) => Step::Withdraw(encode(proposal)),
    });
    v1::ShardsRequest { step }
}

/// Decodes a step of a change of the list, if any.
pub fn decode_list_step(request: v1::ShardsRequest) -> Result<Option<ListStep>> {
    let decode = |proposal: v1::ShardProposal| {
        let list = decode_shard_list(proposal.list.unwrap_or_default())?;
        if list.version() == 0 {
            return Err(malformed("a new list of shards without a version"));
        }
        Ok(Proposal { list, proposer: proposal.proposer })
    };
    let Some(step) = request.step else { return Ok(None) };
    Ok(Some(match step {
        Step::Propose(proposal) => ListStep::Propose(decode(proposal)?),
        Step::Commit(proposal) => ListStep::Commit(decode(proposal)?),
        Step::Withdraw(proposal) => ListStep::Withdraw(decode(proposal)?),
    }))
}

/// Encodes a shard's knowledge of the list of shards.
pub fn encode_known_shards(known: &KnownShards) -> v1::ShardsReply {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    v1::ShardsReply {
        list: (!known.list.is_empty()).then(|| encode_shard_list(&known.list)),
        stores: count(known.stores),
        outdated: count(known.outdated),
        is_filling: known.is_filling,
        has_served: known.has_served,
    }
}

const fn malformed(reason: &'static str) -> Error {
    Error::malformed(Plane::Control, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_round_trip_and_bad_ones_are_refused() {
        let proposal =
            Proposal { list: ShardList::new(["a:1", "b:1"]).with_version(7), proposer: 3 };
        for step in [ListStep::Propose, ListStep::Commit, ListStep::Withdraw] {
            let step = Some(step(proposal.clone()));
            assert_eq!(decode_list_step(encode_list_step(step.as_ref())), Ok(step));
        }
        assert_eq!(decode_list_step(encode_list_step(None)), Ok(None));
        let configured = Proposal { list: ShardList::new(["a:1"]), proposer: 3 };
        let request = encode_list_step(Some(&ListStep::Commit(configured)));
        assert!(matches!(decode_list_step(request), Err(Error::Malformed { .. })));
        let empty = v1::ShardsRequest { step: Some(Step::Propose(v1::ShardProposal::default())) };
        assert!(matches!(decode_list_step(empty), Err(Error::Malformed { .. })));
    }
}
