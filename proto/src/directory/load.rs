use std::time::Duration;

use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::load::{
    ClientLoad, CombinationLoad, Detail, LinkLoad, Load, MAX_CLIENT_BYTES, MAX_CLIENTS,
    MAX_COMBINATIONS, MAX_LINKS, MAX_LOG_LINE_BYTES, MAX_LOG_LINES, MAX_PLAN_BYTES, MAX_REPORTED,
    MAX_SENDERS, MAX_TROUBLE_BYTES, MAX_TROUBLES, RailLoad, ReduceLoad, Sender, TransferLoad,
    Trouble, TroubleKind,
};
use hoplite_core::placement::MAX_SHARDS;
use hoplite_core::plan::rails::MAX_RAILS;
use hoplite_core::tally::{Tally, WAIT_CLASSES, Waits};
use hoplite_core::text::is_plain;

use crate::bounds::{check_count, decode_timeout, encode_id};
use crate::v1;
use crate::v1::load_report as wire;

/// Longest name of a reduce's operation in bytes.
const MAX_OP_BYTES: usize = 32;

/// Encodes `load`.
pub fn encode_load(load: Load) -> v1::LoadReport {
    v1::LoadReport {
        node: String::new(),
        capacity_bytes: load.capacity_bytes,
        free_bytes: load.free_bytes,
        pinned_bytes: load.pinned_bytes,
        evictable_bytes: load.evictable_bytes,
        reserved_bytes: load.reserved_bytes,
        copies: load.copies,
        clients: load.clients,
        pulls: load.pulls,
        hops: load.hops,
        sent_bytes: load.sent_bytes,
        received_bytes: load.received_bytes,
        send_rate: load.send_rate,
        receive_rate: load.receive_rate,
        shards_up: load.shards_up,
        transfers: load.transfers.iter().map(encode_transfer).collect(),
        reduces: load.reduces.into_iter().map(encode_reduce).collect(),
        links: load.links.iter().map(wire::Link::from).collect(),
        trouble_kinds: load
            .troubles
            .iter()
            .map(|trouble| encode_kind(trouble.kind).into())
            .collect(),
        troubles: load.troubles.into_iter().map(|trouble| trouble.text).collect(),
        gets: load.tally.gets,
        failures: load.tally.failures,
        waits: encode_waits(&load.tally.waits),
        detail: load.detail.map(encode_detail),
        combinations: load.combinations.into_iter().map(encode_combination).collect(),
        rails: load.rails.iter().map(wire::Rail::from).collect(),
        failed_routes: load.failed_routes,
    }
}

