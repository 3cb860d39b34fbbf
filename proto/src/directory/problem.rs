use hoplite_core::error::Plane;
use hoplite_core::id::ObjectId;
use hoplite_core::problem::{MAX_PLACES, Place, Problem, ProblemKind};

use crate::bounds::{decode_optional_node, encode_id, encode_optional_node};
use crate::enumeration::enumeration;
use crate::error::shown;
use crate::v1;
use crate::v1::problem::Kind;

/// Encodes problems.
pub fn encode_problems(problems: &[Problem]) -> Vec<v1::Problem> {
    let place = |place: &Place| v1::problem::Place {
        node: encode_optional_node(place.node.as_ref()),
        object: place.object.as_ref().map(encode_id).unwrap_or_default(),
        text: place.text.clone(),
    };
    let problem = |problem: &Problem| v1::Problem {
        kind: encode_kind(problem.kind),
        count: problem.count as u64,
        places: problem.places.iter().map(place).collect(),
    };
    problems.iter().map(problem).collect()
}

/// Decodes a shard's problems, without unknown or repeated kinds and invalid nodes.
pub fn decode_problems(problems: Vec<v1::Problem>) -> Vec<Problem> {
    let place = |place: v1::problem::Place| {
        let node = decode_optional_node(&place.node).ok()?;
        Some(Place { node, object: ObjectId::new(&place.object).ok(), text: shown(&place.text) })
    };
    let problem = |problem: v1::Problem| {
        let places: Vec<Place> =
            problem.places.into_iter().take(MAX_PLACES).filter_map(place).collect();
        let count = usize::try_from(problem.count).unwrap_or(usize::MAX).max(places.len());
        Some(Problem { kind: decode_kind(problem.kind, Plane::Control).ok()?, count, places })
    };
    let mut known: Vec<Problem> =
        problems.into_iter().take(ProblemKind::ALL.len()).filter_map(problem).collect();
    known.sort_by_key(|problem| problem.kind);
    known.dedup_by_key(|problem| problem.kind);
    known
}

enumeration!(encode_kind, decode_kind: ProblemKind, Kind, "kind of problem" {
    Full, Disk, Shard, Peer, Incompatible, Lost, Copies, Wait, Failing, NearlyFull, Slow, Routes,
    Refused, Left,
});

#[cfg(test)]
mod tests {
    use hoplite_core::NodeId;

    use super::*;
    use crate::bounds::MAX_TEXT_BYTES;

    #[test]
    fn problems_round_trip() {
        let place = Place {
            node: NodeId::new("a").ok(),
            object: ObjectId::new("x").ok(),
            text: "y".into(),
        };
        let problem = |kind| Problem { kind, count: 9, places: vec![place.clone()] };
        let all: Vec<Problem> = ProblemKind::ALL.into_iter().map(problem).collect();
        assert_eq!(decode_problems(encode_problems(&all)), all);
    }

    #[test]
    fn problems_of_a_hostile_shard_are_bounded() {
        let place = || v1::problem::Place { text: "\u{e4}".repeat(1 << 20), ..Default::default() };
        let invalid = v1::problem::Place { node: "/".to_owned(), ..Default::default() };
        let places =
            vec![invalid, place(), place(), place(), place(), place(), place(), place(), place()];
        let hostile = |kind| v1::Problem { kind, count: 0, places: places.clone() };
        let found = decode_problems(vec![hostile(1), hostile(1), hostile(99), hostile(-1)]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].kind, found[0].count, found[0].places.len()),
            (ProblemKind::Full, 7, 7)
        );
        assert!(found[0].places.iter().all(|place| place.text.len() <= MAX_TEXT_BYTES));
    }
}
