use super::*;
use crate::placement::ShardChange;
use crate::version::Version;

fn list(version: u64, names: &[&str]) -> ShardList {
    ShardList::new(names.iter().copied()).with_version(version)
}

fn proposal(version: u64, names: &[&str], proposer: u64) -> Proposal {
    Proposal { list: list(version, names), proposer }
}

fn uses(name: &str, shards: ShardList) -> NodeInfo {
    NodeInfo { shards, ..info(name, 1) }
}

impl World {
    fn change(&mut self, step: ListStep) -> (Result<(), Error>, Vec<Effect>) {
        let mut effects = Vec::new();
        let done = self.shard.change_list(self.now, step, &mut effects);
        invariants::check(&self.shard, self.now);
        (done, effects)
    }
}

fn told(name: &str, list: &ShardList) -> Effect {
    Effect::Send { node: node(name), message: ToStore::Shards(list.clone()) }
}

#[test]
fn a_committed_list_is_told_to_all_stores_and_to_those_that_come_with_an_older_one() {
    let mut world = World::with_nodes(&["a", "b"]);
    let next = proposal(1, &["shard:1", "shard:2"], 7);
    assert_eq!(world.change(ListStep::Propose(next.clone())), (Ok(()), vec![]));
    assert_eq!(world.shard.shard_list().unwrap().version(), 0, "a proposal is not in use");
    let (done, effects) = world.change(ListStep::Commit(next.clone()));
    assert_eq!((done, effects), (Ok(()), vec![told("a", &next.list), told("b", &next.list)]));
    assert_eq!(world.connect("c", 1), [told("c", &next.list)]);
    assert_eq!(world.shard.known_shards(world.now).outdated, 3);
    for name in ["a", "b", "c"] {
        assert_eq!(world.send(name, ToShard::Shards(next.list.clone())), []);
    }
    let known = world.shard.known_shards(world.now);
    assert_eq!((known.stores, known.outdated, &known.list), (3, 0, &next.list));
    assert_eq!(
        world.change(ListStep::Commit(next)),
        (Ok(()), vec![]),
        "a repeated commit changes nothing"
    );
}

#[test]
fn a_shard_accepts_one_proposal_at_a_time() {
    let mut world = World::with_nodes(&["a"]);
    let first = proposal(1, &["shard:1", "shard:2"], 7);
    let rival = proposal(1, &["shard:1", "shard:3"], 8);
    assert_eq!(world.change(ListStep::Propose(first.clone())).0, Ok(()));
    for step in [ListStep::Propose(rival.clone()), ListStep::Commit(rival.clone())] {
        assert!(matches!(world.change(step).0, Err(Error::InvalidRequest { .. })));
    }
    // Only its own coordinator withdraws a proposal.
    world.change(ListStep::Withdraw(rival.clone())).0.unwrap();
    assert!(world.change(ListStep::Propose(rival.clone())).0.is_err());
    world.change(ListStep::Withdraw(first.clone())).0.unwrap();
    assert_eq!(world.change(ListStep::Propose(rival)).0, Ok(()));
    world.wait(PROPOSAL_TTL);
    assert_eq!(
        world.change(ListStep::Propose(first)).0,
        Ok(()),
        "a proposal ends with its coordinator"
    );
}

#[test]
fn a_coordinator_commits_in_time_and_with_a_majority() {
    let at_once = Duration::ZERO;
    for (accepted, all, force, expected) in [
        (1, 1, false, true),
        (1, 2, false, false),
        (2, 3, false, true),
        (2, 4, false, false),
        (1, 4, true, true),
        (0, 1, true, false),
    ] {
        assert_eq!(
            may_commit(accepted, all, force, at_once),
            expected,
            "{accepted} of {all}, {force}"
        );
        assert!(
            !may_commit(accepted, all, force, COMMIT_LIMIT),
            "a shard may have accepted another list"
        );
    }
}

