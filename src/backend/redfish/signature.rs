//! Verifies signatures of a pinned certificate's owner, including certificates that are too old for
//! the usual rules.
//!
//! The pin identifies the key, so a proof of possession is sufficient (RFC 8446, section 4.4.3; RFC
//! 5246, section 7.4.3). The certificate's version, names and own signature do not matter, so X.509
//! v1, missing names and SHA-1 are harmless. Libraries no longer verify RSA keys below 2048 bits,
//! so this module does. It uses only the public key and contains no secret.

use num_bigint::BigUint;
use rustls::{SignatureScheme, crypto::CryptoProvider};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_parser::public_key::PublicKey;

/// The smallest RSA key that the crypto provider verifies, in bits.
const USUAL: usize = 2048;
/// The smallest accepted RSA key, in bits.
const SMALLEST: usize = 1024;

/// Returns true if the certificate's (DER) key signed `message` with `signature`.
pub(super) fn verifies(
    provider: &CryptoProvider,
    certificate: &[u8],
    scheme: SignatureScheme,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    let key = certificate.public_key();
    if let Ok(PublicKey::RSA(rsa)) = key.parsed() {
        let modulus = BigUint::from_bytes_be(rsa.modulus);
        if modulus.bits() < USUAL as u64 {
            let exponent = BigUint::from_bytes_be(rsa.exponent);
            return small_rsa(&modulus, &exponent, scheme, message, signature);
        }
    }
    let known = &provider.signature_verification_algorithms.mapping;
    let algorithms = known.iter().filter(|(name, _)| *name == scheme).flat_map(|(_, algorithms)| algorithms.iter());
    let key = key.subject_public_key.data.as_ref();
    algorithms.into_iter().any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok())
}

/// A hash function and its PKCS #1 prefix (RFC 8017, section 9.2, note 1).
struct Hash {
    of: fn(&[u8]) -> Vec<u8>,
    name: &'static [u8],
}

const SHA256: Hash = Hash {
    of: |data| Sha256::digest(data).to_vec(),
    name: b"0\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20",
};
const SHA384: Hash = Hash {
    of: |data| Sha384::digest(data).to_vec(),
    name: b"0\x41\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\x04\x30",
};
const SHA512: Hash = Hash {
    of: |data| Sha512::digest(data).to_vec(),
    name: b"0\x51\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x03\x05\x00\x04\x40",
};

fn small_rsa(modulus: &BigUint, exponent: &BigUint, scheme: SignatureScheme, message: &[u8], signature: &[u8]) -> bool {
    let Ok(bits) = usize::try_from(modulus.bits()) else { return false };
    let size = bits.div_ceil(8);
    let number = BigUint::from_bytes_be(signature);
    let odd = |number: &BigUint| number.bit(0);
    // Larger exponents are unused in practice and would cost time.
    if bits < SMALLEST
        || signature.len() != size
        || number >= *modulus
        || !odd(modulus)
        || !odd(exponent)
        || exponent.bits() > 33
    {
        return false;
    }
    let opened = number.modpow(exponent, modulus).to_bytes_be();
    let mut encoded = vec![0; size - opened.len()];
    encoded.extend(opened);
    match scheme {
        SignatureScheme::RSA_PKCS1_SHA256 => pkcs1(&encoded, message, &SHA256),
        SignatureScheme::RSA_PKCS1_SHA384 => pkcs1(&encoded, message, &SHA384),
        SignatureScheme::RSA_PKCS1_SHA512 => pkcs1(&encoded, message, &SHA512),
        SignatureScheme::RSA_PSS_SHA256 => pss(&encoded, bits - 1, message, &SHA256),
        SignatureScheme::RSA_PSS_SHA384 => pss(&encoded, bits - 1, message, &SHA384),
        SignatureScheme::RSA_PSS_SHA512 => pss(&encoded, bits - 1, message, &SHA512),
        _ => false,
    }
}

/// Verifies EMSA-PKCS1-v1_5 (RFC 8017, section 9.2) by building and comparing the expected
/// encoding.
fn pkcs1(encoded: &[u8], message: &[u8], hash: &Hash) -> bool {
    let digest = (hash.of)(message);
    let end = hash.name.len() + digest.len();
    let Some(filling) = encoded.len().checked_sub(end + 3).filter(|filling| *filling >= 8) else { return false };
    let mut right = vec![0, 1];
    right.resize(2 + filling, 0xff);
    right.push(0);
    right.extend(hash.name);
    right.extend(digest);
    encoded == right
}

/// Verifies EMSA-PSS with MGF1 and a salt as long as the hash (RFC 8017, section 9.1.2; RFC 8446,
/// section 4.2.3).
fn pss(encoded: &[u8], bits: usize, message: &[u8], hash: &Hash) -> bool {
    let digest = (hash.of)(message);
    let length = digest.len();
    // A modulus with 8k + 1 bits adds a leading zero byte.
    let encoded = &encoded[encoded.len() - bits.div_ceil(8)..];
    let Some(masked) = encoded.len().checked_sub(length + 1).filter(|masked| *masked > length) else { return false };
    let (block, rest) = encoded.split_at(masked);
    let (seed, last) = rest.split_at(length);
    if last != [0xbc] {
        return false;
    }
    let unused = 8 * encoded.len() - bits;
    let mut mask: Vec<u8> = Vec::new();
    let mut counter: u32 = 0;
    while mask.len() < block.len() {
        mask.extend((hash.of)(&[seed, &counter.to_be_bytes()].concat()));
        counter += 1;
    }
    let mut block: Vec<u8> = block.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
    if encoded[0].checked_shr(u32::try_from(8 - unused).unwrap_or(8)).unwrap_or(0) != 0 {
        return false;
    }
    block[0] &= 0xff >> unused;
    let (filling, salt) = block.split_at(masked - length);
    let Some((one, zeros)) = filling.split_last() else { return false };
    let again = (hash.of)(&[&[0; 8][..], &digest, salt].concat());
    *one == 1 && zeros.iter().all(|byte| *byte == 0) && again == seed
}
