use hoplite_core::error::{Plane, Result};
use hoplite_core::id::ObjectId;
use hoplite_core::node::{DrainReport, DrainState, MAX_UNMOVED, Unmoved};

use crate::bounds::{check_count, encode_id};
use crate::directory::{decode_optional_obstacle, encode_optional_obstacle};
use crate::enumeration::enumeration;
use crate::v1;

enumeration!(encode_state, decode_state: DrainState, v1::DrainState, "state of a drain" {
    None, Draining, Drained, Failed,
});

pub(crate) fn encode_drain(report: DrainReport) -> v1::DrainReport {
    let unmoved = report.unmoved.into_iter().map(|object| v1::drain_report::Unmoved {
        id: encode_id(&object.id),
        size_bytes: object.size_bytes,
        obstacle: encode_optional_obstacle(object.obstacle),
    });
    v1::DrainReport {
        state: encode_state(report.state),
        moved_objects: report.moved_objects,
        moved_bytes: report.moved_bytes,
        held_objects: report.held_objects,
        short_objects: report.short_objects,
        left_objects: report.left_objects,
        left_bytes: report.left_bytes,
        open_calls: report.open_calls,
        serves_directory: report.serves_directory,
        unmoved: unmoved.collect(),
    }
}

pub(crate) fn decode_drain(report: v1::DrainReport) -> Result<DrainReport> {
    check_count("objects that a drain has not moved", report.unmoved.len(), MAX_UNMOVED)?;
    let decode = |object: v1::drain_report::Unmoved| {
        Ok(Unmoved {
            id: ObjectId::new(&object.id)?,
            size_bytes: object.size_bytes,
            obstacle: decode_optional_obstacle(object.obstacle, Plane::Local)?,
        })
    };
    Ok(DrainReport {
        state: decode_state(report.state, Plane::Local)?,
        moved_objects: report.moved_objects,
        moved_bytes: report.moved_bytes,
        held_objects: report.held_objects,
        short_objects: report.short_objects,
        left_objects: report.left_objects,
        left_bytes: report.left_bytes,
        open_calls: report.open_calls,
        serves_directory: report.serves_directory,
        unmoved: report.unmoved.into_iter().map(decode).collect::<Result<_>>()?,
    })
}
