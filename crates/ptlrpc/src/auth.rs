//! Proof of the cluster key: both sides show that they know it, neither sends it.
//!
//! A cluster has one secret, the administrator's. The client's key comes from it and leads to nothing else: a host that
//! only mounts needs that key alone. So does the key of each credential, which is that of one description of limits.
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rt::Nid;
use types::ClientId;
use wire::connect::{ConnectReply, ConnectRequest, Role};

use crate::capability::CapabilityKey;
use crate::credential::Limits;

/// What the text of a client's key begins with; the key follows as hexadecimal digits.
const CLIENT_PREFIX: &str = "stria-client-1:";
/// What the text of a credential begins with; its description and its key follow as hexadecimal digits, with a colon between them.
const CREDENTIAL_PREFIX: &str = "stria-credential-1:";
/// What the text of an administrator's key that is made here begins with.
const ADMIN_PREFIX: &str = "stria-admin-1:";

/// Which connections are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Security {
    /// Those to and from addresses that are not loopback.
    #[default]
    Auto,
    /// All over TCP.
    Tls,
    /// None: who is on the way reads everything, and changes what is not checked.
    None,
}

impl Security {
    /// Names of the levels.
    pub const NAMES: [&'static str; 3] = ["auto", "tls", "none"];

    /// By its name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Security> {
        let at = Security::NAMES.iter().position(|n| *n == name)?;
        Some([Security::Auto, Security::Tls, Security::None][at])
    }
    fn covers(self, ip: IpAddr) -> bool {
        match self {
            Security::Auto => !ip.to_canonical().is_loopback(),
            Security::Tls => true,
            Security::None => false,
        }
    }
}

