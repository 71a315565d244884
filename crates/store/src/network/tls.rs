//! Sets up the TLS client: trusted authorities, the client certificate, and errors in words.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};

use super::{NetworkError, Spelling};
use rlock_sys::files;
use rlock_words::{Explained, reason};

pub mod pinned;

pub use pinned::Checks;

/// The largest file of certificates or of a key. All authorities that a system trusts take 250 KB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The options of TLS, all of them optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities to trust in place of those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate and key of the client.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the certificate must have in place of the host.
    pub server_name: Option<String>,
}

impl TlsFiles {
    /// All files.
    pub fn paths(&self) -> Vec<&Path> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.ca.iter().chain(identity).map(PathBuf::as_path).collect()
    }

    /// Makes relative paths absolute. `directory` is called only if there is one.
    ///
    /// # Errors
    /// The working directory has no path.
    pub fn anchor(&mut self, directory: impl FnOnce() -> io::Result<PathBuf>) -> io::Result<()> {
        let files =
            self.ca.iter_mut().chain(self.identity.iter_mut().flat_map(|(certificate, key)| [certificate, key]));
        let mut relative = files.filter(|path| path.is_relative()).peekable();
        if relative.peek().is_some() {
            let directory = directory()?;
            relative.for_each(|path| *path = directory.join(&*path));
        }
        Ok(())
    }
}

/// A TLS client for one connection to a host; `localhost` for a socket in the file system.
pub fn client(config: &Arc<ClientConfig>, host: &str, url: &Spelling) -> Result<ClientConnection, NetworkError> {
    let without_zone = host.split_once('%').map_or(host, |(address, _zone)| address);
    let without_zone = without_zone.strip_suffix('.').unwrap_or(without_zone);
    let name = ServerName::try_from(without_zone.to_owned()).map_err(|_| {
        let what = "the host has a name that no certificate can have";
        NetworkError::Tls(Explained::new(what, format!("give another by {}", url.server_name)))
    })?;
    ClientConnection::new(Arc::clone(config), name).map_err(|error| from_tls(&error))
}

/// Reads the certificates and keys. Blocks while the file system does.
///
/// # Errors
/// A file can't be used.
pub fn config(files: &TlsFiles, checks: Checks, url: &Spelling) -> Result<Arc<ClientConfig>, NetworkError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| from_tls(&error))?;
    let config = match (files.ca.as_deref(), checks) {
        (None, Checks::All) => config.with_root_certificates(trusted(None, url)?),
        (ca, checks) => {
            let roots = if checks == Checks::Nothing { RootCertStore::empty() } else { trusted(ca, url)? };
            let named = ca.map_or(Ok(Vec::new()), certificates)?;
            let verifier = pinned::verifier(roots, named, checks, &provider);
            config.dangerous().with_custom_certificate_verifier(verifier.map_err(|error| from_tls(&error))?)
        }
    };
    let config = match &files.identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let pem = pem(key, "key")?;
            let key_read = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| lacks(key, "key"))?;
            config.with_client_auth_cert(chain, key_read).map_err(|_| {
                let what = format!("the key in '{}' does not fit the certificate", key.display());
                NetworkError::Tls(Explained::new(what, "give both of one pair"))
            })?
        }
    };
    Ok(Arc::new(config))
}

/// The authorities in a file, or those of the system.
pub fn trusted(ca: Option<&Path>, url: &Spelling) -> Result<RootCertStore, NetworkError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|_| {
                    let what = format!("'{}' has a certificate that is no authority's", path.display());
                    NetworkError::Tls(Explained::new(what, "give another"))
                })?;
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            // Systems ship a few certificates that can't be parsed; any other one suffices.
            roots.add_parsable_certificates(system.certs);
            if roots.is_empty() {
                let remedy = format!("install ca-certificates, or name a file by {}", url.ca);
                return Err(NetworkError::Tls(Explained::new("this system trusts no authority", remedy)));
            }
        }
    }
    Ok(roots)
}

