//! Asks a manager, for the command line: blocking, over TLS that believes the fabric's own authority and no other.
//!
//! One connection is kept for all that a command asks. A change bears a key (`Idempotency-Key`) that is drawn once, and
//! is sent again with it when the connection breaks, a few times: whether it was done the first time or not, it is done
//! once. Everything has a time after which it is given up.

mod credentials;
mod endpoint;
mod error;
mod events;
mod target;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request};
use manager::model::RequestId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use crate::shapes::{LIMIT_MAX, Page};
pub use credentials::{Credentials, CredentialsError};
use endpoint::{Endpoint, Patience, Sender};
pub use error::ClientError;
pub use events::{Events, Told};
pub use target::Target;

/// How often a change is sent, if no answer comes.
const CHANGE_ATTEMPTS: u32 = 6;
/// How often is looked: the first connection may be an old one, that the manager has closed.
const LOOK_ATTEMPTS: u32 = 2;
/// Pages of a list: more than a fabric can have.
const PAGES_MAX: usize = 10_000;
/// The key of a change.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Asks a manager.
pub struct Client {
    runtime: Runtime,
    endpoint: Arc<Endpoint>,
    /// The connection of the question before.
    kept: Option<Sender>,
}

/// A request, as often as it is sent.
struct Question {
    method: Method,
    target: String,
    key: Option<HeaderValue>,
    body: Bytes,
    attempts: u32,
}

impl Client {
    /// For the manager of these credentials. Nothing is sent yet.
    ///
    /// # Errors
    /// They are none.
    pub fn new(credentials: &Credentials) -> Result<Self, ClientError> {
        Self::with_patience(credentials, Patience::default())
    }

    fn with_patience(credentials: &Credentials, patience: Patience) -> Result<Self, ClientError> {
        let endpoint = Arc::new(Endpoint::new(credentials, patience)?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self { runtime: runtime.map_err(ClientError::Machine)?, endpoint, kept: None })
    }

    /// Where the manager is.
    pub fn url(&self) -> &str {
        &self.endpoint.url
    }

    /// One document.
    ///
    /// # Errors
    /// It has not come.
    pub fn get<T: DeserializeOwned>(&mut self, target: &Target) -> Result<T, ClientError> {
        self.ask(Question::look(target))
    }

    /// What is no document, as it is.
    ///
    /// # Errors
    /// It has not come.
    pub fn bytes(&mut self, target: &Target) -> Result<Vec<u8>, ClientError> {
        self.runtime.block_on(Question::look(target).answer(&self.endpoint, &mut self.kept))
    }

    /// All rows of a list, page by page, in order.
    ///
    /// # Errors
    /// One of the pages has not come.
    pub fn list<T: DeserializeOwned>(&mut self, target: &Target) -> Result<Vec<T>, ClientError> {
        let target = target.clone().with("limit", &LIMIT_MAX.to_string());
        let mut rows = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let asked = match &after {
                Some(after) => target.clone().with("after", after),
                None => target.clone(),
            };
            let page: Page<T> = self.get(&asked)?;
            rows.extend(page.items);
            match page.next {
                None => return Ok(rows),
                Some(next) if after.as_ref() == Some(&next) => break,
                Some(next) => after = Some(next),
            }
        }
        Err(self.endpoint.nonsense("a list does not come to an end"))
    }

    /// Puts a document somewhere.
    ///
    /// # Errors
    /// It was not done, or, with [`ClientError::Unknown`], nobody knows.
    pub fn put<T: DeserializeOwned>(
        &mut self,
        target: &Target,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.change(Method::PUT, target, json(body)?)
    }

    /// Makes something new.
    ///
    /// # Errors
    /// As of [`Client::put`].
    pub fn post<T: DeserializeOwned>(
        &mut self,
        target: &Target,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.change(Method::POST, target, json(body)?)
    }

    /// Removes something.
    ///
    /// # Errors
    /// As of [`Client::put`].
    pub fn delete<T: DeserializeOwned>(&mut self, target: &Target) -> Result<T, ClientError> {
        self.change(Method::DELETE, target, Bytes::new())
    }

    /// What happens in all nodes, as the manager hears of it. For [`Client::run`].
    pub fn events(&self) -> Events {
        Events::new(Arc::clone(&self.endpoint))
    }

    /// Runs what asks this manager, and waits for it.
    pub fn run<T>(&self, asks: impl Future<Output = T>) -> T {
        self.runtime.block_on(asks)
    }

    fn change<T: DeserializeOwned>(
        &mut self,
        method: Method,
        target: &Target,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let mut id = RequestId::default();
        rustix::rand::getrandom(&mut id.0, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| ClientError::Machine(error.into()))?;
        let key = HeaderValue::try_from(id.to_string()).map_err(|error| self.endpoint.nonsense(error))?;
        let target = target.text();
        self.ask(Question { method, target, key: Some(key), body, attempts: CHANGE_ATTEMPTS })
    }

    fn ask<T: DeserializeOwned>(&mut self, question: Question) -> Result<T, ClientError> {
        let Self { runtime, endpoint, kept } = self;
        let text = runtime.block_on(question.answer(endpoint, kept))?;
        serde_json::from_slice(&text).map_err(|error| endpoint.nonsense(error))
    }
}

