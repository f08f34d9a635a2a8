//! Against a server that says what a test has told it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::shapes::Changed;

/// What the server does with the next request.
enum Act {
    /// Answers.
    Say(String),
    /// Answers, and ends the connection.
    Last(String),
    /// Ends the connection.
    Cut,
    /// Says nothing, and does not end.
    Hang,
}

/// A server, and what it was asked.
struct Server {
    port: u16,
    authority: String,
    asked: Arc<Mutex<Vec<String>>>,
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut about = CertificateParams::default();
    about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    about.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(about, KeyPair::generate().unwrap()).unwrap()
}

impl Server {
    fn start(acts: impl IntoIterator<Item = Act>) -> Self {
        Self::with(acts, |_| {})
    }

    fn with(acts: impl IntoIterator<Item = Act>, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let issuer = authority("causeway test");
        let key = KeyPair::generate().unwrap();
        let mut about = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        change(&mut about);
        let certificate = about.signed_by(&key, &issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let acts = Arc::new(Mutex::new(acts.into_iter().collect::<VecDeque<_>>()));
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let tls = TlsAcceptor::from(Arc::new(config));
                loop {
                    let (tcp, _) = listener.accept().await.unwrap();
                    let (tls, acts, asked) = (tls.clone(), Arc::clone(&acts), Arc::clone(&heard));
                    tokio::spawn(async move {
                        // Who does not believe the certificate goes.
                        if let Ok(stream) = tls.accept(tcp).await {
                            serve(stream, &acts, &asked).await;
                        }
                    });
                }
            });
        });
        Self { port, authority: issuer.pem(), asked }
    }

    fn credentials(&self) -> Credentials {
        Credentials {
            url: format!("https://127.0.0.1:{}", self.port),
            token: "token".to_owned(),
            authority: self.authority.clone(),
        }
    }

    fn client(&self) -> Client {
        Client::with_patience(&self.credentials(), PATIENCE).unwrap()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// The values of a header of all that was asked.
    fn headers(&self, name: &str) -> Vec<Option<String>> {
        let value = |text: &String| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
            line.map(str::to_owned)
        };
        self.asked().iter().map(value).collect()
    }
}

const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(5),
    answer: Duration::from_millis(400),
    piece: Duration::from_millis(400),
    pause: Duration::from_millis(1),
    events: Duration::from_millis(400),
};

async fn serve(
    mut stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
    acts: &Mutex<VecDeque<Act>>,
    asked: &Mutex<Vec<String>>,
) {
    let mut input = Vec::new();
    loop {
        let head = input.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        let text = String::from_utf8_lossy(&input[..head.unwrap_or(0)]).into_owned();
        let length =
            text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let whole = head.map(|head| head + length.unwrap_or(0)).filter(|whole| *whole <= input.len());
        let Some(whole) = whole else {
            match stream.read_buf(&mut input).await {
                Ok(count) if count > 0 => continue,
                _ => return,
            }
        };
        asked.lock().unwrap().push(String::from_utf8(input.drain(..whole).collect()).unwrap());
        let act = acts.lock().unwrap().pop_front();
        let (answer, goes_on) = match act {
            Some(Act::Say(answer)) => (answer, true),
            Some(Act::Last(answer)) => (answer, false),
            Some(Act::Hang) => std::future::pending().await,
            Some(Act::Cut) | None => (String::new(), false),
        };
        // Who has gone hears nothing.
        let _ = stream.write_all(answer.as_bytes()).await;
        if !goes_on {
            let _ = stream.shutdown().await;
            return;
        }
    }
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn ok(body: &str) -> Act {
    Act::Say(answer("200 OK", body))
}

fn problem(status: u16, title: &str) -> Act {
    let body =
        format!(r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"why: {title}"}}"#);
    Act::Say(answer(&format!("{status} No"), &body))
}

const DONE: &str =
    r#"{"version":1,"progress":"done","waits_for":null,"is_silent":false,"index":3,"generation":1}"#;

fn nodes() -> Target {
    Target::new(["nodes"])
}

