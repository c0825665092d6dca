//! Which process a client is: enough for a server on the same host to find out whether it still lives.

/// A process, as its world names it. The default says nothing: such a process may live anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin {
    /// The place where `process` means something: one boot of one host, one process namespace. 0: unknown.
    pub host: u64,
    /// The process there, never given to another one; below [`Origin::INSIDE`].
    pub process: u64,
}

impl Origin {
    /// Bit of `process` in what a server remembers: the client was part of the server's own process.
    pub const INSIDE: u64 = 1 << 63;

    /// Whether anything is known.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.host != 0
    }
    /// As a server that is `server` remembers it.
    #[must_use]
    pub fn remembered_by(self, server: Origin) -> Origin {
        let inside = if self == server && self.is_known() { Origin::INSIDE } else { 0 };
        Origin { process: self.process & !Origin::INSIDE | inside, ..self }
    }
    /// The process of what a server remembers, and whether it was the server's own.
    #[must_use]
    pub fn recalled(self) -> (Origin, bool) {
        (Origin { process: self.process & !Origin::INSIDE, ..self }, self.process & Origin::INSIDE != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_remembers_which_clients_were_part_of_it() {
        let (server, other) = (Origin { host: 3, process: 7 }, Origin { host: 3, process: 8 });
        assert_eq!(server.remembered_by(server).recalled(), (server, true));
        assert_eq!(other.remembered_by(server).recalled(), (other, false));
        let unknown = Origin::default();
        assert_eq!(unknown.remembered_by(unknown).recalled(), (unknown, false));
        let lies = Origin { host: 9, process: u64::MAX };
        assert!(!lies.remembered_by(server).recalled().1);
    }
}