#[test]
fn a_list_that_is_not_the_next_one_is_refused() {
    let mut world = World::with_nodes(&["a"]);
    let two_at_once = proposal(1, &["shard:2"], 7);
    assert!(matches!(
        world.change(ListStep::Propose(two_at_once)).0,
        Err(Error::InvalidRequest { .. })
    ));
    let next = proposal(2, &["shard:1", "shard:2"], 7);
    world.change(ListStep::Commit(next)).0.unwrap();
    for old in [proposal(1, &["shard:1", "shard:3"], 8), proposal(2, &["shard:1", "shard:3"], 8)] {
        for step in [ListStep::Propose(old.clone()), ListStep::Commit(old.clone())] {
            assert!(matches!(world.change(step).0, Err(Error::ShardListMismatch { .. })));
        }
    }
    let other = uses("b", list(2, &["shard:1", "shard:9"]));
    assert!(matches!(world.receive(other).0, Reception::Refused(Error::ShardListMismatch { .. })));
}

#[test]
fn a_list_must_follow_the_list_of_each_store() {
    let mut world = World::with_nodes(&["a"]);
    // A single shard may be spelled in two ways.
    assert_eq!(world.receive(uses("b", list(0, &["other:1"]))).0, Reception::Accepted);
    for names in [["shard:1", "shard:2"], ["other:1", "shard:2"]] {
        let next = proposal(1, &names, 7);
        assert!(matches!(
            world.change(ListStep::Propose(next)).0,
            Err(Error::InvalidRequest { .. })
        ));
    }
}

#[test]
fn stores_that_cannot_change_their_list_are_refused_and_prevent_a_change() {
    let old = || NodeInfo { version: Version::OLDEST, ..info("old", 1) };
    let is_mismatch = |error: &Error| matches!(error, Error::VersionMismatch { .. });
    let next = proposal(1, &["shard:1", "shard:2"], 7);
    let mut world = World::with_nodes(&["a"]);
    assert_eq!(world.receive(old()).0, Reception::Accepted);
    assert!(is_mismatch(&world.change(ListStep::Propose(next.clone())).0.unwrap_err()));
    world.disconnect("old", 1);
    assert_eq!(world.change(ListStep::Commit(next)).0, Ok(()));
    let Reception::Refused(error) = world.receive(old()).0 else {
        panic!("it would use the old list")
    };
    assert!(is_mismatch(&error));
}

#[test]
fn a_restarted_shard_learns_the_list_from_its_stores() {
    let mut world = World::with_nodes(&["a"]);
    let newer = list(3, &["shard:1", "shard:2"]);
    assert_eq!(
        world.receive(uses("b", newer.clone())),
        (Reception::Accepted, vec![told("a", &newer)])
    );
    assert_eq!(world.shard.shard_list(), Some(&newer));
    let newest = newer.changed(&ShardChange::Remove("shard:1".to_owned())).unwrap();
    assert_eq!(
        world.send("a", ToShard::Shards(newest.clone())),
        [told("b", &newest)],
        "a store that knows more tells it"
    );
    assert_eq!(
        world.send("a", ToShard::Shards(newer)),
        [told("a", &newest)],
        "an older list is corrected"
    );
}

#[test]
fn a_shard_that_joins_waits_for_its_stores_before_it_decides_about_unknown_ids() {
    let delete =
        ToShard::Delete { request: RequestId(1), id: id("x"), terms: DeleteTerms::default() };
    for (shards, is_joining) in
        [(list(1, &["shard:1", "shard:2"]), true), (list(0, &["shard:1"]), false)]
    {
        let mut world = World::new(ShardConfig::default());
        world.wait(Duration::from_secs(60));
        assert!(!world.shard.known_shards(world.now).has_served);
        world.receive(uses("a", shards));
        assert!(world.shard.known_shards(world.now).has_served);
        assert_eq!(world.shard.known_shards(world.now).is_filling, is_joining);
        let answer = vec![Effect::Send { node: node("a"), message: done(1, None) }];
        assert_eq!(world.send("a", delete.clone()) == answer, !is_joining);
        if is_joining {
            assert_eq!(world.wait(LEASE), answer);
        }
    }
}
