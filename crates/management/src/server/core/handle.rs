//! How others speak to the thread of the core.

use core::time::Duration;

use base::ids::NodeId;
use manager::command::Asked;
use manager::model::{PublicKey, Role, TokenHash};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Connection, Done, Health, Message, View};
use crate::server::problem::{Failure, Kind};
use crate::wire::FromNode;

/// Nobody waits for the core for longer.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub(in crate::server) struct Handle {
    inbox: mpsc::Sender<Message>,
    health: watch::Receiver<Health>,
}

impl Handle {
    pub(super) fn new(inbox: mpsc::Sender<Message>, health: watch::Receiver<Health>) -> Self {
        Self { inbox, health }
    }

    /// Why nothing works, if so.
    pub(in crate::server) fn trouble(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Looks at what is durable.
    pub(in crate::server) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (tell, told) = oneshot::channel();
        let reading = move |view: Result<&View<'_>, Failure>| {
            // Whoever has gone hears nothing.
            let _ = tell.send(view.and_then(look));
        };
        self.put(Message::Read(Box::new(reading)))?;
        wait(told).await
    }

    /// Looks, for somebody who has a token that lets do at least this.
    pub(in crate::server) async fn look_as<T: Send + 'static>(
        &self,
        token: TokenHash,
        needed: Role,
        look: impl FnOnce(&View<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.look(move |view| {
            view.authenticate(token, needed)?;
            look(view)
        })
        .await
    }

    /// Asks for a change, which is found out by what is so.
    pub(in crate::server) async fn ask(
        &self,
        prepare: impl FnOnce(&View<'_>) -> Result<Asked, Failure> + Send + 'static,
    ) -> Result<Done, Failure> {
        let (tell, told) = oneshot::channel();
        self.put(Message::Ask(Box::new(prepare), tell))?;
        wait(told).await
    }

    /// A node has proven to have this key, and speaks by this connection. `false`: there is no core any more.
    pub(in crate::server) async fn connected(
        &self,
        node: NodeId,
        key: PublicKey,
        connection: Connection,
    ) -> bool {
        self.inbox.send(Message::Connected(node, key, connection)).await.is_ok()
    }

    /// A node says something. It waits for its turn, and so does what it says next.
    pub(in crate::server) async fn said(&self, node: NodeId, connection: u64, said: FromNode) -> bool {
        self.inbox.send(Message::Said(node, connection, said)).await.is_ok()
    }

    /// A connection is over.
    pub(in crate::server) async fn closed(&self, node: NodeId, connection: u64) {
        // Without a core there is nobody to tell.
        let _ = self.inbox.send(Message::Closed(node, connection)).await;
    }

    /// The process ends in order.
    pub(in crate::server) async fn end(&self) {
        let _ = self.inbox.send(Message::End).await;
    }

    fn put(&self, message: Message) -> Result<(), Failure> {
        self.inbox.try_send(message).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                Failure::new(Kind::Busy, "too many requests are under way: try again")
            }
            mpsc::error::TrySendError::Closed(_) => ended(),
        })
    }
}

async fn wait<T>(told: oneshot::Receiver<Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, told).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(ended()),
        Err(_) => {
            Err(Failure::new(Kind::Unavailable, "the manager's disk takes too long: ask again in a while"))
        }
    }
}

fn ended() -> Failure {
    Failure::new(Kind::Unavailable, "the manager ends: ask again in a while")
}
