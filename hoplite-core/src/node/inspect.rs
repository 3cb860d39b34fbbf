use super::collectives::participants_of;
use super::missing::View;
use crate::id::ObjectId;
use crate::load::{
    CombinationLoad, Load, MAX_PLAN_BYTES, MAX_REPORTED, MAX_TROUBLE_BYTES, MAX_TROUBLES,
    ReduceLoad, Trouble, TroubleKind,
};
use crate::message::{
    LongWait, NodeStatus, PeerFault, Reduce, ReduceRecord, ShardFault, SpillTrouble, Troubles,
};
use crate::text::{cut, escape};
use crate::time::Time;

impl View<'_> {
    pub(super) fn load(&self, status: &NodeStatus, now: Time) -> Load {
        let running = self.reductions.running(self.objects.ctx.link(), now).map(ReduceLoad::from);
        let coordinated = self.collectives.coordinator.under_way().map(|one| coordinated(now, one));
        let reduces = running.chain(coordinated).take(MAX_REPORTED);
        Load {
            capacity_bytes: status.capacity_bytes,
            free_bytes: status.free_bytes,
            // The store can also free pinned copies that a spill file has.
            pinned_bytes: status.pinned_bytes.saturating_sub(status.spill.clean_bytes),
            evictable_bytes: status.evictable_bytes + status.spill.clean_bytes,
            reserved_bytes: status.reserved_bytes,
            copies: status.copies as u64,
            pulls: status.pulls as u64,
            hops: status.hops as u64,
            reduces: reduces.collect(),
            combinations: self.combinations(now),
            troubles: self.trouble_lines(now),
            tally: self.objects.ctx.tally(),
            ..Load::default()
        }
    }

    fn combinations(&self, now: Time) -> Vec<CombinationLoad> {
        let describe = |mut combination: CombinationLoad| {
            if combination.plan.is_empty()
                && !combination.output.is_of_hop()
                && let Some(record) = self.how_combined(&combination.output, now)
            {
                combination.plan = cut(record.plan, MAX_PLAN_BYTES);
            }
            combination
        };
        self.objects.ended_combinations(now).map(describe).collect()
    }

    fn how_combined(&self, target: &ObjectId, now: Time) -> Option<ReduceRecord> {
        let running = self.reductions.running_for(target, self.objects.ctx.link(), now);
        running.or_else(|| self.reductions.record(target).cloned())
    }

    pub(super) fn how_made(&self, target: &ObjectId, now: Time) -> Option<ReduceRecord> {
        let link = self.objects.ctx.link();
        self.collectives
            .record_coordinated(target, link, now)
            .or_else(|| self.reductions.running_for(target, link, now))
            .or_else(|| self.collectives.members.record(target, link, now))
            .or_else(|| {
                // A failed attempt comes first, because it explains why participants still wait.
                let remembered = self.reductions.record(target).filter(|known| known.has_failed());
                remembered.cloned().or_else(|| self.record_waiting(target))
            })
            .or_else(|| self.reductions.record(target).cloned())
    }

    fn record_waiting(&self, target: &ObjectId) -> Option<ReduceRecord> {
        let (_, agreement) = *participants_of(self.objects, target).first()?;
        let plan =
            "not known here yet: participants of this node wait for the store of rank 0".to_owned();
        let known = ReduceRecord::of_another_store(target, &agreement, self.objects.ctx.link());
        Some(ReduceRecord { plan, is_running: true, ..known })
    }

    fn trouble_lines(&self, now: Time) -> Vec<Trouble> {
        let Troubles { full_waiters, long_waits, waits, shards, peers, incompatible, spill } =
            self.troubles(now);
        let full = (full_waiters > 0).then(|| {
            (
                TroubleKind::Full,
                format!("the store is full: {full_waiters} calls or transfers wait for room"),
            )
        });
        let shards = shards.iter().map(|ShardFault { shard, fault }| {
            let name = escape(self.objects.ctx.config().shards.name(*shard));
            (TroubleKind::Shard, format!("directory shard {name}: {}", fault.error))
        });
        let peers = peers.iter().map(|PeerFault { node, fault }| {
            (TroubleKind::Peer, format!("store {node}: {}", fault.error))
        });
        let disks = spill.iter().map(|SpillTrouble { directory, fault }| {
            (TroubleKind::Disk, format!("spilling to {}: {fault}", escape(directory)))
        });
        let incompatible = incompatible.map(|fault| {
            (TroubleKind::Peer, format!("refused a client or a store: {}", fault.error))
        });
        let count = (long_waits > 0)
            .then(|| (TroubleKind::Wait, format!("{long_waits} calls wait for more than 10 s")));
        let waits = waits.iter().map(|LongWait { operation, waited, missing }| {
            let missing =
                missing.as_ref().map_or_else(String::new, |missing| format!(": {missing}"));
            (
                TroubleKind::Wait,
                format!("a {operation} has waited for {} s{missing}", waited.as_secs()),
            )
        });
        let lines = full.into_iter().chain(disks).chain(shards).chain(peers).chain(incompatible);
        let lines = lines.chain(count).chain(waits);
        let trouble = |(kind, line)| Trouble { kind, text: cut(line, MAX_TROUBLE_BYTES) };
        lines.take(MAX_TROUBLES).map(trouble).collect()
    }
}

impl From<ReduceRecord> for ReduceLoad {
    fn from(record: ReduceRecord) -> Self {
        let (joined, sources) = record.reduced;
        Self {
            target: record.target,
            op: record.op.name().to_owned(),
            joined: joined as u64,
            sources: sources as u64,
            plan: if joined == 0 { String::new() } else { cut(record.plan, MAX_PLAN_BYTES) },
            elapsed: record.elapsed,
        }
    }
}

fn coordinated(
    now: Time,
    (request, started, members, plan): (&Reduce, Time, usize, &str),
) -> ReduceLoad {
    let has_begun = members > 0;
    let plan = if has_begun {
        cut(format!("{members} members, {plan}"), MAX_PLAN_BYTES)
    } else {
        String::new()
    };
    ReduceLoad {
        target: request.target.clone(),
        op: request.op.name().to_owned(),
        joined: if has_begun { request.sources.len() as u64 } else { 0 },
        sources: request.sources.len() as u64,
        plan,
        elapsed: now.since(started),
    }
}
