//! Checks the certificate of a server as far as the URL demands it.
//!
//! A server may also show one of the named certificates itself, such as a self-signed one. The TLS
//! library by itself rejects a server whose certificate is that of an authority.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// What is checked of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// An authority that is trusted has signed it for this host.
    All,
    /// An authority that is trusted has signed it, for whatever host.
    Authority,
    /// Nothing: anybody between the two ends can read what passes.
    Nothing,
}

#[derive(Debug)]
struct Verifier {
    /// The verifier of the library, unless nothing is checked.
    usual: Option<Arc<WebPkiServerVerifier>>,
    named: Vec<CertificateDer<'static>>,
    checks_host: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Accepts what the roots have signed, and the named certificates themselves.
pub fn verifier(
    roots: RootCertStore,
    named: Vec<CertificateDer<'static>>,
    checks: Checks,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let usual = || WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    let usual = (checks != Checks::Nothing).then(usual).transpose();
    Ok(Arc::new(Verifier {
        usual: usual.map_err(|error| Error::General(error.to_string()))?,
        named,
        checks_host: checks == Checks::All,
        algorithms: provider.signature_verification_algorithms,
    }))
}

/// Whether the certificate was rejected as that of an authority. The library has only a text for
/// this.
pub(crate) fn is_authority(bad: &CertificateError) -> bool {
    matches!(bad, CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity"))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(usual) = &self.usual else { return Ok(ServerCertVerified::assertion()) };
        match usual.verify_server_cert(shown, intermediates, name, ocsp_response, now) {
            // The library has checked the dates, and the signature of the handshake proves the key.
            Err(Error::InvalidCertificate(bad)) if is_authority(&bad) && self.named.contains(shown) => {
                if self.checks_host {
                    verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            // The library checks the host last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_host => Ok(ServerCertVerified::assertion()),
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, shown, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