/// Decodes and checks a report.
pub fn decode_load(report: v1::LoadReport) -> Result<Load> {
    check_count("directory shards", report.shards_up.len(), MAX_SHARDS)?;
    check_count("transfers in a report", report.transfers.len(), MAX_REPORTED)?;
    check_count("reduces in a report", report.reduces.len(), MAX_REPORTED)?;
    check_count("combinations in a report", report.combinations.len(), MAX_COMBINATIONS)?;
    check_count("links in a report", report.links.len(), MAX_LINKS)?;
    check_count("network cards in a report", report.rails.len(), MAX_RAILS)?;
    check_count("troubles in a report", report.troubles.len(), MAX_TROUBLES)?;
    check_count("kinds of troubles in a report", report.trouble_kinds.len(), MAX_TROUBLES)?;
    check_count("classes of waits in a report", report.waits.len(), WAIT_CLASSES)?;
    report.troubles.iter().try_for_each(|trouble| check_text(trouble, MAX_TROUBLE_BYTES))?;
    let kinds = report.trouble_kinds.into_iter().chain(std::iter::repeat(0));
    let troubles = report
        .troubles
        .into_iter()
        .zip(kinds)
        .map(|(text, kind)| Trouble { kind: decode_kind(kind), text });
    let mut waits = Waits::default();
    waits.0.iter_mut().zip(report.waits).for_each(|(count, told)| *count = told);
    Ok(Load {
        capacity_bytes: report.capacity_bytes,
        free_bytes: report.free_bytes,
        pinned_bytes: report.pinned_bytes,
        evictable_bytes: report.evictable_bytes,
        reserved_bytes: report.reserved_bytes,
        copies: report.copies,
        clients: report.clients,
        pulls: report.pulls,
        hops: report.hops,
        sent_bytes: report.sent_bytes,
        received_bytes: report.received_bytes,
        send_rate: report.send_rate,
        receive_rate: report.receive_rate,
        shards_up: report.shards_up,
        transfers: report.transfers.iter().map(decode_transfer).collect::<Result<_>>()?,
        reduces: report.reduces.into_iter().map(decode_reduce).collect::<Result<_>>()?,
        links: report.links.iter().map(decode_link).collect::<Result<_>>()?,
        troubles: troubles.collect(),
        tally: Tally { gets: report.gets, failures: report.failures, waits },
        detail: report.detail.map(decode_detail).transpose()?,
        combinations: report
            .combinations
            .into_iter()
            .map(decode_combination)
            .collect::<Result<_>>()?,
        rails: report.rails.iter().map(decode_rail).collect::<Result<_>>()?,
        failed_routes: report.failed_routes,
    })
}

fn check_text(text: &str, max_bytes: usize) -> Result<()> {
    if text.len() <= max_bytes && is_plain(text) {
        return Ok(());
    }
    Err(Error::malformed(Plane::Control, "a text that is too long, or cannot be shown"))
}

fn encode_kind(kind: TroubleKind) -> wire::TroubleKind {
    match kind {
        TroubleKind::Full => wire::TroubleKind::Full,
        TroubleKind::Shard => wire::TroubleKind::Shard,
        TroubleKind::Peer => wire::TroubleKind::Peer,
        TroubleKind::Wait => wire::TroubleKind::Wait,
        TroubleKind::Disk => wire::TroubleKind::Disk,
        TroubleKind::Other => wire::TroubleKind::Unspecified,
    }
}

fn decode_kind(kind: i32) -> TroubleKind {
    match wire::TroubleKind::try_from(kind) {
        Ok(wire::TroubleKind::Full) => TroubleKind::Full,
        Ok(wire::TroubleKind::Shard) => TroubleKind::Shard,
        Ok(wire::TroubleKind::Peer) => TroubleKind::Peer,
        Ok(wire::TroubleKind::Wait) => TroubleKind::Wait,
        Ok(wire::TroubleKind::Disk) => TroubleKind::Disk,
        Ok(wire::TroubleKind::Unspecified) | Err(_) => TroubleKind::Other,
    }
}

fn encode_waits(waits: &Waits) -> Vec<u64> {
    let used = waits.0.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    waits.0[..used].to_vec()
}

fn encode_detail(detail: Detail) -> wire::Detail {
    wire::Detail {
        clients: detail.clients.into_iter().map(wire::Client::from).collect(),
        log: detail.log,
    }
}

impl From<ClientLoad> for wire::Client {
    fn from(client: ClientLoad) -> Self {
        let ClientLoad { name, references, bytes, held_bytes, calls } = client;
        Self { name, references, bytes, held_bytes, calls }
    }
}

fn decode_detail(detail: wire::Detail) -> Result<Detail> {
    check_count("clients in a report", detail.clients.len(), MAX_CLIENTS)?;
    check_count("lines of a log in a report", detail.log.len(), MAX_LOG_LINES)?;
    detail.log.iter().try_for_each(|line| check_text(line, MAX_LOG_LINE_BYTES))?;
    let client = |client: wire::Client| {
        let wire::Client { name, references, bytes, held_bytes, calls } = client;
        check_text(&name, MAX_CLIENT_BYTES)?;
        Ok(ClientLoad { name, references, bytes, held_bytes, calls })
    };
    Ok(Detail {
        clients: detail.clients.into_iter().map(client).collect::<Result<_>>()?,
        log: detail.log,
    })
}

