use super::source::SourcePlace;
use super::state::Reduction;
use crate::id::{NodeId, ObjectId};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct MissingInputs {
    pub(crate) absent: Vec<(usize, ObjectId)>,
    pub(crate) unusable: Vec<NodeId>,
    pub(crate) fetched: Vec<ObjectId>,
    pub(crate) working: Vec<NodeId>,
}

impl Reduction {
    pub(super) fn missing_inputs(&self) -> MissingInputs {
        let mut missing_inputs = MissingInputs::default();
        let is_short = self.joined.len() < self.request.count;
        for (index, (id, source)) in self.request.sources.iter().zip(&self.sources).enumerate() {
            match source.place {
                SourcePlace::Fetching(_) => missing_inputs.fetched.push(id.clone()),
                SourcePlace::Apart if is_short && !source.is_known() => {
                    missing_inputs.absent.push((index, id.clone()))
                }
                SourcePlace::Apart if is_short => {
                    missing_inputs.unusable.extend(source.avoided().cloned())
                }
                _ => {}
            }
        }
        let working = self.tree.iter().filter(|(_, vertex)| !vertex.state.phase.has_all());
        missing_inputs.working = working.map(|(_, vertex)| vertex.state.node.clone()).collect();
        missing_inputs.working.sort();
        missing_inputs.working.dedup();
        missing_inputs
    }
}
