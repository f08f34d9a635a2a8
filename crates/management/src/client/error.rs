//! Why a manager was asked in vain.

use manager::model::WallTime;
use rustls::CertificateError;
use thiserror::Error;

use crate::shapes::Problem;

/// Why something that was asked of a manager has not come.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The URL is none that can be asked, or the authority is no certificate.
    #[error("{0}")]
    Credentials(String),
    /// The machine gives no means to ask.
    #[error("cannot ask a manager: {0}")]
    Machine(std::io::Error),
    /// Nobody answers there.
    #[error("no manager answers at {url}: {why}")]
    Unreachable {
        /// Where.
        url: String,
        /// What happened, and what may be looked at.
        why: String,
    },
    /// A change was asked for, and the connection broke before the answer came, again and again.
    #[error(
        "the manager at {url} has not answered whether it is done: {why}. It may be: look, or give the same command \
         again, which does nothing twice"
    )]
    Unknown {
        /// Where.
        url: String,
        /// What happened last.
        why: String,
    },
    /// Whoever answers there is not of the fabric whose authority is known.
    #[error(
        "the certificate of whoever answers at {url} is of another fabric, or forged: nothing was asked there"
    )]
    OtherFabric {
        /// Where.
        url: String,
    },
    /// The certificate is not good for another reason.
    #[error("the certificate of the manager at {url} {why}")]
    Certificate {
        /// Where.
        url: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// What was said is not what a manager says.
    #[error("what answers at {url} is no manager that this version understands: {why}")]
    Answer {
        /// Where.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The manager says no.
    #[error("{}", .0.detail)]
    Problem(Problem),
}

/// Why a connection did not come about, by what TLS says of it.
pub(super) fn of_tls(url: &str, error: &rustls::Error) -> ClientError {
    let url = url.to_owned();
    let certificate = |why: String| ClientError::Certificate { url: url.clone(), why };
    let time = |seconds: u64| WallTime(seconds.saturating_mul(1000));
    match error {
        rustls::Error::InvalidCertificate(bad) => match bad {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                ClientError::OtherFabric { url }
            }
            CertificateError::NotValidForNameContext { presented, .. } => certificate(format!(
                "is for {}, and not for the host of that URL: use one of these in the credentials, or make the manager \
                 known by more names (`causeway init --name HOST`)",
                presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", ")
            )),
            CertificateError::ExpiredContext { time: now, not_after } => certificate(format!(
                "was good until {}, and it is {} by the clock of this machine: if that clock is right, the manager has \
                 to be started again, which renews it",
                time(not_after.as_secs()),
                time(now.as_secs())
            )),
            CertificateError::NotValidYetContext { time: now, not_before } => certificate(format!(
                "is good from {} on, and it is {} by the clock of this machine: one of the two clocks is wrong",
                time(not_before.as_secs()),
                time(now.as_secs())
            )),
            other => certificate(format!("is not good: {other:?}")),
        },
        rustls::Error::InvalidMessage(_) => {
            ClientError::Answer { url, why: "it does not speak TLS".to_owned() }
        }
        other => ClientError::Unreachable { url, why: other.to_string() },
    }
}

/// `a.example` of `DnsName("a.example")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}
