//! What the store of this node and the directory say.

use anyhow::{Context, bail};
use hoplite_client::{Client, Description, Locations, NodeStatus, ObjectId};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_daemon::{Bearer, Credentials};
use hoplite_proto::status::from_status;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{StatusReply, StatusRequest};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::arguments::StoreArguments;

/// Objects in one page.
const PAGE_OBJECTS: usize = 200;
/// The longest answer: that of a directory of 65,536 nodes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// What to ask, beside how the nodes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    /// Nothing.
    Nodes,
    /// The objects whose ids begin with `prefix` and are greater than `after`.
    Objects { prefix: Vec<u8>, after: Vec<u8> },
    /// One object.
    Object(ObjectId),
}

/// How the cluster is.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// This node's store.
    pub(super) store: NodeStatus,
    /// The first shard that answers; or why none does.
    pub(super) directory: Result<StatusReply, String>,
    /// What was asked beside that.
    pub(super) more: More,
}

/// The rest of an answer.
#[derive(Debug, Default)]
pub(super) enum More {
    #[default]
    Nothing,
    /// Objects, and where to go on.
    Objects(Vec<Locations>, Option<ObjectId>),
    Object(Box<Description>),
}

/// The store and the shards to ask.
pub(super) struct Cluster {
    store: StoreArguments,
    client: Client,
    credentials: Credentials,
    /// The shard that answered last.
    shard: Option<DirectoryClient<InterceptedService<Channel, Bearer>>>,
}

impl Cluster {
    pub(super) async fn connect(store: &StoreArguments) -> anyhow::Result<Self> {
        let credentials = Credentials::from_environment()?;
        Ok(Self { store: store.clone(), client: store.connect().await?, credentials, shard: None })
    }

    /// Answers questions until nobody asks any more.
    pub(super) async fn serve(
        mut self,
        mut questions: mpsc::Receiver<Question>,
        answers: mpsc::Sender<Result<Snapshot, String>>,
    ) {
        while let Some(question) = questions.recv().await {
            let answer = match timeout(2 * ANSWER_TIMEOUT, self.ask(question)).await {
                Ok(answer) => answer.map_err(|error| format!("{error:#}")),
                Err(_) => Err("the store takes too long".to_owned()),
            };
            if answer.is_err()
                && let Ok(again) = self.store.connect().await
            {
                self.client = again;
            }
            if answers.send(answer).await.is_err() {
                return;
            }
        }
    }

    async fn ask(&mut self, question: Question) -> anyhow::Result<Snapshot> {
        let store = self.client.status().await?;
        let directory = self.directory(&store).await.map_err(|error| format!("{error:#}"));
        let more = match question {
            Question::Nodes => More::Nothing,
            Question::Objects { prefix, after } => {
                let page = self.client.list(&prefix, &after, PAGE_OBJECTS).await?;
                More::Objects(page.objects, page.next)
            }
            Question::Object(id) => More::Object(Box::new(self.client.describe(id).await?)),
        };
        Ok(Snapshot { store, directory, more })
    }

    /// What the first shard says that answers.
    async fn directory(&mut self, store: &NodeStatus) -> anyhow::Result<StatusReply> {
        if let Some(mut shard) = self.shard.take()
            && let Ok(reply) = status(&mut shard, &self.credentials).await
        {
            self.shard = Some(shard);
            return Ok(reply);
        }
        let mut last = None;
        for shard in store.shards.iter().filter(|shard| shard.connected) {
            let endpoint = Endpoint::from_shared(format!("http://{}", shard.address));
            let endpoint = endpoint.context("the address of a shard")?.connect_timeout(ANSWER_TIMEOUT);
            let channel = self.credentials.channel(&endpoint);
            let service = InterceptedService::new(channel, self.credentials.bearer());
            let mut client = DirectoryClient::new(service).max_decoding_message_size(MAX_ANSWER_BYTES);
            match status(&mut client, &self.credentials).await {
                Ok(reply) => {
                    self.shard = Some(client);
                    return Ok(reply);
                }
                Err(error) => last = Some(error.context(format!("the directory at {}", shard.address))),
            }
        }
        match last {
            Some(error) => Err(error),
            None => bail!("the store has no session with the directory"),
        }
    }
}

async fn status(
    shard: &mut DirectoryClient<InterceptedService<Channel, Bearer>>,
    credentials: &Credentials,
) -> anyhow::Result<StatusReply> {
    let request = StatusRequest { loads: true };
    let reply = timeout(ANSWER_TIMEOUT, shard.status(request)).await.context("it takes too long")?;
    Ok(reply.map_err(|status| from_status(&credentials.explained(status)))?.into_inner())
}
