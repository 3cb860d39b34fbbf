//! Scenarios as text: the events of a node, and its reactions.
//!
//! Each paragraph is a scenario of an empty node called `here`, with slow links and one connected
//! shard. A line is a comment (`#`), an action, or a reaction of the node to the action before it
//! (`->`). Times are in milliseconds. Objects are of `f32` and written `x`, or `x/2` for put 2 of
//! `x`. Clients are `A` and `B`. With `HOPLITE_WRITE_CASES=1` the tests write the reactions into
//! the files.
//!
//! ```text
//! put X | fetch X | fill X     setup, not shown: a put or get of B, or a put that fills the memory
//! chain A T a b c X.. [..]     setup, not shown: A's reduce to T, a at n1, hops for b, c at n2, n3
//! get A X [started] [within T] | create A X | seal A X | cancel A | release A X | gone A
//! delete A X
//! reduce A T X.. [first N] [fixed] [within T] [silent]
//!                              the directory knows no source, or does not answer
//! grant X NODE | inline X | fail X
//!                              the directory answers the query: a sender, the bytes, or a loss
//! drop X deleted | drop X lost | promote X
//! conflict X different | conflict X NODE
//!                              an earlier put of X differs, or must be compared at NODE
//! compared X equal | different | unknown
//! delete-elsewhere X           another node deletes X, which does not exist yet
//! accept                       the directory accepts all publications
//! pulled X [BYTES OUTCOME]     the pull ends: complete, or with OUTCOME after BYTES
//! serve X [NODE]               another node requests a copy
//! ready X NODE.. | growing X NODE.. | partial X NODE.. | small X NODE | unknown X | lost X
//!                              the directory sends the locations of X to subscribers
//! done NODE | broken NODE      the hop at NODE is complete, or its connection is lost
//! refused NODE full | stopping the store at NODE has no room for the hop, or stops
//! failed NODE INDEX OUTCOME    an input of the hop at NODE has ended
//! combined X [BYTES [INDEX OUTCOME]]
//!                              the combination ends: complete, or after BYTES because of an input
//! stopped X BYTES              a cancelled combination ends
//! mended X N                   checks that N failures were repaired until X was complete
//! wait T | shut-down
//! empty                        checks that nothing is left
//! ```
//!
//! Subscriptions are not shown. A scenario may begin with places, `label NODE KEY=VALUE..`.
//! `slow NODE PEER..` sets a node's slow links for later answers of the directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use hoplite_core::node::*;
use hoplite_core::shard::{
    DeleteWait, DropReason, Equality, LocationState, PullOutcome, ToShard, ToStore, Verdict,
};
use hoplite_core::topology::place::{EVERYWHERE, Place};
use hoplite_core::{Error, NodeId, ObjectId, PutId};

use crate::harness::*;
use crate::reducing::*;

#[test]
fn gets() {
    run_file("gets");
}

#[test]
fn puts() {
    run_file("puts");
}

#[test]
fn reduces() {
    run_file("reduces");
}

#[test]
fn reduces_with_failures() {
    run_file("reduce_failures");
}

#[test]
fn reduces_in_racks() {
    run_file("reduce_places");
}

#[test]
fn reduces_where_links_are_slow() {
    run_file("reduce_slow_links");
}

fn run_file(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cases/{name}.txt"));
    let text = fs::read_to_string(&path).expect("the file is there");
    let happened = text.split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim_end).collect();
        Scenario::run(&lines).join("\n")
    });
    let happened: Vec<String> = happened.collect();
    if std::env::var_os("HOPLITE_WRITE_CASES").is_some() {
        return fs::write(&path, happened.join("\n\n") + "\n").expect("the file can be written");
    }
    for (written, happened) in text.trim_end().split("\n\n").zip(&happened) {
        assert!(written == happened, "what happened is:\n{happened}\n\nand not:\n{written}");
    }
    assert!(happened.len() > 2, "the file has scenarios");
}

struct Scenario {
    h: Harness,
    places: BTreeMap<String, Place>,
    slow: BTreeMap<String, Vec<NodeId>>,
    latest: BTreeMap<ClientId, CallId>,
    sources: BTreeMap<CallId, Vec<String>>,
    copies: BTreeMap<CopyId, String>,
    views: BTreeMap<(ClientId, String), CopyId>,
    comparisons: BTreeMap<String, CopyId>,
    pulls: BTreeMap<String, PullId>,
    combines: BTreeMap<String, CombineId>,
    hops: BTreeMap<String, HopId>,
}

