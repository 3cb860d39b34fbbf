use hoplite_core::error::Error;
use hoplite_core::node::{self, Inspection};

use super::Role;

pub(super) fn check_right(role: Role, request: &node::Request) -> Result<(), Error> {
    match (role, request) {
        (Role::Reader, request) if !request.is_for_readers() => {
            Err(Error::permission_denied("this user may only read"))
        }
        (
            Role::Writer,
            node::Request::Drain { .. } | node::Request::Inspect(Inspection::DrainNode { .. }),
        ) => Err(Error::permission_denied("only root and the user of the store may drain stores")),
        (Role::Writer, node::Request::Inspect(Inspection::ChangeShards { .. })) => {
            Err(Error::permission_denied(
                "only root and the user of the store may change the directory's shards",
            ))
        }
        (Role::Writer, node::Request::SetQuota { .. }) => {
            Err(Error::permission_denied("only root and the user of the store may change quotas"))
        }
        (Role::Writer, node::Request::Inspect(Inspection::Probe { options, .. }))
            if options.apply =>
        {
            Err(Error::permission_denied("only root and the user of the store may apply a probe"))
        }
        _ => Ok(()),
    }
}
