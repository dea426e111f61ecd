//! Which upstream certificates are believed: the host's trust store, extra anchors from config, or both.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, client::Resumption, crypto::ring};
use rustls_pki_types::{CertificateDer, pem::PemObject};

/// TLS sessions kept for resumption, in all.
const SESSIONS: usize = 1024;

/// Why the trust anchors can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The extra anchors aren't PEM.
    #[error("the extra trust anchors are not PEM ({0}): correct the files of `network.trust`")]
    Pem(rustls_pki_types::pem::Error),
    /// One of the extra anchors isn't a certificate.
    #[error("an extra trust anchor is not usable ({0}): correct the files of `network.trust`")]
    Anchor(rustls::Error),
    /// The provider offers none of the protocol versions.
    #[error("TLS can't be set up: {0}")]
    Tls(rustls::Error),
}

/// TLS settings towards upstreams.
#[derive(Clone, Debug)]
pub struct Trust {
    /// Settings without ALPN; session resumption is shared and keyed by server name.
    pub(super) config: Arc<ClientConfig>,
    /// How many anchors there are; with none every handshake fails.
    pub(super) anchors: usize,
}

impl Trust {
    /// Reads the anchors: `pem` may be empty; `system` adds the host's store, in which unreadable entries are
    /// passed over with a warning.
    ///
    /// # Errors
    /// See [`TrustError`].
    pub fn new(pem: &str, system: bool) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        for anchor in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(anchor.map_err(TrustError::Pem)?).map_err(TrustError::Anchor)?;
        }
        if roots.is_empty() && !pem.trim().is_empty() {
            return Err(TrustError::Pem(rustls_pki_types::pem::Error::NoItemsFound));
        }
        if system {
            let native = rustls_native_certs::load_native_certs();
            for error in &native.errors {
                tracing::warn!(%error, "a part of the host's trust store can't be read");
            }
            let (_, ignored) = roots.add_parsable_certificates(native.certs);
            if ignored > 0 {
                tracing::warn!(ignored, "certificates of the host's trust store aren't usable");
            }
        }
        let anchors = roots.len();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TrustError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        Ok(Self { config: Arc::new(config), anchors })
    }
}
