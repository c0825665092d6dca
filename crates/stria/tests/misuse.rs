//! Peers that do not play by the rules, against a running server: it stays up, its memory stays bounded, and those who
//! do play by them are served meanwhile.
#![allow(clippy::unwrap_used)]
mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use ptlrpc::ClusterKey;
use support::{Daemon, good, refused, text};
use types::{ClientId, FsError, Rng, Xid};
use wire::connect::{AuthReply, AuthRequest, ConnectReply, ConnectRequest, Role};
use wire::{BODY_BYTES_MAX, BULK_BYTES_MAX, Flags, HEADER_BYTES, Header, Op, crc32c, crc32c_append};

/// Longest wait for something that must happen; only a broken server makes a test wait for it.
const LIMIT: Duration = Duration::from_secs(60);
const TARGET: &[u8] = b"stria-MDT0000";
/// What misuse may cost beyond what the server had: 64 handshakes and their buffers, with room.
const MEMORY_MAX: u64 = 64 << 20;

struct Served {
    dir: tempfile::TempDir,
    daemon: Daemon,
    key: ClusterKey,
    baseline: u64,
}

impl Served {
    fn new(secret: Option<&str>) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, log) = (dir.path().join("c"), dir.path().join("log"));
        let mut make = vec!["mkfs", "--dir", text(&cluster), "--osts", "1"];
        let file = dir.path().join("key");
        let setting = format!("cluster.key_file={}", file.display());
        let key = match secret {
            Some(secret) => {
                support::write_secret(&file, secret);
                make.extend(["--set", &setting]);
                ClusterKey::from_text(secret.as_bytes()).unwrap()
            }
            None => ClusterKey::none(),
        };
        good(&make);
        let made = cluster.join("keys").join("admin.key");
        let key = if secret.is_some() { key } else { ClusterKey::from_text(&std::fs::read(made).unwrap()).unwrap() };
        let daemon = Daemon::start(&["mds", "--dir", text(&cluster), "--listen", "127.0.0.1:0"], &log);
        let mut served = Served { dir, daemon, key, baseline: 0 };
        served.still_serves();
        served.baseline = served.daemon.peak_bytes();
        served
    }

    fn connect(&self) -> Peer {
        let stream = TcpStream::connect(self.daemon.word.trim_start_matches("tcp:")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Peer { stream, client: ClientId(7) }
    }

    /// A session by the rules.
    fn session(&self, client: u64) -> Peer {
        let mut peer = self.connect();
        peer.client = ClientId(client);
        peer.open(&self.key).unwrap();
        peer
    }

    /// A client by the rules is served.
    fn still_serves(&mut self) {
        assert!(self.daemon.is_running(), "{}", self.daemon.said());
        let mut peer = self.session(99);
        peer.send(Op::Ping, 1, &[], 0);
        assert_eq!(peer.answer().unwrap().0.result(), Ok(()));
        peer.send(Op::Disconnect, 2, &[], 0);
        assert_eq!(peer.answer().unwrap().0.result(), Ok(()));
    }

    fn memory_is_bounded(&self) {
        let more = self.daemon.peak_bytes().saturating_sub(self.baseline);
        assert!(more <= MEMORY_MAX, "{more} bytes more than before");
    }
}

struct Peer {
    stream: TcpStream,
    client: ClientId,
}

impl Peer {
    fn header(&self, op: Op, xid: u64, body: &[u8], bulk_len: u32) -> Header {
        let mut header = Header::request(op, self.client, Xid(xid));
        (header.body_len, header.bulk_len) = (body.len() as u32, bulk_len);
        header
    }
    fn send(&mut self, op: Op, xid: u64, body: &[u8], bulk_len: u32) {
        let header = self.header(op, xid, body, bulk_len);
        self.write(&[&header.to_bytes(body)[..], body].concat());
    }
    fn write(&mut self, bytes: &[u8]) {
        // A server that has had enough closes while we still write.
        let _ = self.stream.write_all(bytes);
    }
    /// The next message; `None` when the server ended the connection.
    fn answer(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut raw = [0; HEADER_BYTES];
        self.read(&mut raw)?;
        let header = Header::from_bytes(&raw).unwrap();
        let mut body = vec![0; header.body_len as usize];
        self.read(&mut body)?;
        Header::check_body(&raw, &body).unwrap();
        Some((header, body))
    }
    fn read(&mut self, into: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(into) {
            Ok(()) => Some(()),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                ) =>
            {
                None
            }
            Err(e) => panic!("neither an answer nor an end within {LIMIT:?}: {e}"),
        }
    }
    fn connect(&mut self, target: &[u8], nonce: &[u8]) -> Result<ConnectReply, FsError> {
        let ask = ConnectRequest {
            target: target.into(),
            nonce: nonce.into(),
            version_min: 1,
            version_max: 1,
            last_boot: 0,
            ..ConnectRequest::default()
        };
        self.send(Op::Connect, 0, &wire::encode(&ask), 0);
        let (header, body) = self.answer().ok_or(FsError::NotConnected)?;
        header.result()?;
        Ok(wire::decode(&body).unwrap())
    }
    fn auth(&mut self, proof: &[u8]) -> Result<AuthReply, FsError> {
        self.send(
            Op::Auth,
            0,
            &wire::encode(&AuthRequest {
                proof: proof.into(),
                identity: [6; 32].to_vec().into(),
                ..Default::default()
            }),
            0,
        );
        let (header, body) = self.answer().ok_or(FsError::NotConnected)?;
        header.result()?;
        Ok(wire::decode(&body).unwrap())
    }
    fn open(&mut self, key: &ClusterKey) -> Result<AuthReply, FsError> {
        let nonce = [5; 32];
        let reply = self.connect(TARGET, &nonce)?;
        let proof = key.proof("client", Role::Client, [&nonce, &reply.nonce], TARGET, self.client).unwrap();
        self.auth(&proof)
    }
}

