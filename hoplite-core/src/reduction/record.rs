use super::state::Reduction;
use crate::message::ReduceRecord;
use crate::plan::link::LinkEstimate;
use crate::time::Time;

impl Reduction {
    pub(super) fn record(&self, link: LinkEstimate, now: Time) -> ReduceRecord {
        let plan = match &self.choice {
            None => "at the receiver, since all sources are there or small".to_owned(),
            Some(choice) => {
                let other =
                    choice.runner_up.as_ref().map_or(String::new(), |(schedule, estimate)| {
                        format!("; the next best is a {schedule}, {estimate:.1?}")
                    });
                let crossings = match choice.schedule.entry() {
                    Some(_) => {
                        format!("; objects between groups: {}", self.tree.crossings(self.own))
                    }
                    None => String::new(),
                };
                let rerouting =
                    self.rerouting.remark.map_or(String::new(), |remark| format!("; {remark}"));
                let (schedule, estimate) = (&choice.schedule, choice.estimate);
                format!("{schedule}, estimated to take {estimate:.1?}{other}{crossings}{rerouting}")
            }
        };
        let note = self
            .fallback
            .as_ref()
            .map_or(String::new(), |fallback| format!("no session, since {}; ", fallback.reason));
        let plan = format!("{note}{plan}");
        ReduceRecord {
            target: self.request.target.clone(),
            op: self.request.op,
            reduced: (self.joined.len(), self.sources.len()),
            hops: self.tree.iter().filter(|(_, vertex)| !vertex.is_plain()).count(),
            plan,
            link,
            elapsed: now.since(self.started),
            mendings: self.faults.repairs,
            restarts: self.faults.restarts,
            is_running: false,
            position: None,
        }
    }
}
