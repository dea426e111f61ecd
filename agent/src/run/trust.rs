//! What a run trusts: the host's own roots and Strait's, in every form that clients read.
//!
//! Made once for a set of roots; runs mount it read-only, so that a run's start pays nothing for it.
//! `real-clients`: some clients obey only the system bundle (wget, apt), some only a variable (pip, Node), some
//! only a key store (Java), and a variable mostly *replaces* the bundle, so its file holds the public roots too.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sha2::{Digest as _, Sha256};

/// System bundles of the distributions; the ones a host has are replaced inside a run.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Folder of single certificates that OpenSSL looks up by hash.
const HASHED: &str = "/etc/ssl/certs";
/// Java's public roots on Debian.
const JAVA_ROOTS: &str = "/etc/ssl/certs/java/cacerts";
/// Password of every Java trust store: it protects nothing, certificates are public.
const JAVA_PASSWORD: &str = "changeit";

/// Where the bundle is inside a run.
pub const BUNDLE_INSIDE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Where Strait's root alone is inside a run.
pub const ROOT_INSIDE: &str = "/etc/ssl/certs/strait-root.pem";
/// Where the Java trust store is inside a run.
pub const JAVA_INSIDE: &str = "/etc/ssl/certs/java/strait.jks";

/// The folder with everything in it.
#[derive(Clone, Debug)]
pub struct Trust {
    folder: PathBuf,
}

/// Why the trust files could not be made.
#[derive(Debug, thiserror::Error)]
#[error("`{path}` can't be written", path = path.display())]
pub struct TrustError {
    path: PathBuf,
    source: io::Error,
}

impl Trust {
    /// The files made from the host's roots and `root_pem`, below `base`: those of an earlier start if the roots are
    /// still the same. Never written over, because live runs have them mounted.
    ///
    /// # Errors
    /// [`TrustError`] if the folder can't be written. A host without public roots, OpenSSL or Java gets what can be
    /// made without them.
    pub fn build(base: &Path, root_pem: &str) -> Result<Self, TrustError> {
        let bundle = joined(root_pem);
        let folder = base.join(digest(&bundle));
        if !folder.exists() {
            let fresh = base.join(".fresh");
            write(&fresh, root_pem, &bundle)?;
            fs::rename(&fresh, &folder).map_err(failed(&folder))?;
            // Java's keytool takes seconds: no start waits for it. Runs started before it's done lack the store.
            let certs = folder.join("certs");
            std::thread::spawn(move || java_store(&certs, &certs.join("strait-root.pem")));
        }
        Ok(Self { folder })
    }

    /// What to mount read-only into a run: host path, path inside.
    pub fn mounts(&self) -> Vec<(PathBuf, PathBuf)> {
        let certs = self.folder.join("certs");
        let bundle = certs.join("ca-certificates.crt");
        let mut mounts = vec![(certs, PathBuf::from(HASHED))];
        let others = BUNDLES.iter().map(Path::new).filter(|path| !path.starts_with(HASHED) && path.exists());
        mounts.extend(others.map(|inside| (bundle.clone(), inside.to_owned())));
        mounts
    }

    /// The variables that make clients trust it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        const BUNDLE_VARIABLES: &[&str] = &[
            "SSL_CERT_FILE",
            "CURL_CA_BUNDLE",
            "REQUESTS_CA_BUNDLE",
            "PIP_CERT",
            "GIT_SSL_CAINFO",
            "CARGO_HTTP_CAINFO",
            "AWS_CA_BUNDLE",
            "DENO_CERT",
            "npm_config_cafile",
        ];
        let mut variables: Vec<_> =
            BUNDLE_VARIABLES.iter().map(|name| (*name, BUNDLE_INSIDE.to_owned())).collect();
        // Node adds this file to its built-in roots, so it needs ours alone.
        variables.push(("NODE_EXTRA_CA_CERTS", ROOT_INSIDE.to_owned()));
        // Made last, when the store is complete.
        if self.folder.join("certs/java/cacerts").exists() {
            let options = format!(
                "-Djavax.net.ssl.trustStore={JAVA_INSIDE} -Djavax.net.ssl.trustStorePassword={JAVA_PASSWORD}"
            );
            variables.push(("JAVA_TOOL_OPTIONS", options));
        }
        variables
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> TrustError {
    let path = path.to_owned();
    move |source| TrustError { path: path.clone(), source }
}

