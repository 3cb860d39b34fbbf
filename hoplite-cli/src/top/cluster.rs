//! The answers of this node's store and of the directory.

use hoplite_client::{Client, Description, Locations, NodeStatus, ObjectId};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_proto::v1::StatusReply;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::arguments::StoreArguments;

const PAGE_OBJECTS: usize = 200;

/// The query for an update, in addition to the state of the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    /// No further query.
    Nodes,
    /// The objects whose ids begin with `prefix` and are greater than `after`.
    Objects {
        prefix: Vec<u8>,
        after: Vec<u8>,
    },
    Object(ObjectId),
}

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) store: NodeStatus,
    /// The status from the first shard that answers, or the reason for which none does.
    pub(super) directory: Result<StatusReply, String>,
    /// The answer to the further query.
    pub(super) more: More,
}

/// The answer to the further query.
#[derive(Debug, Default)]
pub(super) enum More {
    #[default]
    Nothing,
    /// Objects, and the key at which the next page starts.
    Objects(Vec<Locations>, Option<ObjectId>),
    Object(Box<Description>),
}

/// The connection to this node's store.
pub(super) struct Cluster {
    store: StoreArguments,
    client: Client,
}

impl Cluster {
    pub(super) async fn connect(store: &StoreArguments) -> anyhow::Result<Self> {
        Ok(Self { store: store.clone(), client: store.connect_to_watch().await? })
    }

    pub(super) async fn serve(
        mut self,
        mut questions: mpsc::Receiver<Question>,
        answers: mpsc::Sender<Result<Snapshot, String>>,
    ) {
        while let Some(question) = questions.recv().await {
            let answer = match timeout(2 * ANSWER_TIMEOUT, self.ask(question)).await {
                Ok(answer) => answer.map_err(|error| format!("{error:#}")),
                Err(_) => Err("the store does not answer in time".to_owned()),
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