/// The bytes of a header with other fields and a checksum that fits.
fn forged(header: &Header, change: impl Fn(&mut [u8; HEADER_BYTES])) -> Vec<u8> {
    let mut raw = Header { body_len: 0, ..*header }.to_bytes(&[]);
    change(&mut raw);
    let crc = crc32c_append(crc32c(&raw[..60]), &[]);
    raw[60..].copy_from_slice(&crc.to_le_bytes());
    raw.to_vec()
}

fn put_u32(raw: &mut [u8], at: usize, value: u32) {
    raw[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn bytes_that_are_no_message_end_their_connection_and_nothing_else() {
    let mut served = Served::new(None);
    let mut rng = Rng::new(11);
    let garbage: Vec<u8> = (0..100_000).map(|_| rng.next_u64() as u8).collect();
    let connect = served.connect().header(Op::Connect, 0, &[], 0);
    let with = |at: usize, value: u32| forged(&connect, |raw| put_u32(raw, at, value));
    let mut bad_sum = with(0, 0x3152_5453);
    bad_sum[63] ^= 1;
    let auth_first = served.connect().header(Op::Auth, 0, &[], 0).to_bytes(&[]).to_vec();
    let no_client = Header { client: ClientId(0), ..connect }.to_bytes(&[]).to_vec();
    let answer = Header { flags: Flags::REPLY, ..connect }.to_bytes(&[]).to_vec();
    let body = [0xff; 100];
    let wild = Header { body_len: 100, ..connect };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("random bytes", garbage),
        ("zeros", vec![0; 4096]),
        ("another protocol", b"GET / HTTP/1.1\r\nHost: stria\r\n\r\n".repeat(4)),
        ("a checksum that does not fit", bad_sum),
        ("the longest body there is", with(48, u32::MAX)),
        ("a body that only a session may send", with(48, BODY_BYTES_MAX)),
        ("the longest bulk there is", with(52, u32::MAX)),
        ("bulk before a session", with(52, BULK_BYTES_MAX)),
        ("an operation that does not exist", forged(&connect, |raw| raw[6..8].copy_from_slice(&999u16.to_le_bytes()))),
        ("the second step first", auth_first),
        ("client zero", no_client),
        ("an answer", answer),
        ("a body that is none", [&wild.to_bytes(&body)[..], &body].concat()),
    ];
    for (what, bytes) in cases {
        let mut peer = served.connect();
        peer.write(&bytes);
        // What closes is read to its end, whatever it says before.
        let mut rest = Vec::new();
        let end = peer.stream.read_to_end(&mut rest);
        let closed = end.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::ConnectionReset);
        assert!(closed, "{what}: the connection stays open: {end:?}");
        served.still_serves();
    }
    assert_eq!(served.connect().connect(b"stria-OST0777", &[1; 32]).unwrap_err(), FsError::NoTarget);
    served.still_serves();
    served.memory_is_bounded();
    served.daemon.says("connection refused: ");
    let said = served.daemon.says("is not Stria's");
    assert!(said.lines().count() < 20, "a flood of refusals is not a flood of messages: {said}");
}

