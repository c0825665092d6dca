//! Proof of the cluster key: both sides show that they know it, neither sends it.
//!
//! A cluster has one secret, the administrator's. The client's key comes from it and leads to nothing else: a host that
//! only mounts needs that key alone.
use std::fmt;

use types::ClientId;

/// What the text of a client's key begins with; the key follows as hexadecimal digits.
const CLIENT_PREFIX: &str = "stria-client-1:";
/// What the text of an administrator's key that is made here begins with.
const ADMIN_PREFIX: &str = "stria-admin-1:";

/// What a process of a cluster can prove. Without a secret, fixed public keys are used: the handshake then proves nothing,
/// which is why a server without one listens inside its own process only.
#[derive(Clone)]
pub struct ClusterKey {
    client: [u8; 32],
    admin: Option<[u8; 32]>,
    secret: bool,
}

/// Bytes of a nonce and of a proof.
pub const PROOF_BYTES: usize = 32;

impl ClusterKey {
    /// No secret.
    #[must_use]
    pub fn none() -> ClusterKey {
        ClusterKey { secret: false, ..ClusterKey::of(b"no secret") }
    }
    fn of(secret: &[u8]) -> ClusterKey {
        ClusterKey {
            client: blake3::derive_key("stria cluster key, version 1", secret),
            admin: Some(blake3::derive_key("stria administrator key, version 1", secret)),
            secret: true,
        }
    }
    /// The text of a new administrator's key.
    #[must_use]
    pub fn new_text(secret: &[u8; 32]) -> String {
        format!("{ADMIN_PREFIX}{}\n", hex(secret))
    }
    /// From the text of a key file: a client's key, or a secret of at least 16 bytes besides white space at the ends, which
    /// is an administrator's.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn from_text(text: &[u8]) -> Result<ClusterKey, String> {
        let text = text.trim_ascii();
        if let Some(digits) = text.strip_prefix(CLIENT_PREFIX.as_bytes()) {
            let client = from_hex(digits).ok_or_else(|| {
                format!("behind '{CLIENT_PREFIX}' there are not 64 hexadecimal digits: copy keys/client.key anew")
            })?;
            return Ok(ClusterKey { client, admin: None, secret: true });
        }
        if text.len() < 16 {
            return Err(format!(
                "the cluster key has {} bytes: at least 16 are needed (try: head -c 32 /dev/urandom | base64)",
                text.len()
            ));
        }
        Ok(ClusterKey::of(text))
    }
    /// The text of the key that clients need.
    #[must_use]
    pub fn client_text(&self) -> String {
        format!("{CLIENT_PREFIX}{}\n", hex(&self.client))
    }
    /// Whether it is a real secret.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.secret
    }
    /// Whether it is an administrator's.
    #[must_use]
    pub fn is_administrator(&self) -> bool {
        self.admin.is_some()
    }
    /// The proof of `role` ("client" or "server") for one handshake.
    #[must_use]
    pub fn proof(&self, role: &str, nonces: [&[u8]; 2], target: &[u8], client: ClientId) -> [u8; PROOF_BYTES] {
        let mut h = blake3::Hasher::new_keyed(&self.client);
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
        f.write_str(match (self.secret, self.admin) {
            (false, _) => "ClusterKey(none)",
            (true, None) => "ClusterKey(client)",
            (true, Some(_)) => "ClusterKey(administrator)",
        })
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(digits: &[u8]) -> Option<[u8; 32]> {
    let text =
        std::str::from_utf8(digits).ok().filter(|t| t.len() == 64 && t.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_key_comes_from_the_administrators_and_does_not_lead_back() {
        let admin = ClusterKey::from_text(ClusterKey::new_text(&[7; 32]).as_bytes()).unwrap();
        let client = ClusterKey::from_text(admin.client_text().as_bytes()).unwrap();
        assert!(admin.is_administrator() && admin.is_secret() && !client.is_administrator() && client.is_secret());
        assert_eq!(client.client, admin.client);
        assert_eq!(client.client_text(), admin.client_text());
        assert!(ClusterKey::from_text(b"stria-client-1:12").unwrap_err().contains("64 hexadecimal digits"));
        let shown = format!("{admin:?} {client:?}");
        assert_eq!(shown, "ClusterKey(administrator) ClusterKey(client)");
    }
}
