use std::io;

use hoplite_core::session::{CONNECT_TIMEOUT, STORE_PINGS};
use hoplite_net::opening::Caller;
use hoplite_net::{Credentials, FrameReader, FrameWriter, Route};
use hoplite_proto::bounds::MAX_SHARD_FRAME_BYTES;
use hoplite_proto::v1::directory_client::DirectoryClient;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

#[derive(Debug, Clone)]
pub(crate) struct ShardLink {
    pub(crate) address: String,
    uri: Uri,
    channel: Channel,
    pub(crate) credentials: Credentials,
    caller: Caller,
    route: Route,
}

impl ShardLink {
    /// Connects at first use. `None` if `address` is not `HOST:PORT`.
    pub(crate) fn new(
        address: &str,
        credentials: &Credentials,
        caller: Caller,
        route: Route,
    ) -> Option<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
        endpoint.uri().port()?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(STORE_PINGS.interval)
            .keep_alive_timeout(STORE_PINGS.timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20);
        let channel = credentials.channel(&endpoint, caller.clone(), route.clone());
        let uri = endpoint.uri().clone();
        Some(Self {
            address: address.to_owned(),
            uri,
            channel,
            credentials: credentials.clone(),
            caller,
            route,
        })
    }

    pub(crate) fn client(&self) -> DirectoryClient<Channel> {
        DirectoryClient::new(self.channel.clone()).max_decoding_message_size(MAX_SHARD_FRAME_BYTES)
    }

    pub(crate) const fn is_in_process(&self) -> bool {
        matches!(self.route, Route::InProcess(_))
    }

    pub(crate) async fn connect(&self) -> io::Result<(FrameReader, FrameWriter)> {
        self.credentials.connect_direct(&self.uri, &self.caller, &self.route).await
    }
}
