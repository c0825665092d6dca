//! How connections to the database are protected: the options `sslmode`, `sslrootcert`, `sslcert` and `sslkey` of its URL, with the meanings
//! that PostgreSQL's own programs give them. Files are read anew for each connection, so that certificates can be renewed under a server.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Values of `sslmode`.
const LEVELS: [(&str, Level); 5] = [
    ("disable", Level::Disable),
    ("prefer", Level::Prefer),
    ("require", Level::Require),
    ("verify-ca", Level::VerifyCa),
    ("verify-full", Level::VerifyFull),
];

/// What a connection over a network has to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// In the clear.
    Disable,
    /// Encrypted where the server can; whoever answers is believed.
    Prefer,
    /// Encrypted; whoever answers is believed, unless an authority is named.
    Require,
    /// With a server that the authority has signed for.
    VerifyCa,
    /// With that server: the authority has signed for the name that it is reached by.
    VerifyFull,
}

/// How connections are protected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Security {
    level: Level,
    /// Certificates of authorities.
    authority: Option<PathBuf>,
    /// The certificate that is shown to the database, and its key.
    own: Option<(PathBuf, PathBuf)>,
}

impl Security {
    /// Takes its options out of a connection URL; the rest of the URL comes back with it. Why they make no sense is a sentence.
    pub fn of_url(url: &str) -> Result<(Security, String), String> {
        let (rest, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut level, mut authority, mut certificate, mut key, mut left) = (None, None, None, None, Vec::new());
        for option in query.split('&').filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = percent_decode_str(value).decode_utf8().map_err(|e| format!("{name} is no UTF-8: {e}"))?;
            let path = || {
                let path = Path::new(&*value);
                let is_whole = path.is_absolute().then(|| path.to_path_buf());
                is_whole.ok_or_else(|| format!("{name}={value} is no absolute path of a file in PEM"))
            };
            match name {
                "sslmode" => level = Some(level_of(&value)?),
                "sslrootcert" => authority = Some(path()?),
                "sslcert" => certificate = Some(path()?),
                "sslkey" => key = Some(path()?),
                _ => left.push(option),
            }
        }
        let level = level.unwrap_or(Level::Prefer);
        if authority.is_none() && matches!(level, Level::VerifyCa | Level::VerifyFull) {
            return Err(
                "sslmode=verify-ca and verify-full need sslrootcert=FILE, the authority's certificate in PEM".into()
            );
        }
        let own = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err("sslcert and sslkey go together".into()),
        };
        let url = if left.is_empty() { rest.into() } else { format!("{rest}?{}", left.join("&")) };
        Ok((Security { level, authority, own }, url))
    }

    /// Whether connections are asked to be encrypted.
    pub fn mode(&self) -> SslMode {
        match self.level {
            Level::Disable => SslMode::Disable,
            Level::Prefer => SslMode::Prefer,
            Level::Require | Level::VerifyCa | Level::VerifyFull => SslMode::Require,
        }
    }

    /// What makes the encrypted connections. A file that cannot be used is named.
    pub fn connector(&self) -> Result<MakeRustlsConnect, String> {
        let provider = Arc::new(ring::default_provider());
        let checked = match &self.authority {
            Some(authority) => {
                let roots = WebPkiServerVerifier::builder_with_provider(roots(authority)?.into(), provider.clone());
                Some(roots.build().map_err(|e| format!("{}: {e}", authority.display()))?)
            }
            None => None,
        };
        let verifier: Arc<dyn ServerCertVerifier> = match (self.level, checked) {
            (Level::VerifyFull, Some(checked)) => checked,
            (_, checked) => Arc::new(AnyName { checked, provider: provider.clone() }),
        };
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|e| e.to_string())?.dangerous().with_custom_certificate_verifier(verifier);
        let config = match &self.own {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let shown = certificates(certificate)?;
                let config = config.with_client_auth_cert(shown, private_key(key)?);
                config.map_err(|e| format!("{} with {}: {e}", certificate.display(), key.display()))?
            }
        };
        Ok(MakeRustlsConnect::new(config))
    }
}

fn level_of(value: &str) -> Result<Level, String> {
    let found = LEVELS.iter().find(|(name, _)| *name == value).map(|(_, level)| *level);
    let names = LEVELS.map(|(name, _)| name).join(", ");
    found.ok_or_else(|| format!("sslmode={value} is none of {names}"))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|e| format!("{}: {e}", path.display()))?;
    if read.is_empty() {
        return Err(format!("{}: no certificate in PEM is in it", path.display()));
    }
    Ok(read)
}

fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(roots)
}

/// A key that its owner alone reads, or root's that a group may read.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let about = fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let refused = if about.uid() == 0 { 0o037 } else { 0o077 };
    if about.mode() & refused != 0 {
        let mode = about.mode() & 0o777;
        return Err(format!("{}: others can use this key (mode {mode:o}): chmod 600", path.display()));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Believes a server under any name, if an authority has signed for it; without an authority it believes all.
#[derive(Debug)]
struct AnyName {
    checked: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(checked) = &self.checked else { return Ok(ServerCertVerified::assertion()) };
        match checked.verify_server_cert(certificate, between, name, ocsp, now) {
            // The name is looked at last, when the chain and its dates are good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
