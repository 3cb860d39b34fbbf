//! Scenarios as text: the actions of stores, and the effects of the shard.
//!
//! Each paragraph of a file is a scenario with an empty shard. A line is a comment (`#`), an
//! action, or an effect of the action before it (`->`). Times are in milliseconds. `x` stands for
//! put 1 of object `x`, and `x/2` for its put 2.
//!
//! ```text
//! slots N                   sets the slots per location; comes first
//! warm-up T                 sets the length of the warm-up; comes first
//! label A KEY=VALUE..       A joins with these labels from now on
//! join A B.. | leave A | restart A
//! join A naming S T..       A names the shards S T.. of the cluster; otherwise there is one
//! put A X | produce A X | copy A X | start A X B
//!                           A publishes X: complete and pinned, producing, complete and evictable,
//!                           partial from B
//! small A X TEXT            A publishes X with these bytes, inline
//! get A X [timeout T] [avoid B] [resume P]
//! cancel A                  A cancels its latest get, watch or delete
//! done A X                  A publishes X as complete, which returns A's latest slot
//! fail A OUTCOME            A returns its latest slot
//! evict A X | concede A X | end A X | abort A X | supersede A X | dropped A X
//! delete A X | forget A X | watch A X
//! measure V A B.. | C D..   a survey of version V finds these groups under load
//! slow A B..                A reports slow links to exactly these nodes
//! wait T
//! ```

use std::collections::BTreeMap;

use super::*;
use crate::error::ErrorCode;
use crate::topology::measured::MeasuredPlaces;
use crate::topology::place::EVERYWHERE;
use crate::topology::{Link, Matrix, Place};

#[test]
fn broadcast() {
    run_file(include_str!("../../../tests/cases/broadcast.txt"));
}

#[test]
fn places() {
    run_file(include_str!("../../../tests/cases/places.txt"));
}

#[test]
fn slow_links() {
    run_file(include_str!("../../../tests/cases/slow_links.txt"));
}

#[test]
fn failures() {
    run_file(include_str!("../../../tests/cases/failures.txt"));
}

#[test]
fn deletes() {
    run_file(include_str!("../../../tests/cases/deletes.txt"));
}

fn run_file(text: &str) {
    let mut number = 0;
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let (expected, happened) = Scenario::run(paragraph);
        if !happened.is_empty() {
            assert_eq!(
                happened.join("\n"),
                expected.join("\n"),
                "left: actual effects, in:\n{paragraph}"
            );
            number += 1;
        }
    }
    assert!(number > 0, "the file has no scenario");
}

struct Scenario {
    world: World,
    requests: u64,
    incarnations: BTreeMap<String, u64>,
    labels: BTreeMap<String, Vec<(String, String)>>,
    slots: BTreeMap<String, GrantId>,
    latest: BTreeMap<String, RequestId>,
    receptions: Vec<String>,
    measured: Vec<u32>,
}

