use proptest::prelude::*;

use super::*;
use crate::plan::chain::MAX_UNPACED;

/// A broadcast without the check of invariants after each event, which would take most of the time.
struct Broadcast {
    shard: Shard,
    now: Time,
    transfers: BTreeMap<u64, (u64, GrantId)>,
    reasons: BTreeMap<u64, GrantReason>,
}

fn name(number: u64) -> NodeId {
    node(&format!("n{number:05}"))
}

fn number(node: &NodeId) -> u64 {
    node.as_str()[1..].parse().unwrap()
}

impl Broadcast {
    fn new(receivers: u64, slots: u32) -> Self {
        Self::of_bytes(1 << 20, receivers, slots)
    }

    fn of_bytes(size_bytes: u64, receivers: u64, slots: u32) -> Self {
        let limits = Limits { slots_per_location: slots, ..Limits::default() };
        let config = ShardConfig { limits, warm_up: Duration::ZERO };
        let shard = Shard::new(config, Time::ZERO);
        let mut world =
            Self { shard, now: Time::ZERO, transfers: BTreeMap::new(), reasons: BTreeMap::new() };
        for number in 0..=receivers {
            world.connect(NodeInfo { node: name(number), ..info("n", 1) });
        }
        world.send(0, ToShard::Publish(Publish { size_bytes, ..complete("x", 1) }));
        for number in 1..=receivers {
            world.send(number, ToShard::Query(query("x", number)));
        }
        world
    }

    fn connect(&mut self, info: NodeInfo) {
        let mut effects = Vec::new();
        self.shard.connect(self.now, info, &mut effects);
        self.note(effects);
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.shard.apply(self.now, event, &mut effects);
        self.note(effects);
    }

    fn note(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Send { node, message: ToStore::Granted(grant) } = effect {
                self.transfers.insert(number(&node), (number(&grant.sender), grant.grant));
                self.reasons.insert(number(&node), grant.reason);
            }
        }
    }

    fn send(&mut self, node: u64, message: ToShard) {
        self.apply(Event::Message { node: name(node), message });
    }

    fn wait(&mut self, micros: u64) {
        let end = self.now + Duration::from_micros(micros);
        while let Some(deadline) = self.shard.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.apply(Event::Tick);
        }
        self.now = end;
    }

    fn done(&mut self, receiver: u64) {
        let (_, slot) = self.transfers.remove(&receiver).unwrap();
        let size_bytes = self.shard.entries[&id("x")].size_bytes;
        let copy = publication("x", 1, LocationState::Complete, Retention::Evictable);
        let copy = Publish { size_bytes, ..copy };
        self.send(receiver, ToShard::Publish(Publish { slot: Some(slot), ..copy }));
    }

    fn fail(&mut self, receiver: u64) {
        let (sender, grant) = self.transfers.remove(&receiver).unwrap();
        self.send(receiver, ToShard::ReturnSlot { grant, outcome: PullOutcome::SenderStalled });
        let again = query("x", receiver);
        self.send(
            receiver,
            ToShard::Query(Query { resume: Some(PutId(1)), avoid: vec![name(sender)], ..again }),
        );
    }

    fn served(&self) -> BTreeMap<u64, u32> {
        let mut served = BTreeMap::new();
        self.transfers.values().for_each(|(sender, _)| *served.entry(*sender).or_default() += 1);
        served
    }

    fn is_one_chain(&self, receivers: u64) -> bool {
        self.transfers.len() as u64 == receivers
            && self.transfers.iter().all(|(receiver, (sender, _))| *sender == receiver - 1)
    }
}

#[test]
fn few_receivers_that_arrive_together_form_one_chain() {
    let few = MAX_UNPACED as u64;
    let world = Broadcast::new(few, 1);
    assert!(world.is_one_chain(few));
    invariants::check(&world.shard, world.now);
}

