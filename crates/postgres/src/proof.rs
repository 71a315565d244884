//! What a login proves, as values that only the check of it can make.

use bytes::BytesMut;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::frontend;

use super::failure::ErrorKind;
use super::target::Target;
use rlock_store::secrets::Password;

/// The URL permits the login, and the server has proved what the URL demands.
pub(super) struct Permitted(());

impl Permitted {
    /// The proof for a method that proves nothing of the server, before the password is looked at.
    pub(super) fn unproved(method: &str, target: &Target) -> Result<Self, ErrorKind> {
        if target.requires_binding { Err(ErrorKind::NoBinding) } else { target.permits(method).map(Self) }
    }
}

/// The server has to answer the nonce of this client. The exchange is bound if the URL demands it.
pub(super) struct AwaitsChallenge(ScramSha256);

/// The server has to sign the exchange.
pub(super) struct AwaitsSignature(ScramSha256);

impl AwaitsChallenge {
    /// Begins the exchange, bound to the hash of the server's certificate if the server offers it.
    pub(super) fn begin(
        offers: impl Fn(&str) -> bool,
        certificate: Option<Vec<u8>>,
        password: Option<&Password>,
        target: &Target,
        out: &mut BytesMut,
    ) -> Result<Self, ErrorKind> {
        target.permits(SCRAM)?;
        let (mechanism, binding) = match certificate {
            Some(hash) if offers(SCRAM_SHA_256_PLUS) => {
                (SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash))
            }
            _ if target.requires_binding => return Err(ErrorKind::NoBinding),
            _ if !offers(SCRAM_SHA_256) => return Err(ErrorKind::UnknownLogin),
            // The server learns whether somebody has hidden its offer.
            Some(_) => (SCRAM_SHA_256, ChannelBinding::unrequested()),
            None => (SCRAM_SHA_256, ChannelBinding::unsupported()),
        };
        let scram = ScramSha256::new(password.ok_or(ErrorKind::NoPassword)?.reveal(), binding);
        frontend::sasl_initial_response(mechanism, scram.message(), out).map_err(|_| ErrorKind::UnexpectedReply)?;
        Ok(Self(scram))
    }

    pub(super) fn on_challenge(mut self, data: &[u8], out: &mut BytesMut) -> Result<AwaitsSignature, ErrorKind> {
        self.0.update(data).map_err(|_| ErrorKind::UnexpectedReply)?;
        frontend::sasl_response(self.0.message(), out).map_err(|_| ErrorKind::UnexpectedReply)?;
        Ok(AwaitsSignature(self.0))
    }
}

impl AwaitsSignature {
    /// The proof that the server knows the password.
    pub(super) fn on_signature(mut self, data: &[u8]) -> Result<Permitted, ErrorKind> {
        self.0.finish(data).map(Permitted).map_err(|_| ErrorKind::Impostor)
    }
}

/// The method as `require_auth` names it.
const SCRAM: &str = "scram-sha-256";
