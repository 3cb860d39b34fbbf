use hoplite_client::{Client, Description, Locations, NodeStatus, ObjectId};
use hoplite_core::NodeId;
use hoplite_core::problem::{Place, Problem};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_proto::directory::decode_problems;
use hoplite_proto::v1::StatusReply;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::arguments::StoreArguments;

const PAGE_OBJECTS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    Nodes,
    Objects { prefix: Vec<u8>, after: Vec<u8> },
    Object(ObjectId),
}

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) store: NodeStatus,
    /// First shard's answer, or the reason why no shard answers.
    pub(super) directory: Result<StatusReply, String>,
    /// Cluster's problems, or this node's problems if no shard answers.
    pub(super) problems: Vec<Problem>,
    pub(super) more: More,
}

#[derive(Debug, Default)]
pub(super) enum More {
    #[default]
    Nothing,
    Objects(Vec<Locations>, Option<ObjectId>),
    Object(Box<Description>),
}

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
        let mut directory = self.client.directory_status().await.map_err(|error| error.to_string());
        let more = match question {
            Question::Nodes => More::Nothing,
            Question::Objects { prefix, after } => {
                let page = self.client.list(&prefix, &after, PAGE_OBJECTS).await?;
                More::Objects(page.objects, page.next)
            }
            Question::Object(id) => More::Object(Box::new(self.client.describe(id).await?)),
        };
        let problems = match &mut directory {
            Ok(reply) => decode_problems(std::mem::take(&mut reply.problems)),
            Err(_) => own_problems(&store),
        };
        Ok(Snapshot { store, directory, problems, more })
    }
}

fn own_problems(store: &NodeStatus) -> Vec<Problem> {
    let node = NodeId::new(&store.node).ok();
    let place = |text| Place { node: node.clone(), object: None, text };
    let kinds = store.problems().into_iter();
    kinds
        .filter_map(|(kind, lines)| Problem::new(kind, lines.into_iter().map(place).collect()))
        .collect()
}
