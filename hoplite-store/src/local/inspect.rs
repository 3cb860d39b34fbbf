//! Answers for people and tools about the directory and this store.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::{join, join_all};
use hoplite_core::collective::Member;
use hoplite_core::error::{Error, Plane};
use hoplite_core::id::NodeId;
use hoplite_core::load::MAX_TROUBLE_BYTES;
use hoplite_core::node::{
    Inspection, LifetimeReport, PeerFault, ReduceRecord, ShardFault, SpillStatus, SpillTrouble,
    Troubles,
};
use hoplite_core::shard::{Locations, MAX_PAGE_BYTES, Page, Retention, UNREACHABLE, best_informed};
use hoplite_core::text::cut;
use hoplite_core::topology::blocks::Blocks;
use hoplite_core::topology::keys::{KeyCounts, PlaceKeys};
use hoplite_core::topology::live::PeerLink;
use hoplite_core::topology::measured::{MeasuredPlaces, version_above};
use hoplite_core::topology::place::{EVERYWHERE, Path};
use hoplite_core::topology::probe::survey::{SurveyOptions, SurveyReport};
use hoplite_core::topology::{Link, Matrix, Place};
use hoplite_core::{ObjectId, Version};
use hoplite_proto::bounds::encode_address;
use hoplite_proto::data::{encode_position, encode_record};
use hoplite_proto::directory::{decode_locations, encode_locations, encode_places};
use hoplite_proto::local::Response;
use hoplite_proto::trouble::{encode_fault, encode_wait};
use hoplite_proto::v1;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::LocalPlane;
use super::drain::drain_node;
use super::nodes::{Known, ask, nodes_of};
use super::shards::{change_shards, describe_shards};
use crate::advertised::Advertised;
use crate::data::RailReport;
use crate::shard_link::ShardLink;

/// Protobuf's tag and length for each object in a page of a listing.
const OBJECT_OVERHEAD_BYTES: usize = 6;

/// Time limit for querying all members of a collective.
const POSITION_TIMEOUT: Duration = Duration::from_secs(1);
const MEMBER_TIMEOUT: Duration = Duration::from_millis(300);
const MAX_ASKED_AT_ONCE: usize = 32;

pub(super) async fn answer(
    plane: &LocalPlane,
    inspection: Inspection,
    shards: &[usize],
) -> Result<Response, Error> {
    let links = plane.shards.of(shards.iter().copied());
    let shards: Vec<&ShardLink> = links.iter().collect();
    match inspection {
        Inspection::List { prefix, after, limit } => list(&shards, prefix, after, limit).await,
        Inspection::Describe { id } => describe(plane, &shards, &id).await,
        Inspection::Status => Ok(status(plane).await),
        Inspection::Cluster => cluster(&shards).await,
        Inspection::Probe { nodes, options } => probe(plane, &shards, nodes, options).await,
        Inspection::DrainNode { node, timeout } => drain_node(plane, &shards, &node, timeout).await,
        Inspection::ProbeProgress => Ok(Response::ProbeProgress(plane.engine.probe_progress())),
        Inspection::Shards => Ok(describe_shards(plane).await),
        Inspection::ChangeShards { change, force } => change_shards(plane, &change, force).await,
    }
}

async fn probe(
    plane: &LocalPlane,
    shards: &[&ShardLink],
    nodes: Vec<NodeId>,
    options: SurveyOptions,
) -> Result<Response, Error> {
    let begun = Instant::now();
    let Known { addresses: mut known, labels } = nodes_of(shards).await?;
    if !nodes.is_empty() {
        let chosen: BTreeSet<NodeId> = nodes.into_iter().collect();
        if let Some(unknown) = chosen.iter().find(|node| !known.contains_key(*node)) {
            let reason = format!("no node {unknown} is connected to the directory").into();
            return Err(Error::InvalidRequest { reason });
        }
        known.retain(|node, _| chosen.contains(node));
    }
    let report = plane.engine.survey(known.into_iter().collect(), options).await?;
    let applied = if options.apply {
        Some(apply(plane, shards, &report.matrix, labels).await?)
    } else {
        None
    };
    let probed = v1::Probed { applied, ..encode_report(report, begun.elapsed()) };
    Ok(Response::Probed(Box::new(probed)))
}

