//! The authority of a fabric (X.509, for TLS only), and the certificates that it signs for the manager.

use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::sync::Arc;

use manager::model::{FabricId, Node, WallTime};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ED25519, SigningKey, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use thiserror::Error;

use crate::keys::{random, sha256};
use crate::trust::authority_key;

/// How long the authority's certificate is good.
pub const AUTHORITY_DAYS: u64 = 20 * 365;
/// How long one that it signs is good.
pub const SERVER_DAYS: u64 = 90;
/// How long the certificate of a node is good.
pub const NODE_DAYS: u64 = 30;
/// How often the manager signs a new one for itself.
pub const RENEW: Duration = Duration::from_secs(86_400);
/// By how much earlier than now a certificate begins: clocks differ.
const BACKDATED: Duration = Duration::from_secs(86_400);
/// No certificate is good beyond the year 9999 (RFC 5280 §4.1.2.5), and years of a clock that is wrong may be.
const LAST: WallTime = WallTime(250_000_000_000_000);
const DAY: Duration = Duration::from_secs(86_400);

/// A certificate could not be made, or not read.
#[derive(Debug, Error)]
pub enum BadCertificate {
    /// Its name.
    #[error("no certificate can be made for `{name}`: {why}")]
    Name {
        /// It.
        name: String,
        /// Why.
        why: String,
    },
    /// The library refuses.
    #[error("the certificate cannot be made: {why}")]
    Sign {
        /// Why.
        why: String,
    },
    /// The authority's files.
    #[error("the authority's {what} cannot be read: {why}; take it from a copy of the fabric's folder")]
    Read {
        /// Certificate or key.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// The key is another one's.
    #[error(
        "the authority's key is not the one of its certificate: take both from one copy of the fabric's folder"
    )]
    OtherKey,
}

/// When a certificate of a node was issued.
pub fn issued(certificate: &link::Certificate) -> WallTime {
    WallTime(certificate.not_before.saturating_add(BACKDATED.as_millis() as u64))
}

/// What is wrong with the times of a certificate of a node, by this clock, in words with all of them.
pub fn untimely(certificate: &link::Certificate, now: WallTime) -> Option<String> {
    let (from, until) = (WallTime(certificate.not_before), WallTime(certificate.not_after));
    match now {
        now if now < from => Some(format!("is good from {from} on only, and it is {now}")),
        now if now >= until => Some(format!("was good until {until}, and it is {now}")),
        _ => None,
    }
}

/// A fabric's authority: who trusts its certificate trusts those that it signs.
pub struct Authority {
    fabric: FabricId,
    certificate: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// The library refuses.
    pub fn new(fabric: FabricId, now: WallTime) -> Result<Self, BadCertificate> {
        // Its signatures are short enough for the first frame of a handshake between nodes.
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(refused)?;
        let certificate = params(fabric, now, AUTHORITY_DAYS).self_signed(&key).map_err(refused)?;
        Ok(Self { fabric, pem: certificate.pem(), certificate: certificate.der().clone(), key })
    }

    /// That of these files.
    ///
    /// # Errors
    /// They cannot be read, or do not belong together.
    pub fn load(fabric: FabricId, certificate_pem: &str, key_pem: &str) -> Result<Self, BadCertificate> {
        let read = |what, why: String| BadCertificate::Read { what, why };
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|error| read("certificate", error.to_string()))?;
        let key = KeyPair::from_pem(key_pem).map_err(|error| read("key", error.to_string()))?;
        if !key.is_compatible(&PKCS_ED25519) {
            let why = "it is not of Ed25519: this fabric is of an earlier release, so make another one with `causeway \
                       init`, and let the nodes join that";
            return Err(read("key", why.to_owned()));
        }
        let public = key.public_key_raw();
        if !certificate.windows(public.len()).any(|part| part == public) {
            return Err(BadCertificate::OtherKey);
        }
        Ok(Self { fabric, certificate, pem: certificate_pem.to_owned(), key })
    }

    /// Its certificate as text.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// SHA-256 of its certificate, by which join tokens name it.
    pub fn fingerprint(&self) -> [u8; 32] {
        sha256(&self.certificate)
    }

    /// Its public key (Ed25519), by which nodes check certificates of others.
    pub fn public(&self) -> [u8; 32] {
        // It was made or read as a key of that kind.
        authority_key(&self.certificate).unwrap_or_default()
    }

    /// The certificate of a node, for the handshake with others: with its signature, as it goes over the wire.
    ///
    /// # Errors
    /// The library refuses.
    pub fn certify(&self, node: &Node, now: WallTime) -> Result<Vec<u8>, BadCertificate> {
        let ms = |days: u64| days * 86_400_000;
        let certificate = link::Certificate {
            fabric: self.fabric.0,
            key: link::PublicKey(node.key.0),
            serial: u64::from_le_bytes(random()),
            not_before: now.0.saturating_sub(BACKDATED.as_millis() as u64),
            not_after: now.0.saturating_add(ms(NODE_DAYS)),
            base: node.block.base(),
            domains: node.block.len(),
            name: node.name.to_string(),
            groups: node.groups.iter().collect(),
        };
        let signature = self.key.sign(&certificate.to_be_signed()).map_err(refused)?;
        let signature = signature.as_slice().try_into().map_err(|_| BadCertificate::Sign {
            why: "the signature has another length than those of Ed25519".to_owned(),
        })?;
        Ok(certificate.with_signature(&signature))
    }

    /// What a certificate says that this authority has signed for a node; `None`: it has not. Its time may be over, or
    /// may not have come: see [`untimely`].
    pub fn read(&self, certificate: &[u8]) -> Option<link::Certificate> {
        link::Certificate::read(certificate, &self.public()).filter(|it| it.fabric == self.fabric.0)
    }

    /// Its key, for its file.
    pub(super) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// A certificate for these host names and addresses with a new key, and the authority's own behind it. It is good
    /// from a day before the first of both times until 90 days after the second: where nobody knows which clock is
    /// right, by both.
    ///
    /// # Errors
    /// A name cannot be in one.
    pub fn sign(
        &self,
        names: &[String],
        times: RangeInclusive<WallTime>,
    ) -> Result<Arc<CertifiedKey>, BadCertificate> {
        if let Some(name) = names.iter().find(|name| !name.is_ascii() || name.is_empty()) {
            let why =
                "a host name is of ASCII letters, digits, `-` and `.` (write others in punycode)".to_owned();
            return Err(BadCertificate::Name { name: name.clone(), why });
        }
        let key = KeyPair::generate().map_err(refused)?;
        let issuer = Issuer::new(params(self.fabric, *times.start(), AUTHORITY_DAYS), &self.key);
        let certificate = server_params(names, &times)?.signed_by(&key, &issuer).map_err(refused)?;
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|why| BadCertificate::Sign { why: why.to_owned() })?;
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)
            .map_err(|error| BadCertificate::Sign { why: error.to_string() })?;
        Ok(Arc::new(CertifiedKey::new(chain, key)))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority(of {})", self.fabric)
    }
}

