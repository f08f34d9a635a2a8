//! What happens in all nodes: server-sent events, as WHATWG's HTML has them (9.2.6), as far as a manager uses that.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, HeaderValue};
use tokio::time::{sleep, timeout};

use super::endpoint::{Endpoint, Sender};
use super::{ClientError, Target};
use crate::shapes::Event;

/// By which header a client says what it has heard last.
const LAST_EVENT_ID: &str = "last-event-id";
/// The longest event.
const EVENT_MAX: usize = 1 << 20;
/// The longest pause before a manager that went is looked for again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What comes of waiting for an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// An event.
    Event(Event),
    /// The manager is not there any more, for this reason: it is looked for until it is there again.
    Away(String),
    /// It is there again. What happened meanwhile follows; an event `lost` says so if something is not known any more.
    Back,
}

/// Events, as they come.
pub struct Events {
    endpoint: Arc<Endpoint>,
    open: Option<Open>,
    parser: Parser,
    /// The id of the last event that was told.
    last: Option<HeaderValue>,
    /// Before the next try, while the manager is away.
    pause: Option<Duration>,
}

/// An answer that does not end.
struct Open {
    /// Held, for without it the connection ends.
    _sender: Sender,
    body: Incoming,
}

impl Events {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, open: None, parser: Parser::default(), last: None, pause: None }
    }

    /// The next one. Whoever stops waiting for it loses nothing.
    ///
    /// # Errors
    /// The manager was not there from the beginning, or refuses.
    pub async fn next(&mut self) -> Result<Told, ClientError> {
        loop {
            if let Some(block) = self.parser.next() {
                match self.read(block)? {
                    Some(told) => return Ok(told),
                    None => continue,
                }
            }
            if self.parser.input.len() > EVENT_MAX {
                return Err(self.endpoint.nonsense("an event does not come to an end"));
            }
            let went = match &mut self.open {
                None => match self.connect().await {
                    Ok(()) if self.pause.take().is_some() => return Ok(Told::Back),
                    Ok(()) => continue,
                    Err(ClientError::Unreachable { .. }) if self.pause.is_some() => continue,
                    Err(error) => return Err(error),
                },
                Some(open) => {
                    match self.endpoint.piece(&mut open.body, self.endpoint.patience.events).await {
                        Ok(Some(piece)) => {
                            self.parser.input.extend_from_slice(&piece);
                            continue;
                        }
                        Ok(None) => "it has ended the connection".to_owned(),
                        Err(ClientError::Unreachable { why, .. }) => why,
                        Err(error) => return Err(error),
                    }
                }
            };
            self.open = None;
            self.parser = Parser::default();
            self.pause = Some(self.endpoint.patience.pause);
            return Ok(Told::Away(went));
        }
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        if let Some(pause) = self.pause {
            sleep(pause).await;
            self.pause = Some((pause * 2).min(PAUSE_MAX));
        }
        let endpoint = Arc::clone(&self.endpoint);
        let mut sender = endpoint.connect().await?;
        let request =
            endpoint.request().uri(Target::new(["events"]).text()).header(ACCEPT, "text/event-stream");
        let request = match &self.last {
            Some(last) => request.header(LAST_EVENT_ID, last.clone()),
            None => request,
        };
        let request = request.body(Full::new(Bytes::new())).map_err(|error| endpoint.nonsense(error))?;
        let answer = timeout(endpoint.patience.answer, sender.send_request(request)).await;
        let answer = answer.map_err(|_| endpoint.unreachable("it takes connections, and does not answer"))?;
        let (head, body) = answer.map_err(|error| endpoint.broken(&error))?.into_parts();
        if !head.status.is_success() {
            return Err(endpoint.problem(head.status, &endpoint.document(body).await?));
        }
        self.open = Some(Open { _sender: sender, body });
        Ok(())
    }

    fn read(&mut self, block: Block) -> Result<Option<Told>, ClientError> {
        if let Some(id) = block.id {
            self.last = HeaderValue::try_from(id).ok();
        }
        match block.name.as_str() {
            _ if block.data.is_empty() => Ok(None),
            "" | "message" | "event" => {
                let event = serde_json::from_str(&block.data);
                event.map(|event| Some(Told::Event(event))).map_err(|error| self.endpoint.nonsense(error))
            }
            // A later version may say more.
            _ => Ok(None),
        }
    }
}

/// Takes the blocks out of a stream.
#[derive(Default)]
struct Parser {
    input: Vec<u8>,
    block: Block,
}

/// The lines up to an empty one.
#[derive(Default, PartialEq, Eq, Debug)]
struct Block {
    name: String,
    data: String,
    id: Option<String>,
}

impl Parser {
    /// The next whole block.
    fn next(&mut self) -> Option<Block> {
        while let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                return Some(std::mem::take(&mut self.block));
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.block.name),
                "id" => self.block.id = Some(value.to_owned()),
                "data" if self.block.data.len() <= EVENT_MAX => {
                    if !self.block.data.is_empty() {
                        self.block.data.push('\n');
                    }
                    self.block.data.push_str(value);
                }
                // Comments keep the connection alive.
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_whole_however_they_are_cut() {
        let text = ": alive\n\nid: 7\nevent: event\ndata: {\"a\":\r\ndata:1}\nretry: 5\n\ndata\n\n";
        let block = |name: &str, data: &str, id: Option<&str>| Block {
            name: name.to_owned(),
            data: data.to_owned(),
            id: id.map(str::to_owned),
        };
        let expected = [block("", "", None), block("event", "{\"a\":\n1}", Some("7")), block("", "", None)];
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let mut blocks = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                parser.input.extend_from_slice(piece);
                blocks.extend(std::iter::from_fn(|| parser.next()));
            }
            assert_eq!(blocks, expected, "{size}");
        }
    }
}
