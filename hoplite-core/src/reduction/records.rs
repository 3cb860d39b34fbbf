use std::collections::VecDeque;

use crate::id::ObjectId;
use crate::message::ReduceRecord;

/// Most records of past reduces, at some 200 bytes each.
const MAX_RECORDS: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Records(VecDeque<ReduceRecord>);

impl Records {
    pub(super) fn latest(&self, target: &ObjectId) -> Option<&ReduceRecord> {
        self.0.iter().rev().find(|record| record.target == *target)
    }

    pub(super) fn push(&mut self, record: ReduceRecord) {
        if self.0.len() >= MAX_RECORDS {
            self.0.pop_front();
        }
        self.0.push_back(record);
    }
}