fn refused(error: rcgen::Error) -> BadCertificate {
    BadCertificate::Sign { why: error.to_string() }
}

fn valid(params: &mut CertificateParams, times: &RangeInclusive<WallTime>, days: u64) {
    let date = |time: &WallTime| date_time_ymd(1970, 1, 1) + Duration::from_millis(time.0.min(LAST.0));
    params.not_before = date(times.start()) - BACKDATED;
    params.not_after = date(times.end()) + DAY * u32::try_from(days).unwrap_or(u32::MAX);
}

/// The authority's own: whatever signs has to have the same name.
fn params(fabric: FabricId, now: WallTime, days: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Causeway fabric {fabric}"));
    // It signs for servers, and for no other authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, &(now..=now), days);
    params
}

fn server_params(
    names: &[String],
    times: &RangeInclusive<WallTime>,
) -> Result<CertificateParams, BadCertificate> {
    let mut params = CertificateParams::new(names.to_vec()).map_err(refused)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Causeway manager");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    valid(&mut params, times, SERVER_DAYS);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    const NOW: WallTime = WallTime(1_800_000_000_000);

    /// What a client of rustls says to a certificate, so many days later.
    fn check(
        signed: &CertifiedKey,
        trusted: &Authority,
        name: &'static str,
        days: u64,
    ) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_millis(NOW.0) + DAY * days as u32);
        let name = ServerName::try_from(name).unwrap();
        let verdict = verifier.verify_server_cert(&signed.cert[0], &signed.cert[1..], &name, &[], at);
        verdict.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn what_an_authority_signs_is_good_for_its_names_and_days_and_no_others() {
        let (ours, others) = (
            Authority::new(FabricId([1; 16]), NOW).unwrap(),
            Authority::new(FabricId([1; 16]), NOW).unwrap(),
        );
        // As after a restart, years later by its own clock.
        let ours = Authority::load(FabricId([1; 16]), ours.pem(), &ours.key_pem()).unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let signed = ours.sign(&names, NOW..=NOW).unwrap();
        assert_eq!(check(&signed, &ours, "localhost", 0), Ok(()));
        assert_eq!(check(&signed, &ours, "127.0.0.1", SERVER_DAYS - 1), Ok(()));
        assert!(check(&signed, &ours, "localhost", SERVER_DAYS + 1).is_err());
        assert!(check(&signed, &ours, "127.0.0.2", 0).is_err());
        assert!(check(&signed, &others, "localhost", 0).is_err());
        let years = NOW.plus_s(10 * 365 * 86_400);
        let much_later = ours.sign(&names, years..=years).unwrap();
        assert_eq!(check(&much_later, &ours, "localhost", 10 * 365), Ok(()));
        assert_eq!(sha256(&signed.cert[1]), ours.fingerprint(), "who has only its hash gets the rest");
    }

    #[test]
    fn where_two_clocks_differ_a_certificate_is_good_by_both() {
        let ours = Authority::new(FabricId([1; 16]), NOW).unwrap();
        let names = ["localhost".to_owned()];
        let signed = ours.sign(&names, NOW..=NOW.plus_s(300 * 86_400)).unwrap();
        for days in [0, 300, 300 + SERVER_DAYS - 1] {
            assert_eq!(check(&signed, &ours, "localhost", days), Ok(()), "{days}");
        }
        // No clock makes it panic.
        let _ = ours.sign(&names, WallTime(0)..=WallTime(u64::MAX));
    }

    #[test]
    fn files_that_do_not_belong_together_are_named() {
        let (one, two) = (
            Authority::new(FabricId([1; 16]), NOW).unwrap(),
            Authority::new(FabricId([1; 16]), NOW).unwrap(),
        );
        let load =
            |certificate: &str, key: &str| Authority::load(FabricId([1; 16]), certificate, key).unwrap_err();
        assert!(matches!(load(one.pem(), &two.key_pem()), BadCertificate::OtherKey));
        assert!(matches!(load("", &two.key_pem()), BadCertificate::Read { what: "certificate", .. }));
        assert!(matches!(load(one.pem(), "x"), BadCertificate::Read { what: "key", .. }));
        assert!(!format!("{one:?}").contains("PRIVATE"));
    }
}
