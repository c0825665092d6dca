//! Addresses of servers.
use std::fmt;
use std::net::SocketAddr;

/// Where a server is reached.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Nid {
    /// `tcp:HOST:PORT` with a numeric host.
    Tcp(SocketAddr),
    /// `local:NAME`: in this process; messages pass by reference.
    Local(String),
}

impl Nid {
    /// Parses `tcp:127.0.0.1:7988`, `127.0.0.1:7988` or `local:name`.
    ///
    /// # Errors
    /// A sentence that names the value and what would be right.
    pub fn parse(text: &str) -> Result<Nid, String> {
        if let Some(name) = text.strip_prefix("local:") {
            return if name.is_empty() {
                Err("'local:' needs a name behind the colon".into())
            } else {
                Ok(Nid::Local(name.into()))
            };
        }
        let addr = text.strip_prefix("tcp:").unwrap_or(text);
        addr.parse().map(Nid::Tcp).map_err(|_| {
            format!("'{text}' is not an address: write ADDRESS:PORT with a numeric address, like 127.0.0.1:7988 or [::1]:7988")
        })
    }
    /// Whether only this process can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self, Nid::Local(_))
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nid::Tcp(addr) => write!(f, "tcp:{addr}"),
            Nid::Local(name) => write!(f, "local:{name}"),
        }
    }
}