impl Scenario {
    fn run(lines: &[&str]) -> Vec<String> {
        let labels = lines.iter().filter_map(|line| line.strip_prefix("label ")?.split_once(' '));
        let place = |(node, labels): (&str, &str)| {
            let labels = labels.split_whitespace().filter_map(|label| label.split_once('='));
            let labels: Vec<_> =
                labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            (node.to_owned(), Place::of_labels(&labels))
        };
        let places: BTreeMap<String, Place> = labels.map(place).collect();
        let mut scenario = Self {
            h: Harness::with_slow_links_at(
                places.get("here").map_or(EVERYWHERE, |place| place.path),
            ),
            places,
            slow: BTreeMap::new(),
            latest: BTreeMap::new(),
            sources: BTreeMap::new(),
            copies: BTreeMap::new(),
            views: BTreeMap::new(),
            comparisons: BTreeMap::new(),
            pulls: BTreeMap::new(),
            combines: BTreeMap::new(),
            hops: BTreeMap::new(),
        };
        let mut happened = Vec::new();
        for line in lines.iter().filter(|line| !line.starts_with("->")) {
            happened.push((*line).to_owned());
            if line.starts_with('#') {
                continue;
            }
            scenario.h.effects.clear();
            scenario.act(&line.split_whitespace().collect::<Vec<_>>());
            let is_before = |action: &&str| ["put", "fetch", "fill", "chain"].contains(action);
            let is_shown = line.split(' ').next().filter(is_before).is_none();
            for effect in std::mem::take(&mut scenario.h.effects) {
                let shown = scenario.render(effect).filter(|_| is_shown);
                happened.extend(shown.map(|text| format!("-> {text}")));
            }
        }
        happened
    }

    fn act(&mut self, words: &[&str]) {
        match words {
            ["label", ..] => {}
            ["slow", "here", peers @ ..] => {
                let peers = peers.iter().map(|peer| node_id(peer)).collect();
                self.h.event(Event::SlowLinks { peers });
            }
            ["slow", node, peers @ ..] => {
                let peers = peers.iter().map(|peer| node_id(peer)).collect();
                self.slow.insert((*node).to_owned(), peers);
            }
            ["put", object] => drop(self.h.put_f32(object, SIZE)),
            ["fill", object] => drop(self.h.put_f32(object, CAPACITY - 64)),
            ["chain", name, target, sources @ ..] => {
                self.reduce(name, target, sources);
                for (source, node) in sources.iter().zip(["n1", "n2", "n3"]) {
                    self.located("ready", source, &[node]);
                }
            }
            ["fetch", object] => {
                let (name, put) = parse(object);
                self.h.fetch_f32(name, put);
            }
            ["mended", target, times] => {
                let record = self.h.node.reduce_record(&id(target)).expect("it is remembered");
                assert_eq!(record.mendings, number::<u32>(times), "{record:?}");
            }
            ["wait", millis] => self.h.pass(duration(millis)),
            ["shut-down"] => self.h.event(Event::ShutDown),
            ["empty"] => {
                self.h.assert_empty();
                assert!(self.h.subscriptions.is_empty(), "{:?}", self.h.subscriptions);
            }
            _ => self.act_as_client(words),
        }
    }

    fn act_as_client(&mut self, words: &[&str]) {
        match words {
            ["get", name, object, options @ ..] => {
                let (mut until, mut timeout) = (Until::Complete, LONG);
                match options {
                    [] => {}
                    ["started"] => until = Until::Started,
                    ["within", millis] => timeout = duration(millis),
                    _ => panic!("{options:?}"),
                }
                self.call(
                    name,
                    Request::Get { id: id(object), until, timeout, allow_stale: false },
                );
            }
            ["create", name, object] => {
                let request = Request::Create {
                    id: id(object),
                    size_bytes: SIZE,
                    metadata: f32s(),
                    timeout: LONG,
                };
                self.call(name, request);
            }
            ["seal", name, object] => {
                let copy = self.views[&(client(name), (*object).to_owned())];
                self.call(name, Request::Seal { copy, timeout: LONG });
            }
            ["delete", name, object] => {
                self.call(
                    name,
                    Request::Delete {
                        ids: vec![id(object)],
                        timeout: LONG,
                        wait: DeleteWait::Reachable,
                    },
                );
            }
            ["cancel", name] => {
                let call = self.latest[&client(name)];
                self.h.request(client(name), Request::Cancel { call });
            }
            ["release", name, object] => {
                let copy = self.views[&(client(name), (*object).to_owned())];
                self.h.release(client(name), copy);
            }
            ["gone", name] => self.h.gone(client(name)),
            ["reduce", name, target, rest @ ..] => self.reduce(name, target, rest),
            _ => self.act_as_directory(words),
        }
    }