fn encode_transfer(transfer: &TransferLoad) -> wire::Transfer {
    let TransferLoad { ref id, size_bytes, valid_bytes, rate } = *transfer;
    wire::Transfer { id: encode_id(id), size_bytes, valid_bytes, rate }
}

fn decode_transfer(transfer: &wire::Transfer) -> Result<TransferLoad> {
    let wire::Transfer { ref id, size_bytes, valid_bytes, rate } = *transfer;
    Ok(TransferLoad { id: ObjectId::new(id)?, size_bytes, valid_bytes, rate })
}

impl From<&LinkLoad> for wire::Link {
    fn from(link: &LinkLoad) -> Self {
        let LinkLoad { ref peer, bytes_per_second, round_trip_ns, is_slow, lanes } = *link;
        Self { peer: peer.to_string(), bytes_per_second, round_trip_ns, is_slow, lanes }
    }
}

fn decode_link(link: &wire::Link) -> Result<LinkLoad> {
    let wire::Link { ref peer, bytes_per_second, round_trip_ns, is_slow, lanes } = *link;
    Ok(LinkLoad { peer: NodeId::new(peer)?, bytes_per_second, round_trip_ns, is_slow, lanes })
}

impl From<&RailLoad> for wire::Rail {
    fn from(rail: &RailLoad) -> Self {
        Self {
            address: rail.address.to_string(),
            sent_bytes: rail.sent_bytes,
            received_bytes: rail.received_bytes,
            send_rate: rail.send_rate,
            receive_rate: rail.receive_rate,
            failed_routes: rail.failed_routes,
        }
    }
}

fn decode_rail(rail: &wire::Rail) -> Result<RailLoad> {
    let wire::Rail {
        ref address,
        sent_bytes,
        received_bytes,
        send_rate,
        receive_rate,
        failed_routes,
    } = *rail;
    let malformed = |_| Error::malformed(Plane::Control, "a network card without an address");
    let address = address.parse().map_err(malformed)?;
    Ok(RailLoad { address, sent_bytes, received_bytes, send_rate, receive_rate, failed_routes })
}

fn encode_reduce(reduce: ReduceLoad) -> wire::Reduce {
    wire::Reduce {
        target: encode_id(&reduce.target),
        op: reduce.op,
        joined: reduce.joined,
        sources: reduce.sources,
        plan: reduce.plan,
        elapsed_ms: u64::try_from(reduce.elapsed.as_millis()).unwrap_or(u64::MAX),
    }
}

fn decode_reduce(reduce: wire::Reduce) -> Result<ReduceLoad> {
    if reduce.op.len() > MAX_OP_BYTES || reduce.plan.len() > MAX_PLAN_BYTES {
        return Err(Error::malformed(
            Plane::Control,
            "a reduce that is described at too great a length",
        ));
    }
    Ok(ReduceLoad {
        target: ObjectId::new(&reduce.target)?,
        op: reduce.op,
        joined: reduce.joined,
        sources: reduce.sources,
        plan: reduce.plan,
        elapsed: Duration::from_millis(reduce.elapsed_ms).min(decode_timeout(u64::MAX)),
    })
}

fn encode_combination(combination: CombinationLoad) -> wire::Combination {
    let sender = |sender: Sender| wire::Sender {
        node: sender.node.to_string(),
        hop: sender.hop.as_ref().map(encode_id).unwrap_or_default(),
    };
    wire::Combination {
        number: combination.number,
        output: encode_id(&combination.output),
        op: combination.op,
        plan: combination.plan,
        senders: combination.senders.into_iter().map(sender).collect(),
        all_senders: combination.all_senders,
        size_bytes: combination.size_bytes,
        age_us: micros(combination.age),
        took_us: micros(combination.took),
        is_complete: combination.is_complete,
        put: combination.put.0,
    }
}

