//! A client: one request a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    tls: Arc<ClientConfig>,
    pub(crate) token: String,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: Value,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.body
    }

    /// Title and detail of a problem.
    #[track_caller]
    pub(crate) fn problem(&self) -> (u16, String, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], self.status, "{self:?}");
        let text = |key: &str| self.body[key].as_str().unwrap().to_owned();
        (self.status, text("title"), text("detail"))
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr, authority: &str, token: &str) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        Self { address, tls: Arc::new(tls), token: token.to_owned() }
    }

    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    pub(crate) async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await
    }

    /// A connection that stays.
    pub(crate) async fn keep(&self) -> Kept {
        let io = TokioIo::new(self.connect().await.unwrap());
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        Kept { sender, token: self.token.clone() }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<Response<Incoming>> {
        let io = TokioIo::new(self.connect().await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(io).await.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        sender.send_request(request).await.map_err(std::io::Error::other)
    }

    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let response = self.send(method, path, headers, body).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status: head.status.as_u16(), headers: head.headers, body, text }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, &[], &body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.call("PUT", path, &[], &body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, &[], "").await
    }
}

/// A connection that stays.
pub(crate) struct Kept {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    token: String,
}

impl Kept {
    /// Status of the answer.
    pub(crate) async fn call(&mut self, method: &str, path: &str, body: &str) -> u16 {
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        status
    }
}