impl Scenario {
    fn run(paragraph: &str) -> (Vec<String>, Vec<String>) {
        let lines = paragraph
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        let lines: Vec<&str> = lines.collect();
        let mut scenario = Self {
            world: World::new(configure(&lines)),
            requests: 0,
            incarnations: BTreeMap::new(),
            labels: BTreeMap::new(),
            slots: BTreeMap::new(),
            latest: BTreeMap::new(),
            receptions: Vec::new(),
            measured: Vec::new(),
        };
        let mut happened = Vec::new();
        for line in lines.iter().filter(|line| !line.starts_with("->")) {
            happened.push((*line).to_owned());
            let words: Vec<&str> = line.split_whitespace().collect();
            let effects = scenario.act(&words);
            happened.extend(scenario.receptions.drain(..).map(|text| format!("-> {text}")));
            for effect in effects {
                happened.extend(scenario.render(effect).map(|text| format!("-> {text}")));
            }
        }
        (lines.into_iter().map(str::to_owned).collect(), happened)
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each word of the cases")]
    fn act(&mut self, words: &[&str]) -> Vec<Effect> {
        let request = RequestId(self.requests);
        self.requests += 1;
        match words {
            ["slots" | "warm-up", ..] => Vec::new(),
            ["label", name, labels @ ..] => {
                let pair = |label: &str| {
                    label.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()))
                };
                let labels = labels.iter().map(|label| pair(label).unwrap()).collect();
                self.labels.insert((*name).to_owned(), labels);
                Vec::new()
            }
            ["join", name, "naming", shards @ ..] => {
                let incarnation = *self.incarnations.entry((*name).to_owned()).or_insert(1);
                let shards = ShardList::new(shards.iter().copied());
                self.receive(NodeInfo { shards, ..info(name, incarnation) })
            }
            ["join", names @ ..] => names.iter().flat_map(|name| self.join(name)).collect(),
            ["leave", name] => self.world.disconnect(name, self.incarnations[*name]),
            ["restart", name] => {
                *self.incarnations.get_mut(*name).unwrap() += 1;
                self.join(name)
            }
            ["put", name, object] => {
                self.publish(name, object, LocationState::Complete, Retention::Pinned, None)
            }
            ["produce", name, object] => {
                self.publish(name, object, LocationState::Producing, Retention::Pinned, None)
            }
            ["copy", name, object] => {
                self.publish(name, object, LocationState::Complete, Retention::Evictable, None)
            }
            ["start", name, object, from] => {
                self.publish(name, object, LocationState::Partial, Retention::Evictable, Some(from))
            }
            ["small", name, object, text] => {
                let (object, put) = parse_object(object);
                let bytes = Bytes::copy_from_slice(text.as_bytes());
                let size_bytes = u64::try_from(text.len()).unwrap();
                let publish =
                    Publish { size_bytes, inline: Some(bytes.into()), ..complete(object, put.0) };
                self.world.send(name, ToShard::Publish(publish))
            }
            ["get", name, object, options @ ..] => {
                let mut query = query(object, request.0);
                for option in options.chunks(2) {
                    match option {
                        ["timeout", millis] => {
                            query.timeout = Duration::from_millis(millis.parse().unwrap())
                        }
                        ["avoid", sender] => query.avoid.push(node(sender)),
                        ["resume", put] => query.resume = Some(PutId(put.parse().unwrap())),
                        _ => panic!("{option:?}"),
                    }
                }
                self.latest.insert((*name).to_owned(), request);
                self.world.send(name, ToShard::Query(query))
            }
            ["cancel", name] => {
                self.world.send(name, ToShard::Cancel { request: self.latest[*name] })
            }
            ["done", name, object] => {
                let (object, put) = parse_object(object);
                let copy =
                    publication(object, put.0, LocationState::Complete, Retention::Evictable);
                let publish =
                    Publish { slot: self.slots.remove(*name), wants_answer: false, ..copy };
                self.world.send(name, ToShard::Publish(publish))
            }
            ["fail", name, outcome] => {
                let outcome = match *outcome {
                    "unreachable" => PullOutcome::SenderUnreachable,
                    "stalled" => PullOutcome::SenderStalled,
                    "corrupt" => PullOutcome::Corrupt,
                    "no-copy" => PullOutcome::SenderHasNoCopy,
                    "cancelled" => PullOutcome::Cancelled,
                    "gave-way" => PullOutcome::GaveWay,
                    _ => panic!("{outcome}"),
                };
                self.give_back(name, outcome)
            }
            ["evict", name, object] => self.unpublish(name, object, UnpublishReason::Evicted),
            ["concede", name, object] => self.unpublish(name, object, UnpublishReason::Conceded),
            ["end", name, object] => self.unpublish(name, object, UnpublishReason::PullEnded),
            ["abort", name, object] => self.unpublish(name, object, UnpublishReason::Aborted),
            ["supersede", name, object] => {
                self.unpublish(name, object, UnpublishReason::Superseded)
            }
            ["dropped", name, object] => self.unpublish(name, object, UnpublishReason::Deleted),
            ["delete", name, object] => {
                self.latest.insert((*name).to_owned(), request);
                self.world.send(
                    name,
                    ToShard::Delete { request, id: id(object), terms: DeleteTerms::default() },
                )
            }
            ["forget", name, object] => {
                let (object, put) = parse_object(object);
                self.world.send(name, ToShard::Forget { id: id(object), put })
            }
            ["watch", name, object] => {
                self.latest.insert((*name).to_owned(), request);
                self.world.send(
                    name,
                    ToShard::Subscribe {
                        request,
                        id: id(object),
                        wants: Wants::Locations,
                        makes: false,
                    },
                )
            }
            ["measure", version, names @ ..] => self.measure(version.parse().unwrap(), names),
            ["slow", name, peers @ ..] => {
                let peers = peers.iter().map(|peer| node(peer)).collect();
                self.world.send(name, ToShard::SlowLinks { peers })
            }
            ["wait", millis] => self.world.wait(Duration::from_millis(millis.parse().unwrap())),
            _ => panic!("{words:?}"),
        }
    }

    fn measure(&mut self, version: u64, names: &[&str]) -> Vec<Effect> {
        let groups: Vec<&[&str]> = names.split(|name| *name == "|").collect();
        let nodes: Vec<(usize, String)> = groups
            .iter()
            .enumerate()
            .flat_map(|(group, names)| names.iter().map(move |name| (group, (*name).to_owned())))
            .collect();
        let names = nodes.iter().map(|(_, name)| name.clone()).collect();
        let matrix = Matrix::from_links(names, |a, b| {
            let ps_per_byte = if nodes[a].0 == nodes[b].0 { 40_000 } else { 224_000 };
            Ok(Link { alpha_ns: 100_000, ps_per_byte })
        });
        let label = |name: &str| {
            self.labels.get(name).map_or(EVERYWHERE, |labels| Place::of_labels(labels).path)
        };
        let places = MeasuredPlaces::of(&matrix.unwrap(), label, version).unwrap();
        self.world.apply(Event::Places(places))
    }

    fn name(&mut self, path: Path) -> String {
        let level = |number: u32| {
            if number == 0 {
                return "-".to_owned();
            }
            let labels = self.labels.values().flatten();
            let mut values =
                labels.filter(|label| Place::of_labels(&[(*label).clone()]).path.contains(&number));
            if let Some((_, value)) = values.next() {
                return value.clone();
            }
            let known = self.measured.iter().position(|known| *known == number);
            let index = known.unwrap_or_else(|| {
                self.measured.push(number);
                self.measured.len() - 1
            });
            format!("measured{}", index + 1)
        };
        path.map(level).join("/")
    }

    fn join(&mut self, name: &str) -> Vec<Effect> {
        let incarnation = *self.incarnations.entry(name.to_owned()).or_insert(1);
        let labels = self.labels.get(name).cloned().unwrap_or_default();
        self.receive(NodeInfo { labels, ..info(name, incarnation) })
    }

    fn receive(&mut self, info: NodeInfo) -> Vec<Effect> {
        let name = info.node.clone();
        let (reception, effects) = self.world.receive(info);
        match reception {
            Reception::Accepted => {}
            Reception::Replaces => self.receptions.push(format!("{name} replaced")),
            Reception::Refused(error) => {
                self.receptions.push(format!("{name} refused {:?}", error.code()))
            }
        }
        effects
    }

    fn publish(
        &mut self,
        name: &str,
        object: &str,
        state: LocationState,
        retention: Retention,
        from: Option<&str>,
    ) -> Vec<Effect> {
        let (object, put) = parse_object(object);
        let publish = Publish {
            pulling_from: from.map(node),
            ..publication(object, put.0, state, retention)
        };
        self.world.send(name, ToShard::Publish(publish))
    }

    fn unpublish(&mut self, name: &str, object: &str, reason: UnpublishReason) -> Vec<Effect> {
        let (object, put) = parse_object(object);
        self.world.send(name, ToShard::Unpublish { id: id(object), put, reason })
    }

    fn give_back(&mut self, name: &str, outcome: PullOutcome) -> Vec<Effect> {
        let grant = self.slots[name];
        self.world.send(name, ToShard::ReturnSlot { grant, outcome })
    }

    fn render(&mut self, effect: Effect) -> Option<String> {
        let (node, message) = match effect {
            Effect::Send { node, message } => (node, message),
            // The message to the receiver says the same as `Granted`. `PlaceKeysDiffer` is for the
            // log.
            Effect::Granted { .. } | Effect::PlaceKeysDiffer { .. } => return None,
        };
        Some(match message {
            ToStore::Published { verdict: Verdict::Accepted, .. } => return None,
            ToStore::Published { verdict: Verdict::Cyclic { sender }, .. } => {
                format!("{node} leave {sender}")
            }
            ToStore::Published { verdict: Verdict::Conflict { equality, .. }, .. } => {
                match equality {
                    Equality::Unknown { holder: Some((holder, _)) } => {
                        format!("{node} conflict compare {holder}")
                    }
                    Equality::Unknown { holder: None } => format!("{node} conflict compare nobody"),
                    Equality::Equal | Equality::Different => {
                        format!("{node} conflict {equality:?}")
                    }
                }
            }
            ToStore::Published { verdict, .. } => format!("{node} verdict {verdict:?}"),
            ToStore::Granted(grant) => {
                self.slots.insert(node.to_string(), grant.grant);
                format!("{node} from {} {:?} {:?}", grant.sender, grant.sender_state, grant.reason)
            }
            ToStore::Inline { bytes, .. } => format!("{node} inline {}", bytes.escape_ascii()),
            ToStore::Failed { error, .. } => {
                let code: ErrorCode = error.code();
                format!("{node} failed {code:?}")
            }
            ToStore::Drop { id, put, reason } => format!("{node} drop {id}/{} {reason:?}", put.0),
            ToStore::GiveWay { .. } => format!("{node} gives way"),
            ToStore::Placed(Placed { path, .. }) => format!("{node} is in {}", self.name(path)),
            ToStore::Promote { id, .. } => format!("{node} promote {id}"),
            ToStore::Shards(list) => format!("{node} shards {list}"),
            ToStore::Replicate(Replicate { id, .. }) => format!("{node} replicate {id}"),
            ToStore::Replication(Replication { id, copies, nodes, .. }) => {
                format!("{node} has {copies} copies of {id} at {nodes} nodes")
            }
            ToStore::TakeOver { id, bytes, .. } => {
                format!("{node} take over {id} {}", bytes.escape_ascii())
            }
            ToStore::DeleteDone { put: Some(put), .. } => format!("{node} deleted {}", put.0),
            ToStore::DeleteDone { put: None, .. } => format!("{node} deleted nothing"),
            ToStore::Locations { locations, .. } => {
                let state = match &locations.object {
                    None => "unknown".to_owned(),
                    Some(object) if object.lost => "lost".to_owned(),
                    Some(object) => format!("put {}", object.put.0),
                };
                let places = locations.locations.iter();
                let places = places.map(|place| format!(" {}:{:?}", place.node, place.state));
                format!("{node} sees {state}{}", places.collect::<String>())
            }
        })
    }
}

fn configure(lines: &[&str]) -> ShardConfig {
    let mut config = ShardConfig { warm_up: Duration::ZERO, ..ShardConfig::default() };
    for line in lines {
        match line.split_whitespace().collect::<Vec<&str>>()[..] {
            ["slots", slots] => config.limits.slots_per_location = slots.parse().unwrap(),
            ["warm-up", millis] => config.warm_up = Duration::from_millis(millis.parse().unwrap()),
            _ => {}
        }
    }
    config
}

fn parse_object(text: &str) -> (&str, PutId) {
    let (object, put) = text.split_once('/').unwrap_or((text, "1"));
    (object, PutId(put.parse().unwrap()))
}