impl Question {
    fn look(target: &Target) -> Self {
        let (method, target, body) = (Method::GET, target.text(), Bytes::new());
        Self { method, target, key: None, body, attempts: LOOK_ATTEMPTS }
    }

    /// Asks until there is an answer, or no hope of one.
    async fn answer(&self, endpoint: &Endpoint, kept: &mut Option<Sender>) -> Result<Vec<u8>, ClientError> {
        let is_change = self.key.is_some();
        let mut was_sent = false;
        let mut pause = endpoint.patience.pause;
        let mut attempt = 1;
        loop {
            let why = match self.attempt(endpoint, kept, &mut was_sent).await {
                Err(ClientError::Unreachable { why, .. }) => why,
                Err(ClientError::Problem(problem)) if problem.title == "busy" && attempt < self.attempts => {
                    problem.detail
                }
                done => return done,
            };
            // Who is not there at all is not waited for; who was there and may have done it is.
            if !was_sent || attempt >= self.attempts {
                let url = endpoint.url.clone();
                return Err(match was_sent && is_change {
                    true => ClientError::Unknown { url, why },
                    false => ClientError::Unreachable { url, why },
                });
            }
            sleep(pause).await;
            pause *= 2;
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        endpoint: &Endpoint,
        kept: &mut Option<Sender>,
        was_sent: &mut bool,
    ) -> Result<Vec<u8>, ClientError> {
        let mut sender = match kept.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => endpoint.connect().await?,
        };
        *was_sent = true;
        let request = self.request(endpoint)?;
        let exchange = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        let answer = timeout(endpoint.patience.answer, exchange).await;
        let silent = |_| {
            let seconds = endpoint.patience.answer.as_secs();
            endpoint
                .unreachable(format_args!("it takes connections, and has not answered within {seconds} s"))
        };
        let (head, body) = answer.map_err(silent)?.map_err(|error| endpoint.broken(&error))?.into_parts();
        let text = endpoint.document(body).await?;
        *kept = Some(sender);
        match head.status.is_success() {
            true => Ok(text),
            false => Err(endpoint.problem(head.status, &text)),
        }
    }

    fn request(&self, endpoint: &Endpoint) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = endpoint.request().method(self.method.clone()).uri(&self.target);
        if let Some(key) = &self.key {
            request = request.header(IDEMPOTENCY_KEY, key.clone());
        }
        if !self.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(self.body.clone())).map_err(|error| endpoint.nonsense(error))
    }
}

fn json(document: &impl Serialize) -> Result<Bytes, ClientError> {
    let text =
        serde_json::to_vec(document).map_err(|error| ClientError::Machine(std::io::Error::other(error)))?;
    Ok(text.into())
}
