//! Which process a client is: enough for a server on the same host to find out whether it still lives.

/// A process, as its world names it. The default says nothing: such a process may live anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin {
    /// The machine, the same at each of its boots; 0: unknown.
    pub machine: u64,
    /// The boot of that machine's kernel; 0: unknown.
    pub boot: u64,
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
    /// Whether it has ended with a boot of its machine, as is certain when `living` is a process that lives: a machine
    /// runs one boot at a time.
    #[must_use]
    pub fn ended_with_its_boot(self, living: Origin) -> bool {
        let is_told = |o: Origin| o.machine != 0 && o.boot != 0;
        is_told(self) && is_told(living) && self.machine == living.machine && self.boot != living.boot
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
        let server = Origin { machine: 1, boot: 2, host: 3, process: 7 };
        let other = Origin { process: 8, ..server };
        assert_eq!(server.remembered_by(server).recalled(), (server, true));
        assert_eq!(other.remembered_by(server).recalled(), (other, false));
        let unknown = Origin::default();
        assert_eq!(unknown.remembered_by(unknown).recalled(), (unknown, false));
        let lies = Origin { host: 9, process: u64::MAX, ..server };
        assert!(!lies.remembered_by(server).recalled().1);
    }

    #[test]
    fn another_boot_of_the_same_machine_is_over_and_of_others_nothing_is_known() {
        let living = Origin { machine: 1, boot: 2, host: 3, process: 7 };
        let before = Origin { boot: 5, host: 9, ..living };
        assert!(before.ended_with_its_boot(living));
        assert!(!Origin { host: 9, ..living }.ended_with_its_boot(living), "another namespace of the same boot");
        assert!(!Origin { machine: 4, ..before }.ended_with_its_boot(living));
        for unknown in [Origin { machine: 0, ..before }, Origin { boot: 0, ..before }, Origin::default()] {
            assert!(!unknown.ended_with_its_boot(living) && !living.ended_with_its_boot(unknown));
        }
        let unknown = Origin { machine: 0, ..living };
        assert!(!Origin { machine: 0, ..before }.ended_with_its_boot(unknown));
    }
}