fn decode_combination(combination: wire::Combination) -> Result<CombinationLoad> {
    check_count("senders of a combination", combination.senders.len(), MAX_SENDERS)?;
    check_text(&combination.op, MAX_OP_BYTES)?;
    check_text(&combination.plan, MAX_PLAN_BYTES)?;
    let sender = |sender: wire::Sender| {
        let hop = Some(sender.hop).filter(|hop| !hop.is_empty());
        let hop = hop.map(|hop| ObjectId::new(&hop)).transpose()?;
        Ok(Sender { node: NodeId::new(&sender.node)?, hop })
    };
    let time = |micros: u64| Duration::from_micros(micros).min(decode_timeout(u64::MAX));
    Ok(CombinationLoad {
        number: combination.number,
        output: ObjectId::new(&combination.output)?,
        op: combination.op,
        plan: combination.plan,
        senders: combination.senders.into_iter().map(sender).collect::<Result<_>>()?,
        all_senders: combination.all_senders,
        size_bytes: combination.size_bytes,
        age: time(combination.age_us),
        took: time(combination.took_us),
        is_complete: combination.is_complete,
        put: PutId(combination.put),
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn combination(id: &ObjectId, numbers: [u64; 4], lists: usize) -> CombinationLoad {
        let [one, two, three, four] = numbers;
        let sender =
            Sender { node: NodeId::new("x").unwrap(), hop: (lists > 3).then(|| id.clone()) };
        CombinationLoad {
            number: one,
            output: id.clone(),
            op: "sum".to_owned(),
            plan: "x".repeat(lists * 16),
            senders: vec![sender; lists * MAX_SENDERS / MAX_REPORTED],
            all_senders: two,
            size_bytes: three,
            age: Duration::from_micros(four % 1_000_000),
            took: Duration::from_micros(one % 1_000_000),
            is_complete: two > three,
            put: PutId(four),
        }
    }

    fn load(name: &str, numbers: [u64; 4], lists: usize) -> Load {
        let id = ObjectId::new(name).unwrap();
        let [one, two, three, four] = numbers;
        let transfer =
            TransferLoad { id: id.clone(), size_bytes: one, valid_bytes: two, rate: three };
        let link = LinkLoad {
            peer: NodeId::new(name).unwrap(),
            bytes_per_second: four,
            round_trip_ns: one,
            is_slow: two > three,
            lanes: u32::from(four > one),
        };
        let rail = RailLoad {
            address: [127, 0, 0, 1].into(),
            sent_bytes: one,
            received_bytes: two,
            send_rate: three,
            receive_rate: four,
            failed_routes: 5,
        };
        let reduce = ReduceLoad {
            target: id.clone(),
            op: "sum".to_owned(),
            joined: one,
            sources: two,
            plan: "x".repeat(lists * 16),
            elapsed: Duration::from_millis(four % 1_000_000),
        };
        Load {
            capacity_bytes: one,
            free_bytes: two,
            received_bytes: three,
            receive_rate: four,
            shards_up: vec![true; lists * 16],
            transfers: vec![transfer; lists],
            reduces: vec![reduce; lists],
            combinations: vec![
                combination(&id, numbers, lists);
                lists * MAX_COMBINATIONS / MAX_REPORTED
            ],
            links: vec![link; lists * MAX_LINKS / MAX_REPORTED],
            rails: vec![rail; lists * MAX_RAILS / MAX_REPORTED],
            failed_routes: 7,
            troubles: vec![
                Trouble {
                    kind: TroubleKind::Full,
                    text: "x".repeat(lists * MAX_TROUBLE_BYTES / MAX_REPORTED)
                };
                lists * MAX_TROUBLES / MAX_REPORTED
            ],
            tally: Tally { gets: one, failures: two, waits: Waits([three; WAIT_CLASSES]) },
            detail: (lists > 0).then(|| Detail {
                clients: vec![
                    ClientLoad {
                        name: "x".repeat(lists * MAX_CLIENT_BYTES / MAX_REPORTED),
                        references: one,
                        bytes: two,
                        held_bytes: three,
                        calls: four
                    };
                    lists * MAX_CLIENTS / MAX_REPORTED
                ],
                log: vec![
                    "x".repeat(lists * MAX_LOG_LINE_BYTES / MAX_REPORTED);
                    lists * MAX_LOG_LINES / MAX_REPORTED
                ],
            }),
            ..Load::default()
        }
    }

    #[test]
    fn what_is_told_is_bounded() {
        let most = encode_load(load("x", [1; 4], MAX_REPORTED));
        assert!(decode_load(most.clone()).is_ok());
        let mut transfers = most.clone();
        transfers.transfers.push(transfers.transfers[0].clone());
        let mut reduces = most.clone();
        reduces.reduces.push(reduces.reduces[0].clone());
        let mut links = most.clone();
        links.links.push(links.links[0].clone());
        let mut rails = most.clone();
        rails.rails.push(rails.rails[0].clone());
        let mut card = most.clone();
        card.rails[0].address = "a name".to_owned();
        let mut peer = most.clone();
        peer.links[0].peer.clear();
        let mut shards = most.clone();
        shards.shards_up.push(true);
        let mut plan = most.clone();
        plan.reduces[0].plan.push('x');
        let mut op = most.clone();
        op.reduces[0].op = "x".repeat(MAX_OP_BYTES + 1);
        let mut combinations = most.clone();
        combinations.combinations.push(combinations.combinations[0].clone());
        let of_combination = |change: fn(&mut wire::Combination)| {
            let mut report = most.clone();
            change(&mut report.combinations[0]);
            report
        };
        let senders = of_combination(|one| one.senders.push(one.senders[0].clone()));
        let sender = of_combination(|one| one.senders[0].node.clear());
        let hop = of_combination(|one| one.senders[0].hop = vec![0; 256].into());
        let output = of_combination(|one| one.output = Bytes::new());
        let schedule = of_combination(|one| one.plan = "\u{202e}".to_owned());
        let mut troubles = most.clone();
        troubles.troubles.push(String::new());
        let mut long = most.clone();
        long.troubles[0].push('x');
        let mut control = most.clone();
        control.troubles[0] = "\x1b".to_owned();
        let mut id = most.clone();
        id.transfers[0].id = vec![0; 256].into();
        let mut waits = most.clone();
        waits.waits.push(0);
        let detailed = |change: fn(&mut wire::Detail)| {
            let mut report = most.clone();
            change(report.detail.as_mut().unwrap());
            report
        };
        let clients = detailed(|detail| detail.clients.push(wire::Client::default()));
        let name = detailed(|detail| detail.clients[0].name.push('x'));
        let lines = detailed(|detail| detail.log.push(String::new()));
        let line = detailed(|detail| detail.log[0] = "\u{202e}".to_owned());
        for wrong in [
            transfers, reduces, links, rails, card, peer, shards, plan, op, troubles, long,
            control, id, waits, clients, name, lines, line, combinations, senders, sender, hop,
            output, schedule,
        ] {
            assert!(decode_load(wrong).is_err());
        }
    }

    proptest! {
        #[test]
        fn loads_round_trip(numbers: [u64; 4], lists in 0..=MAX_REPORTED) {
            let load = load("x", numbers, lists);
            let bytes = encode_load(load.clone()).encode_to_vec();
            prop_assert_eq!(decode_load(v1::LoadReport::decode(&bytes[..]).unwrap()), Ok(load));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(report) = v1::LoadReport::decode(&bytes[..]) {
                let _ = decode_load(report);
            }
        }
    }
}
