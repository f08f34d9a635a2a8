//! Believing one authority, which is the fabric's, and no other.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Before the 32 bytes of a key in a certificate of X.509: algorithm Ed25519 (RFC 8410), and a bit string.
const ED25519_KEY: [u8; 8] = [0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The public key (Ed25519) of the authority that has this certificate.
pub(crate) fn authority_key(certificate: &CertificateDer<'_>) -> Option<[u8; 32]> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone().into_owned()).ok()?;
    let info = roots.roots.first()?.subject_public_key_info.as_ref();
    let (before, key) = info.split_last_chunk::<32>()?;
    before.ends_with(&ED25519_KEY).then_some(*key)
}

/// The public key of the authority that has this certificate, in PEM.
pub fn authority_key_of(pem: &str) -> Option<[u8; 32]> {
    authority_key(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?)
}

/// A client of managers whose certificates lead to this authority, in PEM. `None`: that is no certificate.
pub(crate) fn trusting(authority: &str) -> Option<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.ok()?).ok()?;
    }
    if roots.is_empty() {
        return None;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    Some(config.ok()?.with_root_certificates(roots).with_no_client_auth())
}
