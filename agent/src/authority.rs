//! Strait's certificate authority: a root whose key stays with the agent, and short-lived intermediates for
//! the gateway.
//!
//! Runs trust the root; the host never does. Name constraints aren't set: several TLS stacks in use refuse or
//! misread them, and the root is trusted inside runs only.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use strait_contract::message::{Intermediate, Secret};
use zeroize::Zeroizing;

/// Days that an intermediate is good for. A gateway that lives longer is given a new one by a fresh link.
pub const INTERMEDIATE_DAYS: i64 = 30;
const ROOT_DAYS: i64 = 3650;

/// The root certificate with its key.
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    name: String,
}

/// Why the authority can't work.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file of it can't be read or made.
    #[error("`{path}` of the certificate authority can't be used: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What the files hold isn't a key with its certificate.
    #[error(
        "`{path}` doesn't hold a root certificate with its key ({source}): move the folder away to make a new root"
    )]
    Malformed {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: rcgen::Error,
    },
    /// A certificate could not be made.
    #[error("a certificate could not be made: {0}")]
    Issue(rcgen::Error),
}

impl Authority {
    /// Reads the root in `state_dir/ca` (0700), or makes it on first use.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn load_or_make(state_dir: &Path, instance: &str) -> Result<Self, AuthorityError> {
        let folder = state_dir.join("ca");
        let (certificate, key) = (folder.join("root.pem"), folder.join("root.key"));
        let fault = |path: &Path| {
            let path = path.to_owned();
            move |source| AuthorityError::File { path, source }
        };
        match fs::read_to_string(&certificate) {
            Ok(pem) => {
                let key = Zeroizing::new(fs::read_to_string(&key).map_err(fault(&key))?);
                Self::from_pem(pem, &key, instance)
                    .map_err(|source| AuthorityError::Malformed { path: folder, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (pem, secret) = make_root(instance).map_err(AuthorityError::Issue)?;
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(fault(&folder))?;
                // The certificate comes last: with it there, the key is whole.
                write(&key, 0o600, &secret).map_err(fault(&key))?;
                write(&certificate, 0o644, &pem).map_err(fault(&certificate))?;
                Self::from_pem(pem, &secret, instance)
                    .map_err(|source| AuthorityError::Malformed { path: folder, source })
            }
            Err(error) => Err(fault(&certificate)(error)),
        }
    }

    fn from_pem(pem: String, key: &str, instance: &str) -> Result<Self, rcgen::Error> {
        let issuer = Issuer::from_ca_cert_pem(&pem, KeyPair::from_pem(key)?)?;
        Ok(Self { pem, issuer, name: instance.to_owned() })
    }

    /// The root certificate that runs trust.
    pub fn root_pem(&self) -> &str {
        &self.pem
    }

    /// A new intermediate for a gateway, good for [`INTERMEDIATE_DAYS`].
    ///
    /// # Errors
    /// [`AuthorityError::Issue`].
    pub fn intermediate(&self) -> Result<Intermediate, AuthorityError> {
        let issue = || -> Result<Intermediate, rcgen::Error> {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
            let params = params(&format!("Strait {} gateway", self.name), 0, INTERMEDIATE_DAYS);
            let certificate = params.signed_by(&key, &self.issuer)?;
            Ok(Intermediate { chain: certificate.pem(), key: Secret::new(key.serialize_pem()) })
        };
        issue().map_err(AuthorityError::Issue)
    }
}

fn make_root(instance: &str) -> Result<(String, Zeroizing<String>), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    // Two roots of one name would confuse stores that look issuers up by name.
    let mark = uuid::Uuid::now_v7().simple().to_string();
    let mark = mark.get(20..).unwrap_or_default();
    let certificate = params(&format!("Strait {instance} root {mark}"), 1, ROOT_DAYS).self_signed(&key)?;
    Ok((certificate.pem(), Zeroizing::new(key.serialize_pem())))
}

fn params(name: &str, path_length: u8, days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, "Strait");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    // A day back, for clocks that differ a little.
    let (year, month, day) = in_days(-1);
    params.not_before = rcgen::date_time_ymd(year, month, day);
    let (year, month, day) = in_days(days);
    params.not_after = rcgen::date_time_ymd(year, month, day);
    params
}

/// Year, month and day that many days from now.
fn in_days(days: i64) -> (i32, u8, u8) {
    let at = jiff::Timestamp::now().as_second() + days * 86_400;
    let date = jiff::Timestamp::from_second(at)
        .unwrap_or_default()
        .to_zoned_datetime(jiff::tz::TimeZone::UTC)
        .date();
    let positive = |part: i8| u8::try_from(part).unwrap_or(1);
    (i32::from(date.year()), positive(date.month()), positive(date.day()))
}

fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_root_is_made_once_and_its_folder_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let first = Authority::load_or_make(dir.path(), "t").unwrap();
        let again = Authority::load_or_make(dir.path(), "t").unwrap();
        assert_eq!(first.root_pem(), again.root_pem());
        let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("ca"), mode("ca/root.key")), (0o700, 0o600));
        let other = tempfile::tempdir().unwrap();
        assert_ne!(Authority::load_or_make(other.path(), "t").unwrap().root_pem(), first.root_pem());
    }

    #[test]
    fn a_damaged_root_is_refused_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        Authority::load_or_make(dir.path(), "t").unwrap();
        fs::write(dir.path().join("ca/root.pem"), "junk").unwrap();
        assert!(matches!(Authority::load_or_make(dir.path(), "t"), Err(AuthorityError::Malformed { .. })));
        assert_eq!(fs::read_to_string(dir.path().join("ca/root.pem")).unwrap(), "junk");
    }

    /// A client that checks chains as strictly as OpenSSL takes leaf ← intermediate ← root, and nothing from
    /// another root.
    #[test]
    fn openssl_accepts_a_leaf_of_the_intermediate_under_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::load_or_make(dir.path(), "t").unwrap();
        let intermediate = authority.intermediate().unwrap();
        let issuer = Issuer::from_ca_cert_pem(
            &intermediate.chain,
            KeyPair::from_pem(intermediate.key.expose()).unwrap(),
        )
        .unwrap();
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(["host.test".to_owned()]).unwrap();
        leaf.use_authority_key_identifier_extension = true;
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let other_dir = tempfile::tempdir().unwrap();
        let other = Authority::load_or_make(other_dir.path(), "t").unwrap();
        for (name, text) in [
            ("leaf", leaf.pem()),
            ("chain", intermediate.chain.clone()),
            ("root", authority.root_pem().to_owned()),
            ("other", other.root_pem().to_owned()),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let verify = |root: &str| {
            std::process::Command::new("openssl")
                .args(["verify", "-x509_strict", "-verify_hostname", "host.test", "-CAfile"])
                .args([root, "-untrusted", "chain", "leaf"])
                .current_dir(dir.path())
                .output()
                .expect("openssl is missing: `cargo xtask setup` installs it")
        };
        let good = verify("root");
        assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
        assert!(!verify("other").status.success());
    }
}
