//! What the store of this node and the directory say.

use hoplite_client::{Client, Description, Locations, NodeStatus, ObjectId};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_proto::v1::StatusReply;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::arguments::StoreArguments;

/// Objects in one page.
const PAGE_OBJECTS: usize = 200;

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

/// The store to ask.
pub(super) struct Cluster {
    store: StoreArguments,
    client: Client,
}

impl Cluster {
    pub(super) async fn connect(store: &StoreArguments) -> anyhow::Result<Self> {
        Ok(Self { store: store.clone(), client: store.connect_to_watch().await? })
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
                && let Ok(again) = self.store.connect_to_watch().await
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
        let directory = self.client.directory_status().await.map_err(|error| error.to_string());
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
}