#[test]
fn slow_and_half_handshakes_keep_nobody_out() {
    let mut served = Served::new(None);
    let connect = served.connect().header(Op::Connect, 0, &[], 0).to_bytes(&[]);
    let before = served.daemon.descriptors();
    let mut slow: Vec<Peer> = Vec::new();
    for i in 0..300 {
        let mut peer = served.connect();
        // Some say nothing, some a part of a header, one byte at a time.
        for byte in &connect[..i % HEADER_BYTES] {
            peer.write(&[*byte]);
        }
        slow.push(peer);
        if i % 50 == 49 {
            served.still_serves();
        }
    }
    // The longest waiting gave their places to those that came after them.
    let mut first = [0; 1];
    assert!(slow[0].read(&mut first).is_none(), "it was told to go");
    served.still_serves();
    let now = served.daemon.descriptors();
    assert!(now <= before + 70, "{now} descriptors, {before} before");
    let mut half = served.connect();
    half.connect(TARGET, &[3; 32]).unwrap();
    drop(half);
    served.still_serves();
    served.memory_is_bounded();
}

#[test]
fn another_version_is_answered_with_ours() {
    let mut served = Served::new(None);
    let mut peer = served.connect();
    let header = peer.header(Op::Connect, 0, &[], 0);
    peer.write(&forged(&header, |raw| raw[4] = 2));
    let (answer, _) = peer.answer().expect("a message of version 1, from which the peer learns what is spoken here");
    assert_eq!(answer.result(), Err(FsError::Protocol));
    assert!(peer.answer().is_none());
    served.still_serves();
    served.daemon.says("wire version 2 is not spoken here");
}

#[test]
fn only_the_cluster_key_opens_a_session_and_no_handshake_opens_two() {
    let secret = "a secret of the cluster's own";
    let mut served = Served::new(Some(secret));
    for wrong in [ClusterKey::none(), ClusterKey::from_text(b"another secret of the same length").unwrap()] {
        let mut peer = served.connect();
        assert_eq!(peer.open(&wrong).unwrap_err(), FsError::Access);
        assert!(peer.answer().is_none(), "and that is the end");
    }
    // What a listener on the network saw of a good handshake is no good for another.
    let nonce = [8; 32];
    let mut good_one = served.connect();
    let reply = good_one.connect(TARGET, &nonce).unwrap();
    let proof = served.key.proof("client", Role::Client, [&nonce, &reply.nonce], TARGET, good_one.client).unwrap();
    good_one.auth(&proof).unwrap();
    let mut again = served.connect();
    assert_ne!(again.connect(TARGET, &nonce).unwrap().nonce, reply.nonce);
    assert_eq!(again.auth(&proof).unwrap_err(), FsError::Access);
    // The server's own proof is none of a client's.
    let mut mirror = served.connect();
    let reply = mirror.connect(TARGET, &nonce).unwrap();
    assert_eq!(mirror.auth(&reply.proof).unwrap_err(), FsError::Access);
    served.still_serves();
    served.daemon.says("does not know the cluster key");

    // And as users meet it.
    let (other, point) = (served.dir.path().join("other"), served.dir.path().join("mnt"));
    support::write_secret(&other, "some other secret, long enough");
    std::fs::create_dir(&point).unwrap();
    let setting = format!("cluster.key_file={}", other.display());
    let (code, said) = refused(&["mount", "--mds", &served.daemon.word, "--set", &setting, text(&point)]);
    assert!(code != 0 && said.contains("check cluster.key_file on both sides"), "{said}");
    served.still_serves();
}

#[test]
fn a_session_that_breaks_the_rules_is_ended_and_its_requests_are_answered_as_such() {
    let mut served = Served::new(None);
    let mut rng = Rng::new(3);
    // Bodies that are none, for every operation: an answer each, the session goes on.
    let mut peer = served.session(21);
    let mut xid = 1;
    for op in Op::ALL.iter().filter(|o| !matches!(o, Op::Disconnect)) {
        for len in [0, 1, 40] {
            let body: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            xid += 1;
            peer.send(*op, xid, &body, 0);
            let (answer, _) = peer.answer().unwrap_or_else(|| panic!("{op:?} with {len} bytes ends the session"));
            assert_eq!((answer.op, answer.xid), (*op, Xid(xid)));
        }
    }
    served.still_serves();
    // Another client's name.
    let mut peer = served.session(22);
    peer.client = ClientId(23);
    peer.send(Op::Ping, 1, &[], 0);
    assert!(peer.answer().is_none());
    served.still_serves();
    served.memory_is_bounded();
}

