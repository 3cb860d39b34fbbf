use std::pin::Pin;
use std::time::Duration;

use futures::stream::{Stream, StreamExt};
use hoplite_core::error::Error;
use hoplite_core::id::{MAX_OBJECT_ID_BYTES, ObjectId};
use hoplite_core::load::Load;
use hoplite_core::shard::Page;
use hoplite_core::time::Time;
use hoplite_proto::bounds::MAX_LISTED_OBJECTS;
use hoplite_proto::directory::{
    decode_list_step, decode_places, encode_known_shards, encode_load, encode_problems,
};
use hoplite_proto::status::{from_status, to_status};
use hoplite_proto::v1::directory_server::Directory;
use hoplite_proto::v1::{
    DescribeRequest, ListReply, ListRequest, LoadReport, MeasuredPlaces, ObjectDescription,
    PlaceReply, ShardMessages, ShardsReply, ShardsRequest, StatusReply, StatusRequest,
    StoreMessages,
};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use crate::events::Events;
use crate::inspections;
use crate::owner::PlacesOutcome;
use crate::problems::{Problematic, problems_now};
use crate::session::{self, Host};
use crate::watch::Orders;

#[derive(Debug)]
pub(crate) struct DirectoryService {
    pub(crate) host: Host,
    pub(crate) tasks: TaskTracker,
    pub(crate) events: Events,
}

#[tonic::async_trait]
impl Directory for DirectoryService {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<ShardMessages, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<StoreMessages>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (opened, answer) = oneshot::channel();
        let inbound =
            request.into_inner().map(|frame| frame.map_err(|status| from_status(&status)));
        // No silence limit: HTTP/2's pings detect a dead store.
        self.tasks.spawn(session::serve(self.host.clone(), inbound, Duration::MAX, opened));
        let opened = answer.await.unwrap_or(Err(Error::ShuttingDown));
        let send_queue = opened.map_err(|error| to_status(&error))?;
        let frames = send_queue.into_stream().map(|frame| frame.map_err(|error| to_status(&error)));
        Ok(Response::new(Box::pin(frames)))
    }

    type WatchStream = Orders;

    async fn watch(
        &self,
        request: Request<Streaming<LoadReport>>,
    ) -> Result<Response<Orders>, Status> {
        let Host { loads, stop, .. } = &self.host;
        let orders = loads.serve(request.into_inner(), &self.tasks, stop.clone()).await;
        Ok(Response::new(orders.map_err(|error| to_status(&error))?))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListReply>, Status> {
        let ListRequest { prefix, after, limit } = request.into_inner();
        if let Some(long) =
            [&prefix, &after].into_iter().find(|bytes| bytes.len() > MAX_OBJECT_ID_BYTES)
        {
            return Err(to_status(&Error::InvalidId { length_bytes: long.len() }));
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(MAX_LISTED_OBJECTS);
        let now = Time::ZERO + self.host.shard.uptime();
        let look = self.host.shard.inspect(move |shard| {
            let (mut objects, more) = shard.list(&prefix, &after, limit);
            shard.add_origins(now, &mut objects);
            (objects, more)
        });
        let (objects, more) = look.await.map_err(|error| to_status(&error))?;
        Ok(Response::new(inspections::listing(Page { objects, more })))
    }

    async fn describe(
        &self,
        request: Request<DescribeRequest>,
    ) -> Result<Response<ObjectDescription>, Status> {
        let id =
            ObjectId::new(&request.into_inner().id).map_err(|error| to_status(&error.into()))?;
        let now = Time::ZERO + self.host.shard.uptime();
        let look = self.host.shard.inspect(move |shard| {
            let mut description = shard.describe(&id);
            shard.add_origins(now, std::slice::from_mut(&mut description.locations));
            description
        });
        let description = look.await.map_err(|error| to_status(&error))?;
        Ok(Response::new(inspections::description(&description)))
    }

    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusReply>, Status> {
        let look = self.host.shard.inspect(|shard| (shard.status(), Problematic::of(shard)));
        let (status, objects) = look.await.map_err(|error| to_status(&error))?;
        let mut reply = inspections::status(&status, &self.host.cluster, self.host.shard.uptime());
        if request.into_inner().loads {
            self.host.loads.request_reports();
            let loads = self.host.loads.of(status.nodes.iter().map(|node| &node.node));
            for (node, load) in reply.nodes.iter_mut().zip(loads) {
                node.load = load.map(|load| encode_load(Load::clone(&load)));
            }
            let problems = problems_now(&self.host.shard, &self.host.loads, &self.events, &objects);
            reply.problems = encode_problems(&problems);
        }
        Ok(Response::new(reply))
    }

    async fn shards(
        &self,
        request: Request<ShardsRequest>,
    ) -> Result<Response<ShardsReply>, Status> {
        let shard = &self.host.shard;
        let step = decode_list_step(request.into_inner()).map_err(|error| to_status(&error))?;
        if let Some(step) = step {
            shard.change_list(step).await.map_err(|error| to_status(&error))?;
        }
        let now = Time::ZERO + shard.uptime();
        let known = shard.inspect(move |shard| shard.known_shards(now)).await;
        Ok(Response::new(encode_known_shards(&known.map_err(|error| to_status(&error))?)))
    }

    async fn place(
        &self,
        request: Request<MeasuredPlaces>,
    ) -> Result<Response<PlaceReply>, Status> {
        let places = decode_places(request.into_inner()).map_err(|error| to_status(&error))?;
        let PlacesOutcome { counts, nodes } =
            self.host.shard.update_places(places).await.map_err(|error| to_status(&error))?;
        Ok(Response::new(PlaceReply { counts, nodes: u32::try_from(nodes).unwrap_or(u32::MAX) }))
    }
}