/// What the files are made of: the bundle, and Java's roots as far as their file tells without being read.
fn digest(bundle: &str) -> String {
    let java = fs::metadata(JAVA_ROOTS).map(|java| (java.len(), java.mtime())).unwrap_or_default();
    let digest = Sha256::new().chain_update(bundle).chain_update(format!("{java:?}")).finalize();
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn write(folder: &Path, root_pem: &str, bundle: &str) -> Result<(), TrustError> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed(folder))?;
    }
    let certs = folder.join("certs");
    fs::create_dir_all(certs.join("java")).map_err(failed(&certs))?;
    let root = certs.join("strait-root.pem");
    fs::write(&root, root_pem).map_err(failed(&root))?;
    copy_hashed(Path::new(HASHED), &certs).map_err(failed(&certs))?;
    let joined = certs.join("ca-certificates.crt");
    // The host's bundle may be a link in the copied folder.
    let _ = fs::remove_file(&joined);
    fs::write(&joined, bundle).map_err(failed(&joined))?;
    link_by_hash(&certs, &root);
    Ok(())
}

/// The host's bundle with ours behind it.
fn joined(root_pem: &str) -> String {
    let mut text = BUNDLES.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(root_pem);
    text
}

/// Copies the host's folder of single certificates: links stay links (they point below `/usr`, which a run sees).
fn copy_hashed(from: &Path, to: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, target)?;
        } else if kind.is_file() && !target.exists() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// OpenSSL's hash of the subject needs OpenSSL; a client that has no variable and reads only the hashed folder
/// doesn't trust us on a host without the `openssl` command.
fn link_by_hash(certs: &Path, root: &Path) {
    let output = Command::new("openssl").args(["x509", "-noout", "-hash", "-in"]).arg(root).output();
    let Ok(output) = output else { return };
    let hash = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        // A failure leaves the other ways to trust us.
        let _ = std::os::unix::fs::symlink("strait-root.pem", certs.join(format!("{hash}.0")));
    }
}

/// A Java trust store, if the host has Java's `keytool`. Java takes JKS, not a PKCS12 with a password.
fn java_store(certs: &Path, root: &Path) {
    let store = certs.join("java/strait.jks");
    if Path::new(JAVA_ROOTS).exists() && fs::copy(JAVA_ROOTS, &store).is_err() {
        return;
    }
    let made = Command::new("keytool")
        .args(["-importcert", "-noprompt", "-trustcacerts", "-storetype", "JKS", "-alias", "strait"])
        .args(["-storepass", JAVA_PASSWORD, "-keystore"])
        .arg(&store)
        .arg("-file")
        .arg(root)
        .stdin(Stdio::null())
        .output();
    match made {
        // Debian's JDKs read this name without being told.
        Ok(output) if output.status.success() => {
            // Without it the variables still name the store.
            let _ = std::os::unix::fs::symlink("strait.jks", certs.join("java/cacerts"));
        }
        Ok(output) => {
            tracing::warn!(
                detail = %String::from_utf8_lossy(&output.stdout).trim(),
                "no Java trust store: Java programs won't reach intercepted hosts"
            );
        }
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

    #[test]
    fn the_bundle_holds_the_hosts_roots_and_ours() {
        let folder = tempfile::tempdir().unwrap();
        let trust = Trust::build(&folder.path().join("trust"), ROOT).unwrap();
        let bundle = fs::read_to_string(trust.folder.join("certs/ca-certificates.crt")).unwrap();
        assert!(bundle.ends_with(ROOT));
        let host = fs::read_to_string(BUNDLE_INSIDE).expect("install ca-certificates: cargo xtask setup");
        assert!(bundle.starts_with(&host));
        assert_eq!(fs::read_to_string(trust.folder.join("certs/strait-root.pem")).unwrap(), ROOT);
        let again = Trust::build(&folder.path().join("trust"), ROOT).unwrap();
        assert_eq!(again.folder, trust.folder, "live runs keep their files over a restart");
        let other = Trust::build(&folder.path().join("trust"), &ROOT.replace("MIIB", "MIIC")).unwrap();
        assert_ne!(other.folder, trust.folder);
        assert!(trust.environment().iter().any(|(name, _)| *name == "npm_config_cafile"));
    }
}