#[test]
fn a_host_with_the_clients_key_mounts_and_changes_no_server() {
    if !support::can_mount() {
        return;
    }
    let mut c = support::Cluster::new(1);
    let key = format!("cluster.key_file={}", c.path("c/keys/client.key"));
    let at = c.mount("m", &["--set", &key]);
    let admin = c.mount("admin", &[]);
    std::fs::write(at.join("file"), "of a client").unwrap();
    assert_eq!(std::fs::read_to_string(admin.join("file")).unwrap(), "of a client");
    let set = |at: &Path, what: &str| stria_set(at, &[what]);
    let (ok, said) = set(&at, "ost.OSS.ost_io.nrs_policies=trr");
    assert!(!ok && said.contains("administrator's key") && said.contains("admin.key"), "{said}");
    let status: String = good(&["status", "--json", text(&admin)]);
    let client = status.split("\"client\":\"").nth(1).unwrap()[..16].to_string();
    let (ok, said) = set(&at, &format!("obdfilter.*.evict_client={client}"));
    assert!(!ok && said.contains("administrator's key"), "{said}");
    let (ok, said) = stria_set(&at, &["-P", "-d", "ost.OSS.ost_io.nrs_policies"]);
    assert!(!ok && said.contains("administrator's key"), "{said}");
    // What is the mount's own is the mount's to set, and reading is everybody's.
    assert!(set(&at, "osc.*.max_rpcs_in_flight=4").0);
    assert!(!good(&["get_param", "--at", text(&at), "ost.OSS.ost_io.nrs_policies"]).contains("trr"));
    assert!(set(&admin, "ost.OSS.ost_io.nrs_policies=trr").0);
    c.stop();
}

fn stria_set(at: &Path, more: &[&str]) -> (bool, String) {
    let out = support::stria(&[&["set_param", "--at", text(at)], more].concat());
    (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn a_newer_server_is_called_by_its_version() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut raw = [0; HEADER_BYTES];
            if stream.read_exact(&mut raw).is_ok() {
                let header = Header::request(Op::Connect, ClientId(0), Xid(0));
                let _ = stream.write_all(&forged(&header, |raw| raw[4] = 2));
            }
        }
    });
    let point = tempfile::tempdir().unwrap();
    let at: &Path = point.path();
    let key = point.path().join("key");
    support::write_secret(&key, "a secret of more than sixteen bytes");
    let setting = format!("cluster.key_file={}", text(&key));
    let (_, said) = refused(&["mount", "--mds", &address, "--set", "recovery.window_s=1", "--set", &setting, text(at)]);
    assert!(said.contains("wire version 2 is not spoken here"), "{said}");
}

/// Runs on a thread of its own that acts as another user.
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let user = s.spawn(|| {
            // SAFETY: the bare system call changes this thread only, which ends here.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
            work()
        });
        user.join().unwrap()
    })
}

#[test]
fn tools_of_one_user_keep_nobody_from_a_mounts_control_socket() {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    if !support::can_mount() {
        return;
    }
    let mut c = support::Cluster::new(1);
    let at = c.mount("m", &[]);
    let minor = libc::minor(std::fs::metadata(&at).unwrap().dev());
    let connect = || UnixStream::connect(format!("/run/stria/mount-{minor}")).unwrap();
    let line = |stream: &UnixStream| {
        let mut said = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stream), &mut said).unwrap();
        said
    };
    // A user takes what it can get and says nothing; what it gets beyond its share is told to come back.
    let greedy: Vec<UnixStream> = as_user(65_534, || (0..200).map(|_| connect()).collect());
    let last = greedy.last().unwrap();
    let said = line(last);
    assert!(said.contains("too many tools of user 65534") && said.contains("try again"), "{said}");
    // Another user, root, and what administrators do are served meanwhile.
    let answer = as_user(65_533, || {
        let mut stream = connect();
        stream.write_all(b"{\"do\":\"status\"}\n").unwrap();
        line(&stream)
    });
    assert!(answer.contains("\"mount_point\"") && !answer.contains("error"), "{answer}");
    assert!(good(&["status", text(&at)]).contains("stria-MDT0000"));
    good(&["set_param", "--at", text(&at), "osc.*.max_rpcs_in_flight=4"]);
    // Who asks nothing within the time for it is let go, also when it sends a byte now and then.
    let slow = &greedy[0];
    slow.set_read_timeout(Some(LIMIT)).unwrap();
    let mut end = [0; 1];
    let over = loop {
        let sent = (&*slow).write(b" ");
        slow.set_nonblocking(true).unwrap();
        match (&*slow).read(&mut end) {
            Err(e) if e.kind() == ErrorKind::WouldBlock && sent.is_ok() => {
                std::thread::park_timeout(Duration::from_millis(20));
            }
            ended => break ended,
        }
    };
    assert!(!matches!(over, Ok(1..)), "{over:?}");
    let again = as_user(65_534, || {
        let mut stream = connect();
        stream.write_all(b"{\"do\":\"osts\"}\n").unwrap();
        line(&stream)
    });
    assert_eq!(again, "{\"osts\":[0]}\n", "its places are free again");
    c.stop();
}
