//! Sets up the TLS client: trusted authorities, the client certificate, and errors in words.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};

use crate::store::error::Error as StoreError;
use crate::store::redis::failure::ErrorKind;
use crate::store::redis::node::Node;
use crate::store::redis::target::{Target, TlsFiles};
use crate::system::files;
use crate::words::{Explained, reason};

mod pinned;

/// The largest file of certificates or of a key. All authorities that a system trusts take 250 KB.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl Target {
    /// Whether [`with_tls`](Self::with_tls) reads files.
    pub(in crate::store) fn speaks_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads the certificates and keys, if the target speaks TLS. Blocks while the file system
    /// does.
    ///
    /// # Errors
    /// A file can't be used.
    pub(in crate::store) fn with_tls(mut self) -> Result<Self, StoreError> {
        let server = self.shown();
        if let Some(files) = &self.tls {
            self.tls_config = Some(config(files).map_err(|kind| kind.of(&server))?);
        }
        Ok(self)
    }
}

/// A TLS client for one connection to `node`; none if the target does not speak TLS.
///
/// [`Target::with_tls`] has read the files: a reconnect in the poll loop must not wait for a file
/// system.
pub(super) fn client(target: &Target, node: &Node) -> Result<Option<ClientConnection>, ErrorKind> {
    let Some(files) = &target.tls else { return Ok(None) };
    let Some(config) = &target.tls_config else {
        return Err(ErrorKind::Tls("its certificates were not read".into()));
    };
    let client = ClientConnection::new(Arc::clone(config), name(files, node)?);
    client.map(Some).map_err(|error| from_tls(&error))
}

fn config(files: &TlsFiles) -> Result<Arc<ClientConfig>, ErrorKind> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| from_tls(&error))?;
    let config = match files.ca.as_deref() {
        None => config.with_root_certificates(trusted(None)?),
        Some(ca) => {
            let verifier = pinned::verifier(trusted(Some(ca))?, certificates(ca)?, &provider);
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
                ErrorKind::Tls(Explained::new(what, "give both of one pair"))
            })?
        }
    };
    Ok(Arc::new(config))
}

fn name(files: &TlsFiles, node: &Node) -> Result<ServerName<'static>, ErrorKind> {
    let host = match (node, &files.server_name) {
        (_, Some(name)) => name,
        (Node::Tcp { host, .. }, None) => host,
        (Node::Unix(_), None) => "localhost",
    };
    let without_zone = host.split_once('%').map_or(host, |(address, _zone)| address);
    let without_zone = without_zone.strip_suffix('.').unwrap_or(without_zone);
    ServerName::try_from(without_zone.to_owned()).map_err(|_| {
        let what = "the host has a name that no certificate can have";
        ErrorKind::Tls(Explained::new(what, "give another by ?server-name="))
    })
}

fn trusted(ca: Option<&Path>) -> Result<RootCertStore, ErrorKind> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|_| {
                    let what = format!("'{}' has a certificate that is no authority's", path.display());
                    ErrorKind::Tls(Explained::new(what, "give another"))
                })?;
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            // Systems ship a few certificates that can't be parsed; any other one suffices.
            roots.add_parsable_certificates(system.certs);
            if roots.is_empty() {
                let remedy = "install ca-certificates, or name a file by ?ca=FILE";
                return Err(ErrorKind::Tls(Explained::new("this system trusts no authority", remedy)));
            }
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ErrorKind> {
    let read = CertificateDer::pem_slice_iter(&pem(path, "certificate")?).collect::<Result<Vec<_>, _>>();
    read.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(|| lacks(path, "certificate"))
}

fn pem(path: &Path, kind: &str) -> Result<Vec<u8>, ErrorKind> {
    files::read(path, FILE_BYTES_MAX).map_err(|error: io::Error| {
        let (shown, why) = (path.display(), reason(&error));
        let what = format!("cannot read the {kind} file '{shown}': {why}");
        ErrorKind::Tls(Explained::new(what, "name a regular file"))
    })
}

fn lacks(path: &Path, kind: &str) -> ErrorKind {
    ErrorKind::Tls(Explained::new(
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
pub(super) fn end_of(certificate: &CertificateDer<'_>) -> Option<Duration> {
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
pub(super) fn from_tls(error: &Error) -> ErrorKind {
    use CertificateError as Bad;
    match error {
        Error::InvalidCertificate(Bad::UnknownIssuer) => ErrorKind::UnknownAuthority,
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => ErrorKind::WrongName,
        Error::InvalidCertificate(
            Bad::Expired | Bad::ExpiredContext { .. } | Bad::NotValidYet | Bad::NotValidYetContext { .. },
        ) => ErrorKind::Expired,
        Error::InvalidMessage(_) => ErrorKind::IsPlain,
        Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied,
        ) => ErrorKind::WantsCertificate,
        other => ErrorKind::Tls(in_words(other)),
    }
}

/// The rest, in words for the user.
fn in_words(error: &Error) -> Explained {
    let (what, remedy) = match error {
        Error::InvalidCertificate(CertificateError::Revoked) => ("its certificate is revoked", "give it another"),
        Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => ("its certificate is not one for servers", "give it another"),
        Error::InvalidCertificate(bad) => match bad.to_string() {
            _ if pinned::is_authority(bad) => {
                let remedy = "name that very one by ?ca=FILE, or give it one signed by another";
                ("its certificate is an authority's own", remedy)
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
            ("it broke off, as one does that wants a certificate of the client", "name it by ?cert=FILE&key=FILE")
        }
        _ => ("it broke off, or does not keep to the protocol", "see its log"),
    };
    Explained::new(what, remedy)
}

#[cfg(test)]
mod tests;
