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
    /// `ADDRESS,ADDRESS`: at one of several places, now at this, now at that. Whoever connects takes one of [`Nid::places`].
    OneOf(Vec<Nid>),
}

impl Nid {
    /// Parses `tcp:127.0.0.1:7988`, `127.0.0.1:7988` or `local:name`, or several of them with commas between.
    ///
    /// # Errors
    /// A sentence that names the value and what would be right.
    pub fn parse(text: &str) -> Result<Nid, String> {
        if text.contains(',') {
            return text.split(',').map(Nid::parse).collect::<Result<_, _>>().map(Nid::OneOf);
        }
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
        self.places().iter().all(|nid| matches!(nid, Nid::Local(_)))
    }
    /// The single places, in the order in which they are tried.
    #[must_use]
    pub fn places(&self) -> &[Nid] {
        match self {
            Nid::OneOf(all) => all,
            one => std::slice::from_ref(one),
        }
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nid::Tcp(addr) => write!(f, "tcp:{addr}"),
            Nid::Local(name) => write!(f, "local:{name}"),
            Nid::OneOf(all) => {
                let all: Vec<String> = all.iter().map(Nid::to_string).collect();
                f.write_str(&all.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written_also_several() {
        for text in ["tcp:127.0.0.1:7988", "tcp:[::1]:7988", "local:mds", "tcp:127.0.0.1:1,tcp:127.0.0.2:2"] {
            let nid = Nid::parse(text).unwrap();
            assert_eq!(nid.to_string(), text);
            assert_eq!(nid.places().len(), text.split(',').count());
        }
        assert_eq!(Nid::parse("127.0.0.1:1,127.0.0.2:2"), Nid::parse("tcp:127.0.0.1:1,tcp:127.0.0.2:2"));
        assert!(Nid::parse("local:a").unwrap().is_local() && !Nid::parse("local:a,127.0.0.1:1").unwrap().is_local());
        for wrong in ["host:1", "127.0.0.1", "127.0.0.1:1,", "local:", ""] {
            assert!(Nid::parse(wrong).is_err(), "{wrong}");
        }
    }
}