    fn act_as_directory(&mut self, words: &[&str]) {
        match words {
            ["grant", object, sender] => {
                let (name, put) = parse(object);
                let (shard, query) = self.h.query_of(name);
                self.h.grant_as(shard, query.request, (name, put, SIZE, f32s()), sender);
            }
            ["inline", object] => {
                let (name, put) = parse(object);
                self.h.answer_small(name, put);
            }
            ["fail", object] => {
                let (shard, query) = self.h.query_of(object);
                let error = Error::ObjectLost { id: id(object) };
                let message = ToStore::Failed { request: query.request, error };
                self.h.event(Event::FromShard { shard, message });
            }
            ["drop", object, reason] => {
                let (name, put) = parse(object);
                let put = self.put_here(name).filter(|_| !object.contains('/')).unwrap_or(put);
                let reason = match *reason {
                    "deleted" => DropReason::Deleted,
                    "lost" => DropReason::Lost,
                    "superseded" => DropReason::Superseded,
                    _ => panic!("{reason}"),
                };
                self.h.drop_put(0, name, PutId(put), reason);
            }
            ["conflict", object, equality] => {
                let (name, put) = parse(object);
                let equality = match *equality {
                    "different" => Equality::Different,
                    node => Equality::Unknown { holder: Some((node_id(node), address(node))) },
                };
                let published = self.h.publications();
                let (shard, publish) = published.last().expect("it was published");
                assert_eq!(publish.id, id(name), "what was published latest is another object");
                self.h.verdict(*shard, publish, Verdict::Conflict { winner: PutId(put), equality });
            }
            ["compared", object, outcome] => {
                let equal = match *outcome {
                    "equal" => Some(true),
                    "different" => Some(false),
                    "unknown" => None,
                    _ => panic!("{outcome}"),
                };
                self.h.event(Event::Compared { copy: self.comparisons[*object], equal });
            }
            ["promote", object] => {
                let (name, put) = parse(object);
                let message = ToStore::Promote { id: id(name), put: PutId(put) };
                self.h.event(Event::FromShard { shard: 0, message });
            }
            ["delete-elsewhere", object] => self.h.tell_deleted(object),
            ["accept"] => self.h.accept_all(),
            [
                state @ ("ready" | "growing" | "partial" | "small" | "unknown" | "lost"),
                object,
                nodes @ ..,
            ] => {
                self.located(state, object, nodes);
            }
            _ => self.act_as_data_plane(words),
        }
    }

    fn act_as_data_plane(&mut self, words: &[&str]) {
        match words {
            ["pulled", object] => self.pulled(object, SIZE, PullOutcome::Complete),
            ["pulled", object, bytes, why] => self.pulled(object, number(bytes), outcome(why)),
            ["serve", object, peer @ ..] => {
                let (name, put) = parse(object);
                let peer = peer.first().unwrap_or(&"peer");
                self.h.ask_to_serve_node(peer, id(name), PutId(put), false);
            }
            ["done", node] => self.hop_said(node, HopReport::Complete),
            ["broken", node] => self.hop_said(node, HopReport::Failed(HopFailure::Unreachable)),
            ["refused", node, why] => {
                let error = match *why {
                    "full" => Error::StoreFull {
                        needed_bytes: SIZE,
                        free_bytes: 0,
                        capacity_bytes: CAPACITY,
                        holders: String::new(),
                    },
                    "stopping" => Error::ShuttingDown,
                    _ => panic!("{why}"),
                };
                self.hop_said(node, HopReport::Failed(HopFailure::Refused(error)));
            }
            ["failed", node, index, why] => {
                let failure = HopFailure::Input { index: number(index), outcome: outcome(why) };
                self.hop_said(node, HopReport::Failed(failure));
            }
            ["combined", object] => self.combined(object, SIZE, CombineOutcome::Complete),
            ["combined", object, bytes] => {
                self.combined(object, number(bytes), CombineOutcome::Complete);
            }
            ["combined", object, bytes, index, why] => {
                let outcome =
                    CombineOutcome::InputFailed { index: number(index), outcome: outcome(why) };
                self.combined(object, number(bytes), outcome);
            }
            ["stopped", object, bytes] => {
                self.combined(object, number(bytes), CombineOutcome::Cancelled);
            }
            _ => panic!("{words:?}"),
        }
    }