#[test]
fn a_longer_chain_is_extended_as_the_bytes_move_along_it() {
    let mut world = Broadcast::new(200, 1);
    let hop = world.shard.hop_time.hop().as_micros() as u64;
    assert!(world.is_one_chain(MAX_UNPACED as u64));
    let lead = world.shard.hop_time.lead(1 << 20).as_micros() as u64 / hop;
    for hops in 1..=200 {
        world.wait(hop);
        assert!(
            world.is_one_chain((hops + lead + 1).clamp(MAX_UNPACED as u64, 200)),
            "after {hops} hops"
        );
    }
    assert_eq!(world.reasons[&(MAX_UNPACED as u64)], GrantReason::OnlyCandidate);
    assert_eq!(world.reasons[&(MAX_UNPACED as u64 + 1)], GrantReason::ChainHasBytes);
    assert_eq!(world.shard.status().waiting_queries, 0);
    invariants::check(&world.shard, world.now);
}

#[test]
fn waiting_receivers_get_the_first_complete_copies() {
    let mut world = Broadcast::new(100, 1);
    world.wait(20_000);
    let first_waiting = MAX_UNPACED as u64 + 1;
    world.done(1);
    assert_eq!(world.transfers[&first_waiting].0, 0, "the origin has a free slot");
    assert_eq!(world.reasons[&first_waiting], GrantReason::CompleteBeforePartial);
    let lead =
        world.shard.hop_time.lead(1 << 20).as_micros() / world.shard.hop_time.hop().as_micros();
    assert_eq!(world.shard.status().waiting_queries as u64, 36 - 1 - lead as u64);
    for done in 2..=20 {
        world.wait(1000);
        world.done(done);
    }
    assert_eq!(world.shard.status().waiting_queries, 0);
    let from_complete =
        (first_waiting..=100).filter(|receiver| world.transfers[receiver].0 < 20).count();
    assert!(from_complete >= 6, "{from_complete} chains began");
    invariants::check(&world.shard, world.now);
}

#[test]
fn a_small_object_over_a_slow_link_reaches_all_nodes_along_a_chain() {
    for size_bytes in [1, 20 << 10] {
        let mut world = Broadcast::of_bytes(size_bytes, 8, 1);
        assert_eq!(
            world.shard.status().waiting_queries,
            6,
            "the second receiver pulls from the first one"
        );
        let hop = world.shard.hop_time.hop().as_micros() as u64;
        world.wait(8 * hop);
        assert!(world.is_one_chain(8), "although no bytes have arrived yet");
        invariants::check(&world.shard, world.now);
    }
}

#[test]
fn receivers_of_a_small_object_form_a_tree() {
    let mut world = Broadcast::of_bytes(16 << 10, 15, 1);
    let (hop, mut rounds, mut served) = (world.shard.hop_time.hop().as_micros() as u64, 0, 0);
    while served < 15 {
        let under_way: Vec<u64> = world.transfers.keys().copied().collect();
        let complete: Vec<u64> = under_way
            .into_iter()
            .filter(|receiver| !world.transfers.contains_key(&world.transfers[receiver].0))
            .collect();
        world.wait(hop);
        served += complete.len();
        complete.into_iter().for_each(|receiver| world.done(receiver));
        rounds += 1;
        assert!(rounds < 100, "{served} receivers have the object");
    }
    assert!((4..=6).contains(&rounds), "{rounds} hops");
    assert_eq!(world.shard.status().waiting_queries, 0);
    invariants::check(&world.shard, world.now);
}

#[test]
fn hops_are_measured_where_chains_began_together() {
    let mut world = Broadcast::new(MAX_UNPACED as u64, 1);
    world.wait(50_000);
    for done in 1..=MAX_UNPACED as u64 {
        world.wait(200);
        world.done(done);
    }
    let hop = world.shard.hop_time.hop().as_micros();
    assert!((200..240).contains(&hop), "{hop} us");
    // Receivers of a paced chain give no sample.
    let mut paced = Broadcast::new(100, 1);
    paced.wait(100_000);
    assert!(paced.is_one_chain(100));
    for done in 1..=100 {
        paced.wait(if done <= MAX_UNPACED as u64 { 200 } else { 1000 });
        paced.done(done);
    }
    assert_eq!(paced.shard.hop_time, world.shard.hop_time);
    // Receivers that arrive one by one give no sample.
    let mut late = Broadcast::new(1, 1);
    for number in 2..30 {
        late.wait(8000);
        late.connect(NodeInfo { node: name(number), ..info("n", 1) });
        late.send(number, ToShard::Query(query("x", number)));
    }
    for done in 1..30 {
        late.wait(8000);
        late.done(done);
    }
    assert_eq!(late.shard.hop_time, HopTime::default());
}

