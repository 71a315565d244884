//! Binds a login to the TLS connection over which it happens: the client shows which certificate it
//! sees (RFC 5929, tls-server-end-point). So nobody between the two ends can pass the login on.

use sha2::{Digest, Sha256, Sha384, Sha512};

/// The hash of a certificate by the algorithm of its signature, or by SHA-256 for one that is
/// weaker. `None` if the signature names no algorithm of a hash.
pub(super) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, whole, _) = element(certificate)?;
    let (_, _, rest) = element(whole)?;
    let (_, algorithm, _) = element(rest)?;
    let (_, oid, _) = element(algorithm)?;
    let number = match (oid.strip_prefix(RSA), oid.strip_prefix(ECDSA)) {
        // Signatures by RSA with MD5, SHA-1, SHA-256, -384 and -512.
        (Some([4 | 5]), _) => 2,
        (Some([number @ 11..=13]), _) => number - 9,
        // The same by ECDSA with SHA-1, SHA-256, -384 and -512.
        (_, Some([1])) => 2,
        (_, Some([3, number @ 2..=4])) => *number,
        _ => return None,
    };
    Some(match number {
        2 => Sha256::digest(certificate).to_vec(),
        3 => Sha384::digest(certificate).to_vec(),
        _ => Sha512::digest(certificate).to_vec(),
    })
}

/// The beginnings of the names of algorithms: 1.2.840.113549.1.1 and 1.2.840.10045.4.
const RSA: &[u8] = &[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01];
const ECDSA: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04];

/// The tag and the content of the first element of DER, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        ..=0x7F => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}
