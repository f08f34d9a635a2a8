//! A node, as a manager meets it: it joins, connects, lends what it is told to, and does as it is told.

use std::collections::BTreeMap;
use std::time::Duration;

use base::ids::{BASE32, DomainId, LoanGeneration, NodeId};
use futures_util::{SinkExt, StreamExt};
use management::keys::{self, JoinToken, NodeKey};
use management::shapes::{Joined, join_text};
use management::wire::{self, About, DomainSaid, FromNode, SlotSaid, ToNode, proof_text};
use manager::model::{Block, Groups, Kind, Limited, Made, MadeList, Name, Resource, Unmade, WallTime};
use manager::report::{DeadRail, Holder, Identity, MadeSaid, Order, PresetsId, Report, Reported, Said};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::client::{Answer, Client};

/// Nothing here takes as long.
const LONG: Duration = Duration::from_secs(10);

pub(crate) fn now() -> WallTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    WallTime(since.as_millis() as u64)
}

/// A join token's word, made by the administrator.
pub(crate) async fn join_token(admin: &Client) -> String {
    let made = admin.post("/v1/join-tokens", json!({"domains": 16})).await.ok();
    made["token"].as_str().unwrap().to_owned()
}

/// Asks to join.
pub(crate) async fn ask_to_join(
    client: &Client,
    word: &str,
    name: &str,
    key: &NodeKey,
    at: WallTime,
) -> Answer {
    let token: JoinToken = word.parse().unwrap();
    let manager = client.with_token("").get("/v1/join").await.ok();
    let manager = manager["manager"].as_str().unwrap().parse().unwrap();
    let public = keys::public(key);
    let shared = keys::shared(key, manager).unwrap();
    let proof = keys::prove(&shared, &join_text(token.token.hash(), name, &public.0));
    let body = json!({
        "name": name, "key": public.to_string(), "proof": BASE32.encode(&proof), "now": at.0,
    });
    client.with_token(&token.token.reveal()).post("/v1/join", body).await
}

/// The number of the first function that was made.
const MADE: u32 = 100;

/// A node that has joined.
pub(crate) struct Node {
    pub(crate) key: NodeKey,
    pub(crate) joined: Joined,
    /// What it lends, by number: generation and holder.
    pub(crate) table: BTreeMap<u32, (LoanGeneration, Holder, Option<Limited>)>,
    pub(crate) about: About,
    /// What it was told to make, and how far it is.
    pub(crate) made: Option<MadeSaid>,
}

impl Node {
    pub(crate) async fn join(admin: &Client, name: &str, functions: u32) -> Self {
        let (word, key) = (join_token(admin).await, keys::new_pair());
        let joined = ask_to_join(admin, &word, name, &key, now()).await.ok();
        let joined: Joined = serde_json::from_value(joined).unwrap();
        let table =
            (0..functions).map(|number| (number, (LoanGeneration(0), Holder::Nobody, None))).collect();
        Self { key, joined, table, about: About::default(), made: None }
    }

    /// Somebody with a key of his own who shows what another node has.
    pub(crate) fn join_as_stranger(of: &Joined, name: &str) -> Self {
        let joined = Joined { name: name.to_owned(), ..of.clone() };
        Self { key: keys::new_pair(), joined, table: BTreeMap::new(), about: About::default(), made: None }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.key.id()
    }

    pub(crate) fn block(&self) -> Block {
        let (base, len) = self.joined.domains.split_once('/').unwrap();
        Block::new(base.parse().unwrap(), len.parse().unwrap()).unwrap()
    }

    /// It has a virtual machine of this name with such slots, and this address.
    pub(crate) fn has(&mut self, address: &str, domain: &str, slots: &[&str]) {
        let slots = slots.iter().enumerate().map(|(number, name)| SlotSaid {
            name: name.parse().unwrap(),
            slot: number as u16,
            state: "empty".to_owned(),
            trouble: None,
        });
        let number = DomainId(self.block().base() + 1);
        let domain = DomainSaid { name: domain.parse().unwrap(), domain: number, slots: slots.collect() };
        let addresses = address.to_owned();
        self.about = About { addresses, domains: vec![domain], ..About::default() };
    }

    /// Connects, proves who it is, is greeted, and says what it has.
    pub(crate) async fn connect(&self, client: &Client) -> Agent {
        let mut agent = self.greet(client, now()).await;
        agent.say(&FromNode::About(self.about.clone())).await;
        let epoch = agent.greeted().await;
        self.inventory(&mut agent, epoch).await;
        agent
    }

    pub(crate) async fn greet(&self, client: &Client, now: WallTime) -> Agent {
        let mut agent = Agent::open(client).await;
        let Some(ToNode::Challenge { fabric, key, nonce, .. }) = agent.hear().await else { panic!() };
        let shared = keys::shared(&self.key, key).unwrap();
        let proof = keys::prove(&shared, &proof_text(fabric, self.id(), &nonce));
        let program = "test 1".to_owned();
        let certificate = self.joined.certificate.clone();
        let hello =
            FromNode::Hello { version: wire::VERSION, node: self.id(), proof, now, program, certificate };
        agent.say(&hello).await;
        agent
    }

    pub(crate) async fn inventory(&self, agent: &mut Agent, epoch: u64) {
        let identity = Identity {
            name: self.joined.name.parse().unwrap(),
            key: keys::public(&self.key),
            block: self.block(),
            groups: Groups::default(),
            issued: WallTime::default(),
        };
        let functions = self.table.keys().map(|number| self.reported(*number)).collect();
        let (made, rails) = (self.made.clone(), Vec::new());
        let said = Said::Inventory { identity, functions, presets: None, made, rails };
        agent.say(&FromNode::Report(Report { epoch, said })).await;
    }

