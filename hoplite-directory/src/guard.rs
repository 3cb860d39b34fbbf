//! Refuses visitors: gRPC clients without the directory's token.

use std::sync::Arc;

use hoplite_core::error::Error;
use hoplite_proto::status::to_status;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::connection::Peer;
use crate::events::Events;
use crate::refusals::Refusals;

const REASON: &str = "the directory has a token, and the connection has shown none";

#[derive(Debug, Clone)]
pub(crate) struct Guard {
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) events: Events,
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let error = Error::permission_denied(REASON);
        if let Some(peer) = request.extensions().get::<Peer>() {
            self.refusals.report(&self.events, *peer, &error);
        }
        Err(to_status(&error))
    }
}