#[test]
fn lists_are_followed_to_their_end_on_one_connection() {
    let server = Server::start([
        ok(r#"{"version":1,"items":[1,2],"next":"b/c"}"#),
        ok(r#"{"version":1,"items":[],"next":"d"}"#),
        ok(r#"{"version":1,"items":[3],"next":null}"#),
        ok(r#"{"version":1,"items":[1],"next":"a"}"#),
        ok(r#"{"version":1,"items":[1],"next":"a"}"#),
    ]);
    let mut client = server.client();
    let rows: Vec<u32> = client.list(&nodes().with("state", "silent")).unwrap();
    assert_eq!(rows, [1, 2, 3]);
    let asked = server.asked();
    assert!(asked[0].starts_with("GET /v1/nodes?state=silent&limit=1000 HTTP/1.1\r\n"), "{}", asked[0]);
    assert!(asked[1].starts_with("GET /v1/nodes?state=silent&limit=1000&after=b%2Fc HTTP/1.1\r\n"));
    assert_eq!(server.headers("authorization"), vec![Some("Bearer token".to_owned()); 3]);
    // One that says the same again and again has no end.
    let error = client.list::<u32>(&nodes()).unwrap_err();
    assert!(matches!(error, ClientError::Answer { .. }), "{error}");
}

#[test]
fn a_change_has_the_same_key_each_time_that_it_is_sent() {
    let server = Server::start([Act::Cut, Act::Hang, problem(503, "busy"), ok(DONE), ok(DONE)]);
    let mut client = server.client();
    let changed: Changed = client.put(&nodes(), &Value::from(1)).unwrap();
    assert_eq!((changed.progress.as_str(), changed.index), ("done", Some(3)));
    let keys = server.headers("idempotency-key");
    assert_eq!(keys.len(), 4);
    assert!(keys[0].is_some() && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    client.delete::<Changed>(&nodes()).unwrap();
    let keys = server.headers("idempotency-key");
    assert!(keys[4].is_some() && keys[4] != keys[0], "another change has another one");
    assert!(server.asked()[4].starts_with("DELETE /v1/nodes "));
}

#[test]
fn of_a_change_without_an_answer_it_is_said_that_nobody_knows() {
    let server = Server::start((0..9).map(|_| Act::Cut));
    let error = server.client().delete::<Changed>(&nodes()).unwrap_err();
    assert!(matches!(error, ClientError::Unknown { .. }), "{error}");
    assert_eq!(server.asked().len(), 6);
    // Looking changes nothing.
    let error = server.client().get::<Value>(&nodes()).unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert_eq!(server.asked().len(), 8);
}

#[test]
fn a_connection_that_was_closed_meanwhile_is_made_anew() {
    let server = Server::start([Act::Last(answer("200 OK", "1")), ok("2")]);
    let mut client = server.client();
    assert_eq!(client.get::<u32>(&nodes()).unwrap(), 1);
    assert_eq!(client.get::<u32>(&nodes()).unwrap(), 2);
}

#[test]
fn a_refusal_is_told_as_the_manager_says_it() {
    let no_document = Act::Say(answer("500 No", "oops"));
    let server = Server::start([problem(404, "not-found"), no_document, ok("{"), ok("1"), ok("{")]);
    let mut client = server.client();
    let error = client.get::<u32>(&nodes()).unwrap_err();
    assert_eq!(error.to_string(), "why: not-found");
    assert!(matches!(error, ClientError::Problem(problem) if problem.status == 404));
    assert!(client.get::<u32>(&nodes()).unwrap_err().to_string().contains("500"));
    assert!(matches!(client.get::<u32>(&nodes()).unwrap_err(), ClientError::Answer { .. }));
    assert_eq!(client.get::<u32>(&nodes()).unwrap(), 1);
    // Of what is no document nothing is asked.
    assert_eq!(client.bytes(&nodes()).unwrap(), b"{");
}

#[test]
fn nobody_is_waited_for_for_ever() {
    let began = Instant::now();
    let half = Act::Say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n1".to_owned());
    let server = Server::start([half, Act::Hang, Act::Hang, Act::Hang]);
    assert!(matches!(server.client().get::<u32>(&nodes()), Err(ClientError::Unreachable { .. })));
    assert_eq!(server.asked().len(), 2);
    // Takes connections, and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let patience = Patience { connect: Duration::from_millis(200), ..PATIENCE };
    let credentials = Credentials { url, ..server.credentials() };
    let mut client = Client::with_patience(&credentials, patience).unwrap();
    assert!(matches!(client.delete::<u32>(&nodes()), Err(ClientError::Unreachable { .. })));
    drop(listener);
    let patience = Patience { pause: Duration::from_secs(60), ..PATIENCE };
    let mut client = Client::with_patience(&credentials, patience).unwrap();
    let error = client.delete::<u32>(&nodes()).unwrap_err().to_string();
    assert!(error.contains("nobody listens there"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn only_the_fabrics_own_authority_is_believed() {
    let server = Server::start([ok("1")]);
    let ask = |authority: String, url: String| {
        let credentials = Credentials { authority, url, ..server.credentials() };
        Client::with_patience(&credentials, PATIENCE).and_then(|mut client| client.get::<u32>(&nodes()))
    };
    let url = server.credentials().url;
    for name in ["causeway test", "another"] {
        let error = ask(authority(name).pem(), url.clone()).unwrap_err();
        assert!(matches!(error, ClientError::OtherFabric { .. }), "{error:?}");
    }
    let error = ask(server.authority.clone(), url.replace("127.0.0.1", "localhost")).unwrap_err();
    assert!(error.to_string().contains("127.0.0.1, and not for the host"), "{error}");
    for (authority, url) in [
        ("", url.as_str()),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &url),
        (&server.authority, "http://127.0.0.1:1"),
        (&server.authority, "https://127.0.0.1"),
        (&server.authority, "https://127.0.0.1:1/v1"),
        (&server.authority, "https://a@127.0.0.1:1"),
        (&server.authority, "here"),
    ] {
        let error = ask(authority.to_owned(), url.to_owned()).unwrap_err();
        assert!(matches!(error, ClientError::Credentials(_)), "{url} {error:?}");
    }
    assert!(server.asked().is_empty(), "nothing was said to anybody");
    assert_eq!(ask(server.authority.clone(), url).unwrap(), 1);
}

#[test]
fn of_a_certificate_at_a_wrong_time_both_times_are_told() {
    let expired = Server::with([], |about| about.not_after = rcgen::date_time_ymd(2001, 2, 3));
    let error = expired.client().get::<u32>(&nodes()).unwrap_err().to_string();
    assert!(error.contains("good until 2001-02-03T00:00:00Z, and it is 2"), "{error}");
    let early = Server::with([], |about| about.not_before = rcgen::date_time_ymd(2901, 2, 3));
    let error = early.client().get::<u32>(&nodes()).unwrap_err().to_string();
    assert!(error.contains("from 2901-02-03T00:00:00Z on, and it is 2"), "{error}");
}

#[test]
fn who_does_not_speak_tls_is_no_manager() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    });
    let authority = authority("any").pem();
    let credentials = Credentials { url, authority, token: "token".to_owned() };
    let error = Client::with_patience(&credentials, PATIENCE).unwrap().get::<u32>(&nodes()).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error:?}");
}

#[test]
fn events_go_on_after_the_manager_was_away_and_that_is_said() {
    let event =
        |name: &str| format!(r#"{{"at":"t","node":null,"name":"{name}","is_trouble":false,"text":"x"}}"#);
    let stream = |text: String| format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{text}");
    let first = format!(": hello\n\nid: 7\ndata: {}\n\ndata: {}\n\nid: 9\ndata: {{", event("a"), event("b"));
    let second = format!("event: a later one\ndata: 5\n\nid: 20\ndata: {}\n\n", event("c"));
    let server = Server::start([Act::Last(stream(first)), Act::Cut, Act::Say(stream(second)), Act::Cut]);
    let client = server.client();
    let mut events = client.events();
    let mut told = Vec::new();
    let hear = async {
        while told.len() < 6 {
            told.push(match events.next().await.unwrap() {
                Told::Event(event) => event.name,
                Told::Away(_) => "away".to_owned(),
                Told::Back => "back".to_owned(),
            });
        }
    };
    client.run(async { timeout(Duration::from_secs(10), hear).await.expect("they come in time") });
    // The last one is silent for too long.
    assert_eq!(told, ["a", "b", "away", "back", "c", "away"]);
    let seven = Some("7".to_owned());
    assert_eq!(
        server.headers("last-event-id"),
        [None, seven.clone(), seven],
        "it goes on behind what it has heard"
    );
    // One that is not there from the beginning is not waited for, and one that refuses is not asked again.
    let server = Server::start([Act::Cut, problem(401, "unauthorized")]);
    let client = server.client();
    assert!(matches!(client.run(client.events().next()), Err(ClientError::Unreachable { .. })));
    assert!(matches!(client.run(client.events().next()), Err(ClientError::Problem(_))));
}