async fn apply(
    plane: &LocalPlane,
    shards: &[&ShardLink],
    matrix: &Matrix,
    labels: BTreeMap<String, Path>,
) -> Result<v1::probed::Applied, Error> {
    let status = shards
        .iter()
        .map(|link| async { ask(link.client().status(v1::StatusRequest::default())).await });
    let known = join_all(status).await.into_iter().flatten().map(|status| status.places_version);
    // A restarted shard may have lost its version, so this store's version counts, too.
    let known = known.chain([plane.engine.status().place.version]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let version = version_above(known, now);
    // Computing the places of thousands of nodes takes a second.
    let matrix = matrix.clone();
    let label = move |node: &str| labels.get(node).copied().unwrap_or(EVERYWHERE);
    let places = spawn_blocking(move || MeasuredPlaces::of(&matrix, label, version));
    let places = places.await.map_err(|_| Error::ShuttingDown)?;
    let places =
        places.map_err(|error| Error::InvalidRequest { reason: error.to_string().into() })?;
    let told =
        shards.iter().map(|link| async { ask(link.client().place(encode_places(&places))).await });
    let told: Vec<_> = join_all(told).await;
    let taken = told.iter().flatten().filter(|reply| reply.counts);
    let (taken, nodes) =
        taken.fold((0, 0), |(taken, nodes), reply| (taken + 1, reply.nodes.max(nodes)));
    if let (0, Some(Err(error))) = (taken, told.into_iter().find(Result::is_err)) {
        return Err(error);
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(v1::probed::Applied {
        version,
        groups: count(places.groups()),
        uplink_permille: places.uplink.permille(),
        shards: count(taken),
        all_shards: count(shards.len()),
        nodes,
        labelled_nodes: if taken > 0 { count(places.paths.len()).saturating_sub(nodes) } else { 0 },
    })
}

fn encode_report(report: SurveyReport, elapsed: Duration) -> v1::Probed {
    let SurveyReport { matrix, lost, guessed, estimated, by_tcp, echoes, lost_echoes, train_bytes } =
        report;
    let block_of = |blocks: &Blocks| (0..matrix.len()).map(|node| blocks.block(node)).collect();
    v1::Probed {
        blocks: matrix.blocks().map(block_of).unwrap_or_default(),
        estimated,
        nodes: matrix.nodes().to_vec(),
        alpha_ns: matrix.links().map(|link| link.alpha_ns).collect(),
        ps_per_byte: matrix.links().map(|link| link.ps_per_byte).collect(),
        lost: lost
            .into_iter()
            .map(|(node, loss)| v1::probed::Lost { node, reason: loss.to_string() })
            .collect(),
        guessed: guessed.into_iter().map(|(low, high)| v1::probed::Pair { low, high }).collect(),
        by_tcp,
        echoes,
        lost_echoes,
        train_bytes,
        applied: None,
        elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
    }
}

async fn list(
    shards: &[&ShardLink],
    prefix: Bytes,
    after: Bytes,
    limit: usize,
) -> Result<Response, Error> {
    let request =
        v1::ListRequest { prefix, after, limit: u32::try_from(limit).unwrap_or(u32::MAX) };
    let pages = join_all(shards.iter().map(|link| {
        let (mut client, request) = (link.client(), request.clone());
        async move { ask(client.list(request)).await }
    }))
    .await;
    let pages = pages.into_iter().map(|page| page.ok().map(decode_page).transpose());
    let pages = pages.collect::<Result<Vec<_>, Error>>()?;
    let page = Page::merge(pages, limit).ok_or(Error::unavailable("the directory"))?;
    let Page { objects, more } = page.cut(MAX_PAGE_BYTES, size_bytes);
    Ok(Response::Listing { objects, more })
}

fn decode_page(page: v1::ListReply) -> Result<Page, Error> {
    let decode = |locations| decode_locations(locations, Plane::Control);
    let objects = page.objects.into_iter().map(decode).collect::<Result<_, Error>>()?;
    Ok(Page { objects, more: page.more })
}

fn size_bytes(object: &Locations) -> usize {
    encode_locations(object).encoded_len() + OBJECT_OVERHEAD_BYTES
}

async fn describe(
    plane: &LocalPlane,
    shards: &[&ShardLink],
    id: &ObjectId,
) -> Result<Response, Error> {
    // Read before the query: otherwise, both answers may miss an object that becomes complete.
    let reduce = plane.engine.how_made(id);
    let request = v1::DescribeRequest { id: Bytes::copy_from_slice(id.as_bytes()) };
    let answers = join_all(shards.iter().map(|link| {
        let (mut client, request) = (link.client(), request.clone());
        async move {
            let object = ask(client.describe(request)).await?;
            let locations = object.locations.clone();
            let locations = locations
                .ok_or(Error::malformed(Plane::Control, "an answer without the object"))?;
            Ok((object, decode_locations(locations, Plane::Control)?))
        }
    }));
    let (mut answers, mut reduce): (Vec<Result<_, Error>>, _) =
        join(answers, with_positions(plane, id, reduce)).await;
    let known = answers.iter().map(|answer| Some(&answer.as_ref().ok()?.1));
    let Some(best) = best_informed(known) else {
        return Err(answers
            .into_iter()
            .find_map(Result::err)
            .unwrap_or(Error::unavailable("the directory")));
    };
    let (object, locations) = answers.swap_remove(best)?;
    if reduce.is_none() {
        reduce = made_elsewhere(plane, shards, id, &locations).await;
    }
    Ok(Response::Description(Box::new(v1::response::Description {
        shard: shards[best].address.clone(),
        object: Some(object),
        reduce,
        lifetime: plane.engine.lifetime(id).map(encode_lifetime),
    })))
}

fn encode_lifetime(report: LifetimeReport) -> v1::response::LifetimeReport {
    let millis = |left: Option<Duration>| {
        left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    };
    v1::response::LifetimeReport {
        is_owner_gone: report.is_owner_gone,
        expires_in_ms: millis(report.expires_in),
        deleted_in_ms: millis(report.deleted_in),
    }
}

async fn with_positions(
    plane: &LocalPlane,
    id: &ObjectId,
    reduce: Option<ReduceRecord>,
) -> Option<v1::ReduceRecord> {
    let reduce = reduce?;
    let own = reduce.position.clone().filter(|_| reduce.is_running);
    let mut record = encode_record(reduce);
    let Some(own) = own else { return Some(record) };
    let (others, members) = plane.engine.others_making(id);
    let turns = Semaphore::new(MAX_ASKED_AT_ONCE);
    let asks = others.into_iter().map(async |(member, Member { node, address })| {
        let (peer, asker) = ((node.clone(), address), plane.engine.asker());
        let asked = in_turn(&turns, asker.request_position(&peer, id, (member, members)));
        let unknown = |stage: &str| v1::MemberPosition {
            member: u32::try_from(member).unwrap_or(u32::MAX),
            members: own.members.try_into().unwrap_or(u32::MAX),
            stage: stage.to_owned(),
            size_bytes: own.size_bytes,
            ..Default::default()
        };
        let position = match asked.await {
            Some(Ok(Some(position))) => encode_position(position),
            Some(Ok(None)) => unknown("is not a member now"),
            Some(Err(_)) => unknown("does not answer"),
            None => unknown("was not queried: too many other members do not answer"),
        };
        v1::MemberPosition { node: node.as_str().to_owned(), ..position }
    });
    let mut positions = join_all(asks).await;
    let node = plane.node.as_str().to_owned();
    positions.push(v1::MemberPosition { node, ..encode_position(own) });
    positions.sort_by_key(|position| position.member);
    record.positions = positions;
    Some(record)
}

/// Queries a store once `turns` has a free permit; `None` after [`POSITION_TIMEOUT`].
async fn in_turn<T>(
    turns: &Semaphore,
    asking: impl Future<Output = Result<T, Error>>,
) -> Option<Result<T, Error>> {
    let asked = async {
        let _turn = turns.acquire().await;
        timeout(MEMBER_TIMEOUT, asking).await.unwrap_or(Err(Error::unavailable("another store")))
    };
    timeout(POSITION_TIMEOUT, asked).await.ok()
}

/// Queries other stores about the reduce that makes `id`: those with a pinned copy, or all if there
/// is no copy.
async fn made_elsewhere(
    plane: &LocalPlane,
    shards: &[&ShardLink],
    id: &ObjectId,
    locations: &Locations,
) -> Option<v1::ReduceRecord> {
    let peers: Vec<(NodeId, SocketAddr)> = if locations.locations.is_empty() {
        nodes_of(shards).await.ok()?.addresses.into_iter().collect()
    } else {
        let keepers = locations.locations.iter().filter(|copy| copy.retention == Retention::Pinned);
        keepers.map(|copy| (copy.node.clone(), copy.data_address)).collect()
    };
    let peers = peers.into_iter().filter(|(node, _)| *node != plane.node);
    let turns = Semaphore::new(MAX_ASKED_AT_ONCE);
    let asks = peers.map(async |peer| {
        let record = in_turn(&turns, plane.engine.asker().request_reduce_record(&peer, id))
            .await?
            .ok()??;
        Some((peer.0, record))
    });
    let known: Vec<(NodeId, v1::ReduceRecord)> =
        join_all(asks).await.into_iter().flatten().collect();
    let of_member = |(node, record): &(NodeId, v1::ReduceRecord)| {
        let position = record.position.clone().filter(|_| record.is_running)?;
        Some(v1::MemberPosition { node: node.as_str().to_owned(), ..position })
    };
    let mut positions: Vec<v1::MemberPosition> = known.iter().filter_map(of_member).collect();
    positions.sort_by_key(|position| position.member);
    // Only rank 0's store knows the reasons and the assumed bandwidth.
    let knowledge = |record: &v1::ReduceRecord| {
        (record.is_running, record.bytes_per_second > 0, record.elapsed_us)
    };
    let (_, record) = known.into_iter().max_by_key(|(_, record)| knowledge(record))?;
    Some(v1::ReduceRecord { position: None, positions, ..record })
}

async fn cluster(shards: &[&ShardLink]) -> Result<Response, Error> {
    let mut last = Error::unavailable("the directory");
    for link in shards {
        match ask(link.client().status(v1::StatusRequest { loads: true })).await {
            Ok(reply) => return Ok(Response::Cluster(Box::new(reply))),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn status(plane: &LocalPlane) -> Response {
    let versions = plane.engine.shard_versions().into_iter();
    let shards = versions.filter_map(|(shard, version)| Some((plane.shards.get(shard)?, version)));
    let shards =
        join_all(shards.map(async |(link, version)| shard_status(&link, version).await)).await;
    let node = plane.engine.status();
    let metrics = plane.engine.metrics();
    let count = |number: usize| number as u64;
    Response::Status(Box::new(v1::NodeStatus {
        node: plane.node.as_str().to_owned(),
        cluster: plane.cluster.as_str().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_address: encode_address(
            plane.advertised.as_ref().map_or(UNREACHABLE, Advertised::address),
        ),
        uptime_ms: u64::try_from(plane.engine.uptime().as_millis()).unwrap_or(u64::MAX),
        capacity_bytes: node.capacity_bytes,
        free_bytes: node.free_bytes,
        pinned_bytes: node.pinned_bytes,
        evictable_bytes: node.evictable_bytes,
        copies: count(node.copies),
        clients: count(plane.engine.clients()),
        pulls: count(node.pulls),
        serves: metrics.serves.load(Ordering::Relaxed),
        sent_bytes: metrics.sent_bytes.load(Ordering::Relaxed),
        received_bytes: metrics.received_bytes.load(Ordering::Relaxed),
        evictions: node.evictions,
        expired: node.expired,
        abandoned: node.abandoned,
        is_draining: node.is_draining,
        corrupt_frames: metrics.corrupt_frames.load(Ordering::Relaxed),
        put_conflicts: node.put_conflicts,
        prefaulted_bytes: plane.prefaulted_bytes.load(Ordering::Relaxed),
        shards,
        reserved_bytes: node.reserved_bytes,
        reduces: count(node.reductions),
        hops: count(node.hops),
        directed_hops: count(node.directed_hops),
        combinations: count(node.combinations),
        links: metrics.links().into_iter().map(encode_link).collect(),
        troubles: Some(troubles(plane)),
        spill: spill(plane, node.spill),
        max_lanes: small(plane.engine.max_lanes()),
        extra_lanes: metrics.lanes.load(Ordering::Relaxed),
        rails: plane.engine.rails().reports().iter().map(encode_rail).collect(),
        failed_routes: small(plane.engine.rails().failed_routes()),
    }))
}

fn encode_rail(rail: &RailReport) -> v1::RailStatus {
    v1::RailStatus {
        address: rail.address.to_string(),
        connections: small(rail.connections),
        sent_bytes: rail.sent_bytes,
        received_bytes: rail.received_bytes,
        failed_routes: small(rail.failed_routes),
    }
}

fn spill(plane: &LocalPlane, status: SpillStatus) -> Option<v1::SpillStatus> {
    if !plane.engine.spills() {
        return None;
    }
    let (Troubles { spill: troubles, .. }, _) = plane.engine.troubles();
    let troubles = troubles.into_iter().map(|SpillTrouble { directory, fault }| {
        let (directory, reason) =
            (cut(directory, MAX_TROUBLE_BYTES), cut(fault.to_string(), MAX_TROUBLE_BYTES));
        v1::SpillTrouble { directory, reason }
    });
    Some(v1::SpillStatus {
        objects: status.objects,
        bytes: status.bytes,
        clean_bytes: status.clean_bytes,
        files: status.files,
        file_bytes: status.file_bytes,
        limit_bytes: status.limit_bytes,
        spilled_objects: status.spilled_objects,
        spilled_bytes: status.spilled_bytes,
        loaded_objects: status.loaded_objects,
        loaded_bytes: status.loaded_bytes,
        failures: status.failures,
        troubles: troubles.collect(),
        recovered_objects: status.recovered_objects,
        recovered_bytes: status.recovered_bytes,
        unrecovered_objects: status.unrecovered_objects,
    })
}

fn troubles(plane: &LocalPlane) -> v1::Troubles {
    let (Troubles { full_waiters, long_waits, waits, shards, peers, incompatible, .. }, now) =
        plane.engine.troubles();
    let shards = shards.iter().filter_map(|ShardFault { shard, fault }| {
        let link = plane.shards.get(*shard)?;
        Some(encode_fault(&link.address, &fault.error, now.since(fault.since)))
    });
    let peer = |PeerFault { node, fault }: &PeerFault| {
        encode_fault(node.as_str(), &fault.error, now.since(fault.since))
    };
    v1::Troubles {
        full_waiters: full_waiters as u64,
        long_waits: long_waits as u64,
        waits: waits.iter().map(encode_wait).collect(),
        shards: shards.collect(),
        peers: peers.iter().map(peer).collect(),
        incompatible: incompatible
            .map(|fault| encode_fault("", &fault.error, now.since(fault.since))),
    }
}

fn encode_link(link: PeerLink) -> v1::PeerLink {
    let PeerLink { peer, link: Link { alpha_ns, ps_per_byte }, is_slow, lanes } = link;
    let lanes = lanes.map_or(0, small);
    v1::PeerLink { node: peer.as_str().to_owned(), alpha_ns, ps_per_byte, is_slow, lanes }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn place_keys(nodes: &[v1::status_reply::Node]) -> Vec<v1::PlaceKeys> {
    let mut counts = KeyCounts::default();
    for node in nodes.iter().filter(|node| node.connected) {
        let labels: Vec<(String, String)> = node.labels.clone().into_iter().collect();
        counts.add(Place::of_labels(&labels).path);
    }
    let encode = |(keys, nodes): (PlaceKeys, u32)| v1::PlaceKeys {
        keys: keys.names().map(str::to_owned).collect(),
        nodes,
    };
    counts.iter().map(encode).collect()
}

async fn shard_status(link: &ShardLink, version: Option<Version>) -> v1::ShardStatus {
    let address = link.address.clone();
    let (connected, protocol) = (version.is_some(), version.map_or(0, Version::number));
    match ask(link.client().status(v1::StatusRequest::default())).await {
        Ok(status) => v1::ShardStatus {
            address,
            connected,
            protocol,
            objects: status.objects,
            inline_bytes: status.inline_bytes,
            nodes: u32::try_from(status.nodes.len()).unwrap_or(u32::MAX),
            waiting_queries: status.waiting_queries,
            under_replicated: status.under_replicated,
            place_keys: place_keys(&status.nodes),
            places_version: status.places_version,
            uplink_permille: status.uplink_permille,
        },
        Err(_) => v1::ShardStatus { address, connected, protocol, ..v1::ShardStatus::default() },
    }
}
