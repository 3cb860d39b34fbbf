use std::collections::{BTreeMap, BTreeSet};

use crate::message::{CallKey, CopyId, DrainReport, DrainState};
use crate::shard::Obstacle;
use crate::time::Time;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Left {
    /// `true` once a shard has reported that other stores have too few copies.
    pub(crate) is_reported: bool,
    pub(crate) obstacle: Option<Obstacle>,
}

#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) state: DrainState,
    pub(crate) began: Time,
    pub(crate) deadline: Time,
    pub(crate) callers: BTreeSet<CallKey>,
    pub(crate) left: BTreeMap<CopyId, Left>,
    pub(crate) without_node: usize,
    pub(crate) moved_objects: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) held_objects: u64,
    pub(crate) short_objects: u64,
    pub(crate) last: Option<DrainReport>,
}

impl Drain {
    pub(crate) fn set_obstacle(&mut self, copy: CopyId, obstacle: Option<Obstacle>) {
        let earlier = self.left.insert(copy, Left { is_reported: true, obstacle });
        let earlier = earlier.and_then(|left| left.obstacle);
        let lacks_node =
            |obstacle: Option<Obstacle>| usize::from(obstacle == Some(Obstacle::NoNode));
        self.without_node = self.without_node + lacks_node(obstacle) - lacks_node(earlier);
    }

    pub(crate) fn remove(&mut self, copy: CopyId) {
        if self.left.contains_key(&copy) {
            self.set_obstacle(copy, None);
            self.left.remove(&copy);
        }
    }
}
