//! Encrypted connections: TLS 1.3 between the socket and the messages.
//!
//! Each process has a key pair of its own, made when it first needs one and never written down, and shows the bare public key
//! (RFC 7250): no certificates, no names, no dates. TLS proves nothing here but that both ends of the connection have the same
//! secrets. Who the other end is, the protocol above proves, by something that both know, over the connection's
//! [`Secret::binding`] (RFC 9266): whoever stands between the two has two connections with two bindings, and can prove neither to
//! the other side.
//!
//! An accepted connection is encrypted when its first byte is that of a TLS handshake, which no message of a protocol here begins
//! with. Whether one that is not encrypted may go on, the protocol decides.
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme,
};

use super::op::{Call, submit};
use crate::BINDING_BYTES;

/// What a TLS handshake begins with: the type of its first record.
pub(super) const FIRST_BYTE: u8 = 22;
/// Encrypted bytes that are received at a time.
pub(super) const RECEIVE_BYTES: usize = 128 << 10;
/// Bytes that are encrypted while the connection's receiving side waits.
const SEAL_BYTES: usize = 64 << 10;
/// Encrypted bytes that are sent at a time.
const SEND_BYTES: usize = 512 << 10;
/// The binding's name in the export of keying material.
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// What both ends of an encrypted connection share. Sending and receiving sides take turns.
pub(super) struct Secret {
    session: Mutex<Connection>,
    binding: [u8; BINDING_BYTES],
}

/// The two sides' settings of this process.
struct Sides {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

fn sides() -> io::Result<&'static Sides> {
    static SIDES: OnceLock<Result<Sides, String>> = OnceLock::new();
    SIDES.get_or_init(make_sides).as_ref().map_err(|e| io::Error::other(e.clone()))
}

fn make_sides() -> Result<Sides, String> {
    let why = |e: rustls::Error| format!("encryption cannot be set up: {e}");
    let provider = Arc::new(ring::default_provider());
    let key = ::ring::signature::Ed25519KeyPair::generate_pkcs8(&::ring::rand::SystemRandom::new())
        .map_err(|_| "encryption cannot be set up: no key pair can be made".to_string())?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.as_ref().to_vec()));
    let key = ring::sign::any_supported_type(&key).map_err(why)?;
    let public = key.public_key().ok_or("encryption cannot be set up: the key has no public half")?;
    let shown = CertificateDer::from(public.as_ref().to_vec());
    let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::new(CertifiedKey::new(vec![shown], key)));
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(why)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    // Each connection has secrets of its own.
    server.send_tls13_tickets = 0;
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(why)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
        .with_no_client_auth();
    Ok(Sides { client: Arc::new(client), server: Arc::new(server) })
}

/// Takes any public key whose owner is at the other end of the handshake: the protocol above says whose it has to be.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 is spoken here".into()))
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn invalid(e: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("encrypted connection: {e}"))
}

/// Shakes hands with the server behind a connected socket.
pub(super) async fn connect(fd: &Arc<OwnedFd>, addr: SocketAddr) -> io::Result<Secret> {
    let name = ServerName::IpAddress(addr.ip().into());
    let session = ClientConnection::new(sides()?.client.clone(), name).map_err(invalid)?;
    shake(fd, session.into(), Vec::new()).await
}

/// Shakes hands with the client behind an accepted socket, which has sent `early` so far.
pub(super) async fn accept(fd: &Arc<OwnedFd>, early: Vec<u8>) -> io::Result<Secret> {
    let session = ServerConnection::new(sides()?.server.clone()).map_err(invalid)?;
    shake(fd, session.into(), early).await
}