    fn call(&mut self, name: &str, request: Request) {
        let (client, call) = self.h.request(client(name), request);
        self.latest.insert(client, call);
    }

    fn reduce(&mut self, name: &str, target: &str, rest: &[&str]) {
        let is_option = |word: &&str| ["first", "fixed", "within", "silent"].contains(word);
        let (names, options) = rest.split_at(rest.iter().position(is_option).unwrap_or(rest.len()));
        let mut request = reduce(target, names);
        let mut is_silent = false;
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match *option {
                "first" => request.count = options.next().map_or(0, |count| number(count)),
                "fixed" => request.order = ReduceOrder::Fixed,
                "within" => {
                    request.timeout = options.next().map_or(LONG, |millis| duration(millis))
                }
                _ => is_silent = true,
            }
        }
        let (client, call) = self.h.request(client(name), Request::Reduce(request));
        self.latest.insert(client, call);
        self.sources.insert(call, names.iter().map(|name| (*name).to_owned()).collect());
        if !is_silent {
            names.iter().chain([&target]).for_each(|name| self.h.tell(unknown(name)));
        }
    }

    fn located(&mut self, state: &str, object: &str, nodes: &[&str]) {
        let (name, put) = parse(object);
        let here = || self.put_here(name).expect("it is here");
        let put = if nodes.contains(&"here") { here() } else { put };
        let mut news = match state {
            "ready" => complete(name, put, nodes),
            "growing" => located(name, put, LocationState::Producing, nodes),
            "partial" => located(name, put, LocationState::Partial, nodes),
            "small" => inline(name, put),
            "unknown" => unknown(name),
            _ => lost(name, put),
        };
        for location in &mut news.locations {
            location.path =
                self.places.get(location.node.as_str()).map_or(EVERYWHERE, |place| place.path);
            location.slow_peers =
                self.slow.get(location.node.as_str()).cloned().unwrap_or_default();
        }
        self.h.tell(news);
    }

    fn put_here(&self, name: &str) -> Option<u64> {
        let mut local = self.copies.keys().filter_map(|copy| self.h.node.object_of(*copy));
        local.find(|(of, _)| **of == id(name)).map(|(_, put)| put.0)
    }

    fn pulled(&mut self, object: &str, valid_bytes: u64, outcome: PullOutcome) {
        let (name, put) = parse(object);
        let pull = self.pulls[&format!("{name}/{put}")];
        self.h.event(Event::PullEnded { pull, valid_bytes, outcome });
    }

    fn combined(&mut self, object: &str, valid_bytes: u64, outcome: CombineOutcome) {
        let combine = self.combines[object];
        self.h.event(Event::CombineEnded { combine, valid_bytes, outcome });
    }

    fn hop_said(&mut self, node: &str, report: HopReport) {
        let hop = self.hops[node];
        self.h.event(Event::HopReported { hop, report });
    }

    fn name_of(&mut self, copy: CopyId) -> String {
        match self.h.node.object_of(copy) {
            Some((id, put)) if *id == ObjectId::of_hop(put) => "hop".to_owned(),
            Some((id, _)) => id.to_string(),
            None => self.copies.get(&copy).map_or("?".to_owned(), String::clone),
        }
    }

    fn render(&mut self, effect: Effect) -> Option<String> {
        Some(match effect {
            Effect::Reply { client, call, response } => {
                let answer = match response {
                    Ok(response) => self.answer(client, call, response),
                    Err(error) => format!("fails {:?}", error.code()),
                };
                format!("{} {answer}", if client == A { "A" } else { "B" })
            }
            Effect::ToShard {
                message: ToShard::Subscribe { .. } | ToShard::Unsubscribe { .. },
                ..
            } => {
                return None;
            }
            Effect::ToShard { message: ToShard::Query(query), .. } => {
                let resume = query.resume.map_or(String::new(), |put| format!(" resume {}", put.0));
                let avoid: String =
                    query.avoid.iter().map(|node| format!(" avoid {node}")).collect();
                format!("query {}{resume}{avoid}", query.id)
            }
            Effect::ToShard { message, .. } => in_short(&message),
            Effect::CopyOpened { copy, .. } => {
                let name = self.name_of(copy);
                self.copies.insert(copy, name);
                return None;
            }
            Effect::CopyClosed { copy } => format!("free {}", self.name_of(copy)),
            Effect::StartPull { pull, id, put, sender, offset_bytes, .. } => {
                self.pulls.insert(format!("{id}/{}", put.0), pull);
                format!("pull {id}/{} from {sender}{}", put.0, from(offset_bytes))
            }
            Effect::CancelPull { pull } => {
                let pulled = self.pulls.iter().find(|(_, of)| **of == pull);
                format!("stop the pull of {}", pulled.map_or("?", |(id, _)| id))
            }
            Effect::ServeAccepted { copy, .. } => format!("serve {}", self.name_of(copy)),
            Effect::ServeRefused { .. } => "refuse".to_owned(),
            Effect::StartCombine { combine, copy, offset_bytes, inputs, .. } => {
                let name = self.name_of(copy);
                self.combines.insert(name.clone(), combine);
                let started = Combine { combine, copy, offset_bytes, inputs };
                format!(
                    "combine {name}: {}{}",
                    self.h.inputs(&started).join(", "),
                    from(offset_bytes)
                )
            }
            Effect::CancelCombine { combine } => {
                let combined = self.combines.iter().find(|(_, of)| **of == combine);
                format!("stop {}", combined.map_or("?", |(id, _)| id))
            }
            Effect::StartHop { hop, node, spec, .. } => {
                self.hops.insert(node.to_string(), hop);
                let offset_bytes = spec.offset_bytes;
                let asked = Asked { hop, node: node.to_string(), spec };
                format!("hop at {node}: {}{}", hop_inputs(&asked).join(", "), from(offset_bytes))
            }
            Effect::EndHop { hop } => {
                let ended = self.hops.iter().find(|(_, of)| **of == hop);
                format!("end hop at {}", ended.map_or("?", |(node, _)| node))
            }
            Effect::Compare { copy, id, holder, .. } => {
                self.comparisons.insert(id.to_string(), copy);
                format!("compare {id} with {}", holder.0)
            }
            _ => return None,
        })
    }

    fn answer(&mut self, client: ClientId, call: CallId, response: Response) -> String {
        let mut refer = |verb: &str, view: ObjectView| {
            let name = self.name_of(view.copy);
            self.views.insert((client, name.clone()), view.copy);
            format!("{verb} {name}")
        };
        match response {
            Response::Created(view) => refer("may write", view),
            Response::Existing(view) => refer("compares", view),
            Response::Object(view) => refer("has", view),
            Response::Sealed => "has sealed".to_owned(),
            Response::Deleted { count, .. } => format!("has deleted {count}"),
            Response::Reduced { indices } => {
                let names: Vec<&str> =
                    indices.iter().map(|index| self.sources[&call][*index].as_str()).collect();
                format!("has reduced {}", names.join(", "))
            }
            other => format!("{other:?}"),
        }
    }
}

fn client(name: &str) -> ClientId {
    match name {
        "A" => A,
        "B" => B,
        _ => panic!("{name} is no client"),
    }
}

fn number<N: FromStr>(word: &str) -> N {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn duration(millis: &str) -> Duration {
    Duration::from_millis(number(millis))
}

fn parse(object: &str) -> (&str, u64) {
    let (name, put) = object.split_once('/').unwrap_or((object, "1"));
    (name, number(put))
}

fn outcome(word: &str) -> PullOutcome {
    match word {
        "unreachable" => PullOutcome::SenderUnreachable,
        "stalled" => PullOutcome::SenderStalled,
        "no-copy" => PullOutcome::SenderHasNoCopy,
        "corrupt" => PullOutcome::Corrupt,
        "cancelled" => PullOutcome::Cancelled,
        _ => panic!("{word}"),
    }
}

fn from(offset_bytes: u64) -> String {
    if offset_bytes == 0 { String::new() } else { format!(" from {offset_bytes} on") }
}