    pub(crate) fn reported(&self, number: u32) -> Reported {
        let made = self.made.as_ref().map_or(&[][..], |made| &made.list.functions).iter();
        let made = (MADE..).zip(made).find(|(of, _)| *of == number).map(|(_, made)| made);
        let own = format!("nvme{number}").parse().unwrap();
        let (name, made): (Name, _) = made.map_or((own, None), |made| (made.name.clone(), Some(made.id)));
        let resource = Resource { kind: Kind::Nvme, bytes: 1 << 30, read_only: false, made };
        let (generation, holder, limits) = self.table[&number];
        Reported { number, name, resource, generation, holder, limits }
    }

    /// Does what a lender does with an order, and says so.
    pub(crate) async fn apply(&mut self, agent: &mut Agent, epoch: u64, order: &Order) {
        let holder = order.to.map_or(Holder::Nobody, Holder::Assigned);
        self.table.insert(order.number, (order.generation, holder, order.limits));
        let said = Said::Function(self.reported(order.number));
        agent.say(&FromNode::Report(Report { epoch, said })).await;
    }

    /// Hears until a list of functions comes, makes them but for what `refuses` says why not, and says so.
    pub(crate) async fn make_functions(
        &mut self,
        agent: &mut Agent,
        refuses: impl Fn(&Made) -> Option<String>,
    ) -> MadeList {
        loop {
            let ToNode::Functions { epoch, list } = agent.hear().await.unwrap() else { continue };
            let refused = |made: &Made| Some(Unmade { name: made.name.clone(), why: refuses(made)? });
            let refused: Vec<Unmade> = list.functions.iter().filter_map(refused).collect();
            let is_there = |made: &Made| refused.iter().all(|it| it.name != made.name);
            self.table.retain(|number, _| *number < MADE);
            for (number, _) in (MADE..).zip(&list.functions).filter(|(_, made)| is_there(made)) {
                self.table.insert(number, (LoanGeneration(0), Holder::Nobody, None));
            }
            self.made = Some(MadeSaid { list: list.clone(), is_done: true, refused });
            self.inventory(agent, epoch).await;
            return list;
        }
    }

    /// Hears until orders come, and applies them.
    pub(crate) async fn serve_orders(&mut self, agent: &mut Agent) -> Vec<Order> {
        loop {
            if let ToNode::Lender { epoch, orders } = agent.hear().await.unwrap() {
                for order in &orders {
                    self.apply(agent, epoch, order).await;
                }
                return orders;
            }
        }
    }
}

/// The connection of a node.
pub(crate) struct Agent(WebSocketStream<TlsStream<TcpStream>>);

impl Agent {
    pub(crate) async fn open(client: &Client) -> Self {
        let stream = client.connect().await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async("wss://127.0.0.1/v1/agent", stream).await.unwrap();
        Self(socket)
    }

    pub(crate) async fn say(&mut self, said: &FromNode) {
        self.say_text(serde_json::to_string(said).unwrap()).await;
    }

    /// Bytes that are no message, or not yet.
    pub(crate) async fn say_raw(&mut self, bytes: &[u8]) {
        // The other end may be gone before it has taken all of it.
        let _ = tokio::io::AsyncWriteExt::write_all(self.0.get_mut(), bytes).await;
    }

    pub(crate) async fn say_text(&mut self, text: String) {
        self.0.send(Message::Text(text.into())).await.unwrap();
    }

    /// The next message. `None`: the connection is over.
    pub(crate) async fn hear(&mut self) -> Option<ToNode> {
        let next = async {
            loop {
                match self.0.next().await {
                    Some(Ok(Message::Text(text))) => return Some(serde_json::from_str(&text).unwrap()),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                    Some(Ok(_)) => {}
                }
            }
        };
        tokio::time::timeout(LONG, next).await.expect("the manager says something in time")
    }

    pub(crate) async fn greeted(&mut self) -> u64 {
        match self.hear().await {
            Some(ToNode::Greet { epoch }) => epoch,
            other => panic!("{other:?}"),
        }
    }

    /// Why the connection is refused.
    pub(crate) async fn refused(&mut self) -> String {
        self.until(|heard| match heard {
            Some(ToNode::Refused { why }) => Some(why),
            Some(_) => None,
            None => Some("closed without a word".to_owned()),
        })
        .await
    }

    /// What is in the slots of a borrower, once there is a list of so many.
    pub(crate) async fn presets(&mut self, len: usize) -> (PresetsId, Vec<wire::Placed>) {
        self.until(|heard| match heard {
            Some(ToNode::Borrower { id, presets }) if presets.len() == len => Some((id, presets)),
            Some(_) => None,
            None => panic!("the connection is over"),
        })
        .await
    }

    /// Of which rails it is told next.
    pub(crate) async fn rails(&mut self) -> Vec<DeadRail> {
        self.until(|heard| match heard {
            Some(ToNode::Rails(rails)) => Some(rails),
            Some(_) => None,
            None => panic!("the connection is over"),
        })
        .await
    }

    /// Hears until it is this. The manager repeats itself, so the time is that of all of it.
    async fn until<T>(&mut self, is: impl Fn(Option<ToNode>) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = is(self.hear().await) {
                    return found;
                }
            }
        };
        tokio::time::timeout(LONG, wait).await.expect("the manager says it in time")
    }
}