#[test]
fn a_receiver_whose_sender_died_continues_at_the_copy_before_it_in_a_long_chain() {
    let mut world = Broadcast::new(300, 1);
    world.wait(400_000);
    assert!(world.is_one_chain(300));
    world.apply(Event::Disconnected { node: name(150), incarnation: Incarnation(1) });
    world.transfers.remove(&150);
    world.fail(151);
    let (sender, _) = world.transfers[&151];
    assert_eq!(sender, 149, "the end of the chain is behind it");
    invariants::check(&world.shard, world.now);
}

#[test]
fn subscribers_get_batched_updates_of_many_copies_and_the_last_change() {
    let mut world = Broadcast::new(100, 1);
    let mut news = Vec::new();
    let mut effects = Vec::new();
    world.connect(info("watcher", 1));
    let watch = ToShard::Subscribe {
        request: RequestId(1),
        id: id("x"),
        wants: Wants::Locations,
        makes: false,
    };
    world.apply(Event::Message { node: node("watcher"), message: watch });
    for done in 1..=60 {
        world.now = world.now + Duration::from_micros(100);
        let (_, slot) = world.transfers.remove(&done).unwrap();
        let copy = publication("x", 1, LocationState::Complete, Retention::Evictable);
        let message = ToShard::Publish(Publish { slot: Some(slot), ..copy });
        world.shard.apply(world.now, Event::Message { node: name(done), message }, &mut effects);
    }
    world.now = world.now + Duration::from_millis(10);
    world.shard.apply(world.now, Event::Tick, &mut effects);
    for effect in effects {
        if let Effect::Send { message: ToStore::Locations { locations, .. }, .. } = effect {
            let complete = locations.locations.iter();
            news.push(complete.filter(|place| place.state == LocationState::Complete).count());
        }
    }
    assert!((2..15).contains(&news.len()), "{news:?}");
    assert_eq!(news.last(), Some(&61));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any order of ends and failures: no copy has more receivers than slots, all receivers
    /// complete, and no node pulls from itself or its descendants.
    #[test]
    fn no_copy_serves_more_than_its_slots_and_all_are_served(
        receivers in 60_u64..160,
        slots in 1_u32..3,
        steps in prop::collection::vec((any::<u16>(), 0_u8..8, 0_u64..3000), 200..400),
    ) {
        let mut world = Broadcast::new(receivers, slots);
        let check = |world: &Broadcast| -> Result<(), TestCaseError> {
            prop_assert!(world.served().values().all(|taken| *taken <= slots));
            for (receiver, (sender, _)) in &world.transfers {
                let mut at = *sender;
                while let Some((next, _)) = world.transfers.get(&at) {
                    prop_assert!(at != *receiver, "a cycle");
                    at = *next;
                }
            }
            Ok(())
        };
        check(&world)?;
        for (which, what, pause) in steps {
            world.wait(pause);
            let under_way: Vec<u64> = world.transfers.keys().copied().collect();
            if let Some(receiver) = under_way.get(usize::from(which) % under_way.len().max(1)) {
                if what == 0 { world.fail(*receiver) } else { world.done(*receiver) }
            }
            check(&world)?;
        }
        for _ in 0..receivers * 4 {
            world.wait(2000);
            if let Some(receiver) = world.transfers.keys().next().copied() {
                world.done(receiver);
            }
        }
        let status = world.shard.status();
        prop_assert_eq!((status.waiting_queries, status.grants), (0, 0));
        invariants::check(&world.shard, world.now);
    }
}
