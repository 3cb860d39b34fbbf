//! The things for which a reduce waits, for error messages and reports.

use super::source::SourcePlace;
use super::state::Reduction;
use crate::id::{NodeId, ObjectId};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Lack {
    pub(crate) absent: Vec<(usize, ObjectId)>,
    pub(crate) unusable: Vec<NodeId>,
    pub(crate) fetched: Vec<ObjectId>,
    pub(crate) working: Vec<NodeId>,
}

impl Reduction {
    pub(super) fn lack(&self) -> Lack {
        let mut lack = Lack::default();
        let is_short = self.joined.len() < self.request.count;
        for (index, (id, source)) in self.request.sources.iter().zip(&self.sources).enumerate() {
            match source.place {
                SourcePlace::Fetching(_) => lack.fetched.push(id.clone()),
                SourcePlace::Apart if is_short && !source.is_known() => lack.absent.push((index, id.clone())),
                SourcePlace::Apart if is_short => lack.unusable.extend(source.avoided().cloned()),
                _ => {}
            }
        }
        let working = self.tree.iter().filter(|(_, vertex)| !vertex.state.phase.has_all());
        lack.working = working.map(|(_, vertex)| vertex.state.node.clone()).collect();
        lack.working.sort();
        lack.working.dedup();
        lack
    }
}
