//! How others speak to the thread of the core.

use core::time::Duration;
use std::sync::Arc;

use base::ids::NodeId;
use manager::command::Asked;
use manager::model::{PublicKey, Role, TokenHash};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::{Connection, Done, Health, Held, Message, View, Wish};
use crate::server::problem::{Failure, Kind};
use crate::wire::FromNode;

/// Nobody waits for the core for longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Messages that wait for the core, of clients and of nodes.
const INBOX: usize = 4096;
/// Messages of one node's connection among those of nodes: what it says beyond that waits in its connection.
const OF_CONNECTION: usize = 16;

/// What has come for the core.
pub(super) struct Inboxes {
    pub(super) clients: mpsc::Receiver<Message>,
    pub(super) nodes: mpsc::Receiver<Message>,
}

impl Inboxes {
    /// The next message, of a client if there is one. `None`: there will be no more.
    pub(super) async fn next(&mut self) -> Option<Message> {
        tokio::select! {
            biased;
            message = self.clients.recv() => message,
            message = self.nodes.recv() => message,
        }
    }
}

#[derive(Clone, Debug)]
pub(in crate::server) struct Handle {
    /// Where it asks: by whichever of the two it is.
    inbox: mpsc::Sender<Message>,
    nodes: mpsc::Sender<Message>,
    health: watch::Receiver<Health>,
}

/// What one connection of a node has in the inbox at most.
#[derive(Clone, Debug)]
pub(in crate::server) struct Quota(Arc<Semaphore>);

impl Quota {
    pub(in crate::server) fn new() -> Self {
        Self(Arc::new(Semaphore::new(OF_CONNECTION)))
    }
}

impl Handle {
    pub(super) fn new(health: watch::Receiver<Health>) -> (Self, Inboxes) {
        let (inbox, clients) = mpsc::channel(INBOX);
        let (nodes, of_nodes) = mpsc::channel(INBOX);
        (Self { inbox, nodes, health }, Inboxes { clients, nodes: of_nodes })
    }

    /// The same for whoever is a node or says so: what it asks waits among what nodes say, and takes no client's place.
    pub(in crate::server) fn of_nodes(&self) -> Self {
        Self { inbox: self.nodes.clone(), ..self.clone() }
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
        wish: Wish,
        prepare: impl FnOnce(&View<'_>) -> Result<Asked, Failure> + Send + 'static,
    ) -> Result<Done, Failure> {
        let (tell, told) = oneshot::channel();
        self.put(Message::Ask(wish, Box::new(prepare), tell))?;
        wait(told).await
    }

    /// A node that has proven who it is was refused something.
    pub(in crate::server) async fn refused(&self, wish: Wish, why: String) {
        // Without a core there is no log.
        let _ = self.nodes.send(Message::Refused(wish, why)).await;
    }

    /// A node has proven to have this key, and speaks by this connection. `false`: there is no core any more.
    pub(in crate::server) async fn connected(
        &self,
        node: NodeId,
        key: PublicKey,
        connection: Connection,
    ) -> bool {
        self.nodes.send(Message::Connected(node, key, connection)).await.is_ok()
    }

    /// A node says something. It waits for its turn, and so does what it says next.
    pub(in crate::server) async fn said(
        &self,
        quota: &Quota,
        node: NodeId,
        connection: u64,
        said: FromNode,
    ) -> bool {
        // It is given back when the core has taken the message.
        let Ok(place) = Arc::clone(&quota.0).acquire_owned().await else { return false };
        self.nodes.send(Message::Said(node, connection, said, Held(place))).await.is_ok()
    }

    /// A connection is over.
    pub(in crate::server) async fn closed(&self, node: NodeId, connection: u64) {
        // Without a core there is nobody to tell.
        let _ = self.nodes.send(Message::Closed(node, connection)).await;
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use manager::report::{Report, Said};

    use super::*;

    fn about() -> FromNode {
        FromNode::About(crate::wire::About::default())
    }

    fn pair() -> (Handle, Inboxes) {
        Handle::new(watch::channel(None).1)
    }

    fn next(inboxes: &mut Inboxes) -> Option<Message> {
        inboxes.next().now_or_never().flatten()
    }

    /// Says so many things at once, and returns how many of them found a place.
    fn flood(handle: &Handle, quota: &Quota, node: u8, count: usize) -> usize {
        let said = |_| handle.said(quota, NodeId([node; 20]), 1, about()).now_or_never();
        (0..count).filter_map(said).count()
    }

    // Without a runtime: one of tokio makes a task wait now and then although it could go on.
    #[test]
    fn a_node_that_floods_keeps_out_itself_only() {
        let (handle, mut inboxes) = pair();
        let (loud, quiet) = (Quota::new(), Quota::new());
        assert_eq!(flood(&handle, &loud, 1, INBOX + 1), OF_CONNECTION);
        assert_eq!(flood(&handle, &quiet, 2, 1), 1);
        let report =
            Report { epoch: 1, said: Said::Presets(manager::report::PresetsId { epoch: 1, index: 1 }) };
        let waiting = handle.said(&loud, NodeId([1; 20]), 1, FromNode::Report(report));
        let mut waiting = core::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none(), "it has its share");
        drop(next(&mut inboxes));
        assert_eq!(waiting.now_or_never(), Some(true), "what was taken makes room");
    }

    #[test]
    fn clients_come_first_and_have_places_of_their_own() {
        // For its clock only.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let (handle, mut inboxes) = pair();
        let quotas: Vec<_> = (0..INBOX / OF_CONNECTION + 1).map(|_| Quota::new()).collect();
        let taken: usize = quotas.iter().map(|quota| flood(&handle, quota, 1, OF_CONNECTION)).sum();
        assert_eq!(taken, INBOX, "nodes have filled what there is for them");
        // Whoever says to be a node and has yet to prove it waits among them.
        let nodes = handle.of_nodes();
        let looked = nodes.look(|_| Ok(())).now_or_never().expect("it does not wait");
        assert!(looked.is_err(), "it is busy");
        let mut look = core::pin::pin!(handle.look(|_| Ok(())));
        assert!(look.as_mut().now_or_never().is_none(), "a client is not refused");
        assert!(matches!(next(&mut inboxes), Some(Message::Read(_))), "and it comes first");
        assert!(matches!(next(&mut inboxes), Some(Message::Said(..))));
    }
}