/// The certificates in a file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NetworkError> {
    let read = CertificateDer::pem_slice_iter(&pem(path, "certificate")?).collect::<Result<Vec<_>, _>>();
    read.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(|| lacks(path, "certificate"))
}

fn pem(path: &Path, kind: &str) -> Result<Vec<u8>, NetworkError> {
    files::read(path, FILE_BYTES_MAX).map_err(|error: io::Error| {
        let (shown, why) = (path.display(), reason(&error));
        let what = format!("cannot read the {kind} file '{shown}': {why}");
        NetworkError::Tls(Explained::new(what, "name a regular file"))
    })
}

fn lacks(path: &Path, kind: &str) -> NetworkError {
    NetworkError::Tls(Explained::new(
        format!("there is no {kind} in '{}'", path.display()),
        "give a PEM file that has one",
    ))
}

/// The first second of the year 10000 since 1970. No certificate can be valid then.
const AFTER_ALL: u64 = 253_402_300_800;

/// The end of a certificate's validity, since 1970.
///
/// The TLS library does not give this instant, and a parser of certificates would be one more
/// dependency. But the verifier names the instant in its error about a certificate that has ended.
pub fn end_of(certificate: &CertificateDer<'_>) -> Option<Duration> {
    let certificate = ParsedCertificate::try_from(certificate).ok()?;
    let late = UnixTime::since_unix_epoch(Duration::from_secs(AFTER_ALL));
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&certificate, &RootCertStore::empty(), &[], late, algorithms) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}

/// The kind of an error of the TLS library.
pub fn from_tls(error: &Error) -> NetworkError {
    use CertificateError as Bad;
    match error {
        Error::InvalidCertificate(Bad::UnknownIssuer) => NetworkError::UnknownAuthority,
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => NetworkError::WrongName,
        Error::InvalidCertificate(
            Bad::Expired | Bad::ExpiredContext { .. } | Bad::NotValidYet | Bad::NotValidYetContext { .. },
        ) => NetworkError::Expired,
        Error::InvalidMessage(_) => NetworkError::IsPlain,
        Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied,
        ) => NetworkError::WantsCertificate,
        other => NetworkError::Handshake(other.clone()),
    }
}

/// The rest, in words for the user.
pub fn in_words(error: &Error, url: &Spelling) -> Explained {
    let remedy;
    let (what, remedy) = match error {
        Error::InvalidCertificate(CertificateError::Revoked) => ("its certificate is revoked", "give it another"),
        Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => ("its certificate is not one for servers", "give it another"),
        Error::InvalidCertificate(bad) => match bad.to_string() {
            _ if pinned::is_authority(bad) => {
                remedy = format!("name that very one by {}, or give it one signed by another", url.ca);
                ("its certificate is an authority's own", &*remedy)
            }
            // The library has no name for this error.
            text if text.contains("UnsupportedCertVersion") => {
                ("its certificate is not of version 3", "give it one with a subjectAltName")
            }
            _ => ("its certificate can't be checked", "give it another"),
        },
        Error::PeerIncompatible(_) | Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            ("it offers neither TLS 1.2 nor 1.3 as rlock speaks them", "see its TLS settings")
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure) => {
            remedy = format!("name it by {}", url.identity);
            ("it broke off, as one does that wants a certificate of the client", &*remedy)
        }
        _ => ("it broke off, or does not keep to the protocol", "see its log"),
    };
    Explained::new(what, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_library_have_messages() {
        let certificate = |error| from_tls(&Error::InvalidCertificate(error));
        assert_eq!(certificate(CertificateError::Expired), NetworkError::Expired);
        assert_eq!(certificate(CertificateError::NotValidYet), NetworkError::Expired);
        for error in [
            Error::InvalidCertificate(CertificateError::Revoked),
            Error::InvalidCertificate(CertificateError::BadEncoding),
            Error::AlertReceived(AlertDescription::ProtocolVersion),
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            Error::DecryptError,
        ] {
            let text = from_tls(&error).words(&Spelling::default()).to_string();
            assert!(text.contains(": ") && !text.contains("Error") && !text.contains(&format!("{error:?}")), "{text}");
        }
    }
}