/// What a process of a cluster can prove, and what it may be asked to prove over. Without a secret, fixed public keys are used: the handshake then proves nothing,
/// which is why a server without one listens inside its own process only.
#[derive(Clone)]
pub struct ClusterKey {
    /// What a client proves: the key of all clients, or that of `credential`.
    client: [u8; 32],
    admin: Option<[u8; 32]>,
    /// What the keys of credentials come from.
    issuer: Option<[u8; 32]>,
    /// What capabilities of objects are made with.
    capabilities: Option<CapabilityKey>,
    credential: Option<Arc<Limits>>,
    secret: bool,
    security: Security,
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
            issuer: Some(blake3::derive_key("stria credential key, version 1", secret)),
            capabilities: Some(CapabilityKey(blake3::derive_key("stria capability key, version 1", secret))),
            credential: None,
            secret: true,
            security: Security::Auto,
        }
    }
    /// The same key, for connections of that level.
    #[must_use]
    pub fn with_security(self, security: Security) -> ClusterKey {
        ClusterKey { security, ..self }
    }
    /// The same key, for connections that a server takes whatever it says itself: all over TCP are encrypted, unless none is to be.
    #[must_use]
    pub fn for_any_server(self) -> ClusterKey {
        let security = if self.security == Security::None { Security::None } else { Security::Tls };
        self.with_security(security)
    }
    /// Whether a connection to an address is to be encrypted.
    pub(crate) fn encrypts(&self, nid: &Nid) -> bool {
        matches!(nid, Nid::Tcp(addr) if self.security.covers(addr.ip()))
    }
    /// Whether a connection of a peer, as a sink names it, has to be encrypted.
    pub(crate) fn wants_encrypted(&self, peer: &str) -> bool {
        // A peer without an address is no less a stranger.
        peer.parse::<SocketAddr>().map_or(self.security != Security::None, |addr| self.security.covers(addr.ip()))
    }
    /// The text of a new administrator's key.
    #[must_use]
    pub fn new_text(secret: &[u8; 32]) -> String {
        format!("{ADMIN_PREFIX}{}\n", hex(secret))
    }
    fn of_client(client: [u8; 32], credential: Option<Arc<Limits>>) -> ClusterKey {
        let (admin, issuer, capabilities) = (None, None, None);
        ClusterKey { client, admin, issuer, capabilities, credential, secret: true, security: Security::Auto }
    }
    /// From the text of a key file: a client's key, a credential, or a secret of at least 16 bytes besides white space at the ends, which
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
            return Ok(ClusterKey::of_client(client, None));
        }
        if let Some(rest) = text.strip_prefix(CREDENTIAL_PREFIX.as_bytes()) {
            return of_credential(rest);
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
    /// The credential of a description, as its holder has it. `None`: this is not an administrator's key.
    #[must_use]
    pub fn credential_of(&self, limits: Limits) -> Option<ClusterKey> {
        let client = *blake3::keyed_hash(self.issuer.as_ref()?, &limits.bytes()).as_bytes();
        Some(ClusterKey { security: self.security, ..ClusterKey::of_client(client, Some(Arc::new(limits))) })
    }
    /// The text of the file that the host of a credential gets; `None`: it is none.
    #[must_use]
    pub fn credential_text(&self) -> Option<String> {
        let description = self.credential.as_ref()?.bytes();
        Some(format!("{CREDENTIAL_PREFIX}{}:{}\n", hex(&description), hex(&self.client)))
    }
    /// What capabilities of objects are made with; `None`: this is not an administrator's key.
    #[must_use]
    pub fn capabilities(&self) -> Option<CapabilityKey> {
        self.capabilities
    }
    /// Whether its holder has to show capabilities of objects.
    #[must_use]
    pub fn shows_capabilities(&self) -> bool {
        self.credential.as_ref().is_some_and(|l| l.subtree().is_some())
    }
    /// What its holder may do, if it is a credential.
    #[must_use]
    pub fn limits(&self) -> Option<&Arc<Limits>> {
        self.credential.as_ref()
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
    /// Whether servers with this key may accept connections at an address.
    ///
    /// # Errors
    /// The address can be reached from other processes although the key is no secret, or the key is a client's.
    pub(crate) fn may_listen(&self, nid: &Nid) -> io::Result<()> {
        let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if !nid.is_local() && !self.is_secret() {
            return refused(format!(
                "{nid} can be reached by everybody on this host: a cluster key is needed (cluster.key_file)"
            ));
        }
        if !self.is_administrator() {
            return refused("a server needs the administrator's key, not a client's (cluster.key_file)".into());
        }
        Ok(())
    }
    /// The most that it can prove.
    #[must_use]
    pub fn role(&self) -> Role {
        if self.is_administrator() { Role::Administrator } else { Role::Client }
    }
    /// The proof of `side` ("client" or "server") for one handshake by the key of `role`; `None`: this is not that key.
    #[must_use]
    pub fn proof(
        &self,
        side: &str,
        role: Role,
        nonces: [&[u8]; 2],
        target: &[u8],
        client: ClientId,
    ) -> Option<[u8; PROOF_BYTES]> {
        let key = match role {
            Role::Client => &self.client,
            Role::Administrator => self.admin.as_ref()?,
        };
        let mut h = blake3::Hasher::new_keyed(key);
        for part in [side.as_bytes(), nonces[0], nonces[1], target, &client.0.to_le_bytes()] {
            h.update(&(part.len() as u64).to_le_bytes());
            h.update(part);
        }
        Some(*h.finalize().as_bytes())
    }
    /// Compares in constant time.
    #[must_use]
    pub fn matches(proof: &[u8; PROOF_BYTES], given: &[u8]) -> bool {
        given.len() == PROOF_BYTES && proof.iter().zip(given).fold(0u8, |d, (a, b)| d | (a ^ b)) == 0
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(limits) = &self.credential {
            return write!(f, "ClusterKey(credential {})", limits.name());
        }
        f.write_str(match (self.secret, self.admin) {
            (false, _) => "ClusterKey(none)",
            (true, None) => "ClusterKey(client)",
            (true, Some(_)) => "ClusterKey(administrator)",
        })
    }
}

/// What the proofs of a handshake say of its other end: the target, the address that was dialled, the store that answers, and the
/// encrypted connection that they are sent over. Whoever passes a handshake on to another server, or to this one at another
/// address, cannot change them, and who decrypts it on its way and encrypts it again has two connections with two bindings.
#[must_use]
pub fn meant(ask: &ConnectRequest, answer: &ConnectReply, binding: Option<[u8; rt::BINDING_BYTES]>) -> Vec<u8> {
    let mut meant = ask.target.to_vec();
    if !ask.dialled.is_empty() {
        meant.push(0);
        meant.extend_from_slice(&ask.dialled);
        meant.push(0);
        meant.extend_from_slice(&ask.store.to_le_bytes());
        meant.extend_from_slice(&answer.store.to_le_bytes());
    }
    if let Some(binding) = binding {
        meant.push(0);
        meant.extend_from_slice(&binding);
    }
    meant
}

/// Whether a server that listens at `bound` is where its client dialled. Through an address for all of this host's, the port
/// tells.
pub(crate) fn is_here(bound: &Nid, dialled: &[u8]) -> bool {
    let Some(dialled) = std::str::from_utf8(dialled).ok().and_then(|d| Nid::parse(d).ok()) else { return false };
    match (bound, &dialled) {
        (Nid::Tcp(here), Nid::Tcp(there)) => {
            here.port() == there.port() && (here.ip().is_unspecified() || here.ip() == there.ip())
        }
        _ => *bound == dialled,
    }
}

/// What a server remembers of the secret of a client's session, also in its store: enough to know the client again. Stores
/// keep a number; those below 2 stand for sessions of earlier programs, which remembered nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding(u64);

impl Binding {
    /// Of the secret that a client sent.
    #[must_use]
    pub fn of(identity: &[u8]) -> Binding {
        let hash = blake3::derive_key("stria client identity, version 1", identity);
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        Binding(u64::from_le_bytes(first) | 2)
    }
    /// As it was stored.
    #[must_use]
    pub fn from_stored(number: u64) -> Option<Binding> {
        (number >= 2).then_some(Binding(number))
    }
    /// As it is stored.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What the identities of all sessions of one client come from: whoever knows it can speak of their end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionKey([u8; PROOF_BYTES]);

/// Sessions of one client at one target that a [`SessionKey`] is compared with: as many as it was evicted, and one.
pub(crate) const SESSIONS_TRIED_MAX: u64 = 1024;

impl SessionKey {
    /// These bytes of the system's generator.
    #[must_use]
    pub fn new(secret: [u8; PROOF_BYTES]) -> SessionKey {
        SessionKey(secret)
    }
    /// As [`SessionKey::to_text`] wrote it.
    #[must_use]
    pub fn from_text(digits: &str) -> Option<SessionKey> {
        from_hex(digits.as_bytes()).map(SessionKey)
    }
    /// For a file that its owner alone may read.
    #[must_use]
    pub fn to_text(&self) -> String {
        hex(&self.0)
    }
    /// What the identities at one target come from; it leads to no other target's.
    #[must_use]
    pub fn at(&self, target: &str) -> SessionKey {
        SessionKey(
            *blake3::Hasher::new_keyed(&self.0).update(b"target ").update(target.as_bytes()).finalize().as_bytes(),
        )
    }
    /// The identity of the session that follows `before` others.
    #[must_use]
    pub fn identity(&self, before: u64) -> [u8; PROOF_BYTES] {
        *blake3::Hasher::new_keyed(&self.0).update(b"session ").update(&before.to_le_bytes()).finalize().as_bytes()
    }
    /// What proves the id of the client whose sessions at all targets come from this.
    #[must_use]
    pub fn id_proof(&self) -> [u8; PROOF_BYTES] {
        *blake3::Hasher::new_keyed(&self.0).update(b"client id").finalize().as_bytes()
    }
    /// The id that belongs to whoever knows this.
    #[must_use]
    pub fn client_id(&self) -> ClientId {
        id_proved_by(&self.id_proof())
    }
    /// Its bytes, for the server of its target.
    #[must_use]
    pub fn told(&self) -> &[u8; PROOF_BYTES] {
        &self.0
    }
    /// Whether a session is one of those whose identities come from the key that somebody told.
    pub(crate) fn opens(told: &[u8], session: Binding) -> bool {
        let Ok(key) = told.try_into().map(SessionKey) else { return false };
        (0..SESSIONS_TRIED_MAX).any(|n| Binding::of(&key.identity(n)) == session)
    }
}

/// The id that a proof of [`SessionKey::id_proof`] proves.
pub(crate) fn id_proved_by(proof: &[u8]) -> ClientId {
    let hash = blake3::derive_key("stria client id, version 1", proof);
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    // 0 is nobody's.
    ClientId(u64::from_le_bytes(first).max(1))
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// What follows the prefix of a credential's text.
fn of_credential(rest: &[u8]) -> Result<ClusterKey, String> {
    let cut = || {
        format!(
            "behind '{CREDENTIAL_PREFIX}' there are not a description and a key of 64 hexadecimal digits: copy the credential's file anew"
        )
    };
    let at = rest.iter().position(|b| *b == b':').ok_or_else(cut)?;
    let (description, key) = (&rest[..at], &rest[at + 1..]);
    let (description, key) = (bytes_of_hex(description).ok_or_else(cut)?, from_hex(key).ok_or_else(cut)?);
    Ok(ClusterKey::of_client(key, Some(Arc::new(Limits::read(&description)?))))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(digits: &[u8]) -> Option<[u8; 32]> {
    bytes_of_hex(digits)?.try_into().ok()
}

fn bytes_of_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pairs = digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::credential::Credential;

    #[test]
    fn a_server_knows_the_addresses_that_lead_to_it() {
        let is_here = |bound: &str, dialled: &str| is_here(&Nid::parse(bound).unwrap(), dialled.as_bytes());
        assert!(is_here("127.0.0.1:7", "tcp:127.0.0.1:7") && is_here("0.0.0.0:7", "tcp:10.0.0.1:7"));
        assert!(is_here("local:a", "local:a") && is_here("[::]:7", "tcp:10.0.0.1:7"));
        assert!(!is_here("127.0.0.1:7", "tcp:127.0.0.1:8") && !is_here("127.0.0.1:7", "tcp:127.0.0.2:7"));
        assert!(!is_here("0.0.0.0:7", "tcp:10.0.0.1:8") && !is_here("local:a", "local:b") && !is_here("local:a", "?"));
    }

    #[test]
    fn what_leaves_the_host_is_encrypted_unless_that_is_switched_off() {
        let key = |security| ClusterKey::of(b"0123456789abcdef").with_security(security);
        let encrypts = |security, nid: &str| key(security).encrypts(&Nid::parse(nid).unwrap());
        for (nid, auto) in [
            ("127.0.0.1:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("10.0.0.1:1", true),
            ("[fe80::1]:1", true),
        ] {
            let ends = [Security::Auto, Security::Tls, Security::None]
                .map(|s| (encrypts(s, nid), key(s).wants_encrypted(nid)));
            assert_eq!(ends, [(auto, auto), (true, true), (false, false)], "{nid}");
        }
        assert!(!encrypts(Security::Tls, "local:a"));
        assert!(key(Security::Auto).wants_encrypted("unknown") && !key(Security::None).wants_encrypted("unknown"));
        for name in Security::NAMES {
            assert!(Security::of_name(name).is_some());
        }
        assert_eq!(Security::of_name("integrity"), None);
        assert_eq!(Security::default(), Security::Auto);
    }

    #[test]
    fn the_clients_key_comes_from_the_administrators_and_does_not_lead_back() {
        let admin = ClusterKey::from_text(ClusterKey::new_text(&[7; 32]).as_bytes()).unwrap();
        let client = ClusterKey::from_text(admin.client_text().as_bytes()).unwrap();
        assert!(admin.is_administrator() && admin.is_secret() && !client.is_administrator() && client.is_secret());
        assert_eq!(client.client, admin.client);
        let proof = |key: &ClusterKey, role| key.proof("client", role, [b"a", b"b"], b"t", ClientId(1));
        assert_eq!(proof(&client, Role::Client), proof(&admin, Role::Client));
        assert_ne!(proof(&admin, Role::Administrator), proof(&admin, Role::Client));
        assert_eq!((proof(&client, Role::Administrator), client.role()), (None, Role::Client));
        assert_eq!(client.client_text(), admin.client_text());
        assert!(ClusterKey::from_text(b"stria-client-1:12").unwrap_err().contains("64 hexadecimal digits"));
        let shown = format!("{admin:?} {client:?}");
        assert_eq!(shown, "ClusterKey(administrator) ClusterKey(client)");
    }

    #[test]
    fn a_credential_is_one_description_and_its_key_is_no_others() {
        let describe = |id, flags| {
            let said = Credential { version: 1, cluster: 3, id, name: "lab".into(), flags, ..Credential::default() };
            Limits::new(said).unwrap()
        };
        let admin = ClusterKey::from_text(ClusterKey::new_text(&[7; 32]).as_bytes()).unwrap();
        let issued = admin.credential_of(describe(9, 1)).unwrap();
        let text = issued.credential_text().unwrap();
        let held = ClusterKey::from_text(text.as_bytes()).unwrap();
        assert_eq!((held.client, held.role(), held.is_administrator()), (issued.client, Role::Client, false));
        assert_eq!(held.limits().unwrap().said().id, 9);
        assert_eq!(format!("{held:?}"), "ClusterKey(credential lab)");
        let others = [admin.credential_of(describe(9, 0)), admin.credential_of(describe(8, 1)), Some(admin.clone())];
        assert!(others.iter().all(|o| o.as_ref().unwrap().client != held.client), "another description, another key");
        assert!(held.credential_of(describe(9, 0)).is_none() && held.credential_text() == Some(text.clone()));
        // Whoever takes its limit away has no key for what is left.
        let edited = text.replacen(&hex(&describe(9, 1).bytes()), &hex(&describe(9, 0).bytes()), 1);
        let edited = ClusterKey::from_text(edited.as_bytes()).unwrap();
        assert_ne!(edited.client, admin.credential_of(describe(9, 0)).unwrap().client);
        for cut in ["stria-credential-1:", "stria-credential-1:00:11", &text[..text.len() - 2]] {
            assert!(ClusterKey::from_text(cut.as_bytes()).unwrap_err().contains("copy the credential's file anew"));
        }
    }

    #[test]
    fn a_session_key_opens_its_own_sessions_at_one_target_and_no_others() {
        let key = SessionKey::new([7; 32]);
        assert_eq!(SessionKey::from_text(&key.to_text()), Some(key));
        assert_eq!(SessionKey::from_text(&key.to_text()[1..]), None);
        let here = key.at("stria-OST0000");
        let session = |n| Binding::of(&here.identity(n));
        assert!(SessionKey::opens(here.told(), session(0)));
        assert!(SessionKey::opens(here.told(), session(SESSIONS_TRIED_MAX - 1)));
        assert!(!SessionKey::opens(here.told(), session(SESSIONS_TRIED_MAX)));
        for other in [key, key.at("stria-OST0001"), SessionKey::new([8; 32]).at("stria-OST0000")] {
            assert!(!SessionKey::opens(other.told(), session(0)));
        }
        assert!(!SessionKey::opens(b"", session(0)) && !SessionKey::opens(&here.told()[1..], session(0)));
        assert_eq!(format!("{key:?}"), "SessionKey");
    }
}
