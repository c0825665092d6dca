//! Proof of the cluster key: both sides show that they know it, neither sends it.
use std::fmt;

use types::ClientId;

/// The secret that the processes of one cluster share. Without one, a fixed public key is used: the handshake then
/// proves nothing, which is why servers without a key listen on loopback only.
#[derive(Clone)]
pub struct ClusterKey {
    key: [u8; 32],
    secret: bool,
}

/// Bytes of a nonce and of a proof.
pub const PROOF_BYTES: usize = 32;

impl ClusterKey {
    /// No secret.
    #[must_use]
    pub fn none() -> ClusterKey {
        ClusterKey { key: blake3::derive_key("stria cluster key, version 1", b"no secret"), secret: false }
    }
    /// From the text of a key file: at least 16 bytes besides white space at the ends.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn from_text(text: &[u8]) -> Result<ClusterKey, String> {
        let text = text.trim_ascii();
        if text.len() < 16 {
            return Err(format!(
                "the cluster key has {} bytes: at least 16 are needed (try: head -c 32 /dev/urandom | base64)",
                text.len()
            ));
        }
        Ok(ClusterKey { key: blake3::derive_key("stria cluster key, version 1", text), secret: true })
    }
    /// Whether it is a real secret.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.secret
    }
    /// The proof of `role` ("client" or "server") for one handshake.
    #[must_use]
    pub fn proof(&self, role: &str, nonces: [&[u8]; 2], target: &[u8], client: ClientId) -> [u8; PROOF_BYTES] {
        let mut h = blake3::Hasher::new_keyed(&self.key);
        for part in [role.as_bytes(), nonces[0], nonces[1], target, &client.0.to_le_bytes()] {
            h.update(&(part.len() as u64).to_le_bytes());
            h.update(part);
        }
        *h.finalize().as_bytes()
    }
    /// Compares in constant time.
    #[must_use]
    pub fn matches(proof: &[u8; PROOF_BYTES], given: &[u8]) -> bool {
        given.len() == PROOF_BYTES && proof.iter().zip(given).fold(0u8, |d, (a, b)| d | (a ^ b)) == 0
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret { "ClusterKey(secret)" } else { "ClusterKey(none)" })
    }
}
