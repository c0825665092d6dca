//! Mounts whose bytes are moved by other threads, over servers whose OSTs have threads of their own: two mounts agree, a server that
//! is killed comes back, and the threads that decide move next to nothing.
mod roles;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use posix::run::spawn;
use posix::sys::R;
use roles::{RoleProcess, World, can_mount, transports};

#[test]
fn a_role_serves_in_a_process_of_its_own() {
    roles::serve_if_told();
}

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(600);

/// Runs `f` in a process of its own: a mount that answers no more must not hang the tests.
fn within(what: &str, f: impl FnOnce() -> std::io::Result<()>) {
    let child = spawn(|| -> R { f().map_err(|e| e.to_string()) }).expect("a process");
    assert!(child.ended_within(LIMIT), "{what}: no end within {LIMIT:?}");
    if let Err(e) = child.join() {
        panic!("{what}: {e}");
    }
}

/// MDS, one OSS of three OSTs on three threads, and a process for each mount.
struct Wide {
    world: World,
    _mds: RoleProcess,
    mds: String,
    oss: Option<RoleProcess>,
    nid: String,
}

impl Wide {
    fn new() -> Wide {
        let world = World::new();
        let mds = RoleProcess::start(&["mds", &world.path("mdt0"), "127.0.0.1:0"]);
        let mut wide = Wide { mds: mds.at.clone(), _mds: mds, oss: None, nid: "127.0.0.1:0".into(), world };
        wide.start_oss();
        wide
    }
    fn start_oss(&mut self) {
        std::fs::create_dir_all(self.world.path("stores")).expect("a directory");
        let oss = RoleProcess::start(&["oss", &self.world.path("stores"), &self.nid, &self.mds, "0,1,2+3"]);
        self.nid.clone_from(&oss.at);
        self.oss = Some(oss);
    }
    fn mount(&mut self, name: &str, transport: &str) -> (RoleProcess, std::path::PathBuf) {
        self.mount_telling(name, transport, None)
    }
    fn mount_telling(
        &mut self,
        name: &str,
        transport: &str,
        moved: Option<&Path>,
    ) -> (RoleProcess, std::path::PathBuf) {
        let at = self.world.point(name);
        let words = ["mount", &self.mds, "3", transport, at.to_str().expect("a plain path")];
        (RoleProcess::start_telling(&words, moved), at)
    }
}

/// Bytes of which every page of every round differs.
fn pattern(round: u8, file: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 4096) as u8 ^ round.wrapping_mul(31) ^ file.wrapping_mul(7)).collect()
}

fn write(at: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(at.join(name))?;
    for (i, part) in bytes.chunks(MIB).enumerate() {
        file.write_all_at(part, (i * MIB) as u64)?;
    }
    Ok(())
}

fn expect(at: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let file = File::open(at.join(name))?;
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0)?;
    match found.iter().zip(bytes).position(|(a, b)| a != b) {
        Some(differs) => Err(std::io::Error::other(format!("{name} differs at byte {differs}"))),
        None => Ok(()),
    }
}

#[test]
fn two_mounts_agree_while_bytes_are_moved_and_a_killed_server_comes_back() {
    if !can_mount() {
        return;
    }
    for transport in transports().into_iter().filter(|t| t.ends_with("+2")) {
        let mut wide = Wide::new();
        let ((one, at_one), (other, at_other)) = (wide.mount("one", transport), wide.mount("other", transport));
        for round in 1..=3 {
            for file in 0..3 {
                let (name, bytes) = (format!("f{file}"), pattern(round, file, 5 * MIB + 4097));
                within(transport, || write(&at_one, &name, &bytes));
                within(transport, || expect(&at_other, &name, &bytes));
                // Back the other way, a part of a page and all of one.
                within(transport, || {
                    let file = OpenOptions::new().write(true).open(at_other.join(&name))?;
                    file.write_all_at(&[round; 6000], MIB as u64 + 100)
                });
                let mut bytes = bytes;
                bytes[MIB + 100..MIB + 6100].fill(round);
                within(transport, || expect(&at_one, &name, &bytes));
            }
            if round == 2 {
                // What was written and not committed is replayed.
                let bytes = pattern(99, 9, 8 * MIB);
                within(transport, || write(&at_one, "replayed", &bytes));
                wide.oss.take().expect("it runs").kill();
                wide.start_oss();
                within(transport, || expect(&at_one, "replayed", &bytes));
                within(transport, || expect(&at_other, "replayed", &bytes));
            }
        }
        for (mut mount, at) in [(one, at_one), (other, at_other)] {
            assert!(roles::unmount(&at));
            assert_eq!(mount.ends_within(LIMIT), Some(0), "{transport}");
        }
    }
}

#[test]
fn the_shard_of_a_mount_moves_no_bytes_of_large_transfers_when_it_has_movers() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 32 * MIB;
    for transport in transports() {
        let mut wide = Wide::new();
        let told = wide.world.path("moved");
        let bytes = pattern(1, 1, LEN);
        {
            let (mut mount, at) = wide.mount("writer", transport);
            within(transport, || write(&at, "f", &bytes));
            assert!(roles::unmount(&at));
            assert_eq!(mount.ends_within(LIMIT), Some(0));
        }
        let (mut mount, at) = wide.mount_telling("reader", transport, Some(Path::new(&told)));
        within(transport, || expect(&at, "f", &bytes));
        assert!(roles::unmount(&at));
        assert_eq!(mount.ends_within(LIMIT), Some(0));
        let told = std::fs::read_to_string(told).expect("the role said so");
        let told: Vec<u64> = told.split(' ').map(|n| n.parse().expect("a number")).collect();
        // Each byte is received and checked, and goes to the kernel.
        let (here, movers, all) = (told[0], told[1], 2 * LEN as u64);
        if transport.ends_with("+2") {
            // What comes along with a head is copied with it.
            assert!(movers >= all / 100 * 99 && here < all / 50, "{transport}: {here} here, {movers} by movers");
        } else {
            assert!(movers == 0 && here >= all, "{transport}: {here} here, {movers} by movers");
        }
    }
}