async fn shake(fd: &Arc<OwnedFd>, mut session: Connection, mut received: Vec<u8>) -> io::Result<Secret> {
    session.set_buffer_limit(None);
    loop {
        let processed = take_in(&mut session, &received);
        received.clear();
        // Also an alert, which says to the other end what is wrong.
        let mut out = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut out)?;
        }
        if !out.is_empty() {
            send_all(fd, out).await?;
        }
        processed?;
        if !session.is_handshaking() {
            break;
        }
        received.resize(4096, 0);
        let (n, mut buf) = receive(fd, received).await?;
        if n == 0 {
            let why = "the peer closed the connection while it was to be encrypted";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        buf.truncate(n);
        received = buf;
    }
    let binding = session.export_keying_material([0; BINDING_BYTES], BINDING_LABEL, None).map_err(invalid)?;
    Ok(Secret { session: Mutex::new(session), binding })
}

/// Has the session look at received bytes, all of them.
fn take_in(session: &mut Connection, mut raw: &[u8]) -> io::Result<()> {
    while !raw.is_empty() {
        if session.read_tls(&mut raw)? == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "encrypted connection: a record that never ends"));
        }
        session.process_new_packets().map_err(invalid)?;
    }
    Ok(())
}

/// Receives what there is, into a buffer from its beginning; 0 bytes: the peer closed.
pub(super) async fn receive(fd: &Arc<OwnedFd>, mut buf: Vec<u8>) -> io::Result<(usize, Vec<u8>)> {
    loop {
        let iov = vec![libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() }];
        let (result, back) = submit(fd, Call::Recv, iov, buf).await;
        buf = back;
        match result {
            Ok(n) => return Ok((n, buf)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection reset"));
            }
            Err(e) => return Err(e),
        }
    }
}

/// Sends all of a buffer and gives it back, empty.
pub(super) async fn send_all(fd: &Arc<OwnedFd>, mut buf: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut done = 0;
    while done < buf.len() {
        let rest = &buf[done..];
        let iov = vec![libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() }];
        let (result, back) = submit(fd, Call::Send, iov, buf).await;
        buf = back;
        match result {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    buf.clear();
    Ok(buf)
}

impl Secret {
    fn lock(&self) -> MutexGuard<'_, Connection> {
        // After a panic amid a record the other end refuses what comes.
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// What is the same at both ends of this connection, and of no other.
    pub(super) fn binding(&self) -> [u8; BINDING_BYTES] {
        self.binding
    }
    /// Appends what received bytes say; with none, what came along with the handshake.
    ///
    /// # Errors
    /// `InvalidData`: they are not what the other end sent.
    pub(super) fn open(&self, mut raw: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        let mut session = self.lock();
        loop {
            if !raw.is_empty() && session.read_tls(&mut raw)? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "encrypted connection: a record that never ends",
                ));
            }
            let n = session.process_new_packets().map_err(invalid)?.plaintext_bytes_to_read();
            let at = into.len();
            into.resize(at + n, 0);
            session.reader().read_exact(&mut into[at..])?;
            if raw.is_empty() {
                return Ok(());
            }
        }
    }
    /// Appends the records that carry `parts`.
    fn seal(&self, parts: &[IoSlice<'_>], into: &mut Vec<u8>) -> io::Result<()> {
        let mut session = self.lock();
        let wanted: usize = parts.iter().map(|p| p.len()).sum();
        let taken = session.writer().write_vectored(parts)?;
        assert!(taken == wanted, "a session without a limit takes everything");
        while session.wants_write() {
            session.write_tls(into)?;
        }
        Ok(())
    }
    /// Sends the parts one after the other.
    pub(super) async fn send<'a>(&self, fd: &Arc<OwnedFd>, parts: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let (mut slices, mut bytes, mut out) = (Vec::new(), 0, Vec::new());
        for piece in parts.flat_map(|part| part.chunks(SEAL_BYTES)) {
            slices.push(IoSlice::new(piece));
            bytes += piece.len();
            if bytes >= SEAL_BYTES {
                self.seal(&slices, &mut out)?;
                slices.clear();
                bytes = 0;
                if out.len() >= SEND_BYTES {
                    out = send_all(fd, out).await?;
                }
            }
        }
        self.seal(&slices, &mut out)?;
        send_all(fd, out).await.map(drop)
    }
}
