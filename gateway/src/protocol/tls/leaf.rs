//! Leaf certificates for intercepted names, under the run's CA.
//!
//! Takes the agent's short-lived intermediate, gives a TLS server configuration per host, kept in a bounded
//! cache. One P-256 key serves all leaves of the process: it's as short-lived as the process, and a key per leaf
//! would double the cost of a new name and protect nothing, since one process holds them all.

use std::{
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
    SanType, SerialNumber,
};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    server::{NoServerSessionStorage, ProducesTickets},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use strait_contract::message::Intermediate;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::url::Host;

#[cfg(test)]
mod tests;

/// Hosts whose leaf is kept; about 3 KiB each.
const LEAVES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// A leaf is valid from this long ago, for clocks that are behind.
const BACKDATE: Duration = Duration::from_secs(60 * 60);
/// A leaf is valid for this long from now.
const LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// A kept leaf is minted anew when less than this is left of it.
const RENEW: Duration = Duration::from_secs(60 * 60);
/// Longest common name (X.520 upper bound); longer names stand in the SAN only.
const MAX_COMMON_NAME: usize = 64;

/// Why no leaf can be minted.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// The intermediate's chain isn't PEM certificates.
    #[error("the CA chain from the agent can't be read: {0}")]
    Chain(String),
    /// The intermediate's key isn't a usable PKCS#8 key, or not that of its certificate.
    #[error("the CA key from the agent can't be used: {0}")]
    Key(rcgen::Error),
    /// The intermediate has expired or is not valid yet: restart the gateway or correct the clock.
    #[error("the CA certificate from the agent is not valid now: check the clock, then restart the gateway")]
    Expired,
    /// Signing failed.
    #[error("a certificate for `{host}` can't be minted: {source}")]
    Mint {
        /// Host it was for.
        host: Host,
        /// Why.
        source: rcgen::Error,
    },
    /// The TLS library refused the settings.
    #[error("TLS towards the run can't be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The kernel gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(std::io::Error),
}

/// Mints and keeps leaves.
pub struct Minter {
    issuer: Issuer<'static, KeyPair>,
    chain: Vec<CertificateDer<'static>>,
    valid: std::ops::Range<SystemTime>,
    key: KeyPair,
    signer: Arc<dyn rustls::sign::SigningKey>,
    provider: Arc<CryptoProvider>,
    tickets: Arc<dyn ProducesTickets>,
    kept: Mutex<lru::LruCache<Host, Leaf>>,
}

#[derive(Clone)]
struct Leaf {
    renew: SystemTime,
    config: Arc<ServerConfig>,
}

impl fmt::Debug for Minter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Minter").field("valid", &self.valid).finish_non_exhaustive()
    }
}

impl Minter {
    /// Takes the intermediate in and makes the process's leaf key.
    ///
    /// # Errors
    /// See [`LeafError`].
    pub fn new(ca: &Intermediate) -> Result<Self, LeafError> {
        let chain = CertificateDer::pem_slice_iter(ca.chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| LeafError::Chain(error.to_string()))?;
        let first = chain.first().ok_or_else(|| LeafError::Chain("it is empty".to_owned()))?;
        let valid = validity(first)?;
        let ca_key = KeyPair::from_pem(ca.key.expose()).map_err(LeafError::Key)?;
        let issuer = Issuer::from_ca_cert_der(first, ca_key).map_err(LeafError::Key)?;
        let key = KeyPair::generate().map_err(LeafError::Key)?;
        let provider = Arc::new(ring::default_provider());
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signer = provider.key_provider.load_private_key(der)?;
        Ok(Self {
            issuer,
            chain,
            valid,
            key,
            signer,
            provider,
            tickets: ring::Ticketer::new()?,
            kept: Mutex::new(lru::LruCache::new(LEAVES)),
        })
    }

    /// TLS settings with a certificate for `host`: TLS 1.2 and 1.3, `h2` and `http/1.1`, session tickets.
    ///
    /// Tickets are accepted for any host, as they hold no more than keys that their client made; the name they were
    /// issued for is checked by rustls.
    ///
    /// # Errors
    /// See [`LeafError`].
    pub fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, LeafError> {
        let now = SystemTime::now();
        if let Some(leaf) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(host)
            && now < leaf.renew
        {
            return Ok(leaf.config.clone());
        }
        // Minted outside the lock: two who ask at once both mint, and the later one stays.
        let leaf = self.mint(host, now)?;
        let config = leaf.config.clone();
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).put(host.clone(), leaf);
        Ok(config)
    }

    fn mint(&self, host: &Host, now: SystemTime) -> Result<Leaf, LeafError> {
        if !self.valid.contains(&now) {
            return Err(LeafError::Expired);
        }
        let from = (now - BACKDATE).max(self.valid.start);
        let to = (now + LIFE).min(self.valid.end);
        let failed = |source| LeafError::Mint { host: host.clone(), source };
        let params = params(host, from, to)?;
        let certificate = params.signed_by(&self.key, &self.issuer).map_err(failed)?;
        let mut chain = Vec::with_capacity(1 + self.chain.len());
        chain.push(certificate.der().clone());
        chain.extend(self.chain.iter().cloned());
        let certified = CertifiedKey::new(chain, self.signer.clone());
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.ticketer = self.tickets.clone();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 1;
        // Near the intermediate's end there is less than RENEW left: then each connection mints.
        Ok(Leaf { renew: to.checked_sub(RENEW).unwrap_or(now), config: Arc::new(config) })
    }
}

fn params(host: &Host, from: SystemTime, to: SystemTime) -> Result<CertificateParams, LeafError> {
    let failed = |source| LeafError::Mint { host: host.clone(), source };
    let mut params = CertificateParams::default();
    let common = host.to_string();
    params.distinguished_name = DistinguishedName::new();
    if common.len() <= MAX_COMMON_NAME {
        params.distinguished_name.push(DnType::CommonName, common);
    } else {
        params.distinguished_name.push(DnType::CommonName, "strait");
    }
    params.subject_alt_names = vec![match host {
        Host::Name(name) => SanType::DnsName(name.as_str().try_into().map_err(failed)?),
        Host::Address(addr) => SanType::IpAddress(*addr),
    }];
    params.not_before = OffsetDateTime::from(from);
    params.not_after = OffsetDateTime::from(to);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    // One key for all leaves, so the serial must tell them apart: clients refuse two certificates of one
    // issuer and serial.
    let mut serial = [0; 16];
    rustix::rand::getrandom(&mut serial, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| LeafError::Random(error.into()))?;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

fn validity(certificate: &CertificateDer<'_>) -> Result<std::ops::Range<SystemTime>, LeafError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| LeafError::Chain(error.to_string()))?;
    let at = |seconds: i64| {
        u64::try_from(seconds).map_or(UNIX_EPOCH, |seconds| UNIX_EPOCH + Duration::from_secs(seconds))
    };
    let validity = parsed.validity();
    Ok(at(validity.not_before.timestamp())..at(validity.not_after.timestamp()))
}
