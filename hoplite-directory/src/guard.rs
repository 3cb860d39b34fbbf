//! Lets only those calls through whose caller knows the token.

use std::sync::Arc;

use hoplite_core::error::Error;
use hoplite_daemon::{Token, is_notable};
use hoplite_proto::status::to_status;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::connection::{Peer, Strangers};
use crate::events::Events;

/// What stands in front of each service but that of health, which has nothing to hide and is for those who start and
/// watch daemons without being of the cluster.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    token: Option<Token>,
    strangers: Arc<Strangers>,
    events: Events,
}

impl Guard {
    /// A guard that asks for `token`, or for nothing if there is none.
    pub(crate) fn new(token: Option<Token>, events: Events, strangers: Arc<Strangers>) -> Self {
        Self { token, strangers, events }
    }
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let peer = request.extensions().get::<Peer>();
        let reason = match (&self.token, request.metadata().get("authorization")) {
            (None, _) => None,
            (Some(token), Some(presented)) if token.is_bearer(presented.as_bytes()) => None,
            (Some(_), Some(_)) => Some("another token than that of the directory"),
            (Some(_), None) => Some("the directory has a token, and the call has none"),
        };
        let Some(reason) = reason else {
            if let Some(peer) = peer {
                peer.admit();
            }
            return Ok(request);
        };
        if is_notable(&self.strangers.calls) {
            let address = peer.map(Peer::address);
            tracing::warn!(?address, reason, "refused a call");
        }
        let from = peer.map_or_else(|| "somebody".to_owned(), |peer| peer.address().to_string());
        self.events.push_stranger(format!("refused a call of {from}: {reason}"));
        Err(to_status(&Error::permission_denied(reason)))
    }
}
