//! Encrypted connections over real sockets: the cluster key is proved over the connection that both ends have, so that nobody
//! stands between them, and who does not encrypt is turned away.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod support;

use std::rc::Rc;

use frames::{Bulk, FramePool};
use ptlrpc::stream::ends;
use ptlrpc::{Callbacks, ClusterKey, Import, ImportConfig, Request, Security, Server, ServerConfig, meant};
use rt::{BINDING_BYTES, LocalFuture, Nid, Rt};
use support::{Carries, Plain, Silent};
use types::{ClientId, Duration, FsError, Xid};
use wire::connect::{AuthRequest, ConnectReply, ConnectRequest, Role};
use wire::{Header, Op};

fn key(security: Security) -> ClusterKey {
    ClusterKey::from_text(b"0123456789abcdef").unwrap().with_security(security)
}

/// Answers each number with the next one.
struct Next;

impl Carries for Next {
    const NAME: &'static str = "next";
    fn carry_out(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        let value: u64 = request.decode().unwrap();
        request.reply(Ok(&(value + 1)));
        Box::pin(std::future::ready(()))
    }
}

fn serve(rt: &Rt, security: Security) -> (Rc<Server>, Nid) {
    let (recovery_window, client_timeout) = (Duration::from_secs(5), Duration::from_secs(60));
    let server = Server::new(rt.clone(), ServerConfig { key: key(security), recovery_window, client_timeout, boot: 1 });
    server.add(Rc::new(Plain(Rc::new(Next))));
    let nid = server.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
    (server, nid)
}

fn import(rt: &Rt, nid: &Nid, security: Security, callbacks: &Rc<dyn Callbacks>) -> Rc<Import> {
    let config = ImportConfig {
        nid: nid.clone(),
        target: "next".into(),
        client: ClientId(5),
        key: key(security),
        recoverable: true,
        ping_interval: Duration::from_secs(2),
        place: 0,
    };
    Import::new(rt.clone(), config, Rc::downgrade(callbacks))
}

fn with_runtime<F: Future>(work: impl FnOnce(Rt) -> F) -> F::Output {
    rt::real::run(FramePool::new(4 << 20), work).unwrap()
}

#[test]
fn requests_go_over_encrypted_connections_whatever_the_server_insists_on() {
    for theirs in [Security::Auto, Security::Tls, Security::None] {
        let answer = with_runtime(async |rt| {
            let (server, nid) = serve(&rt, theirs);
            let callbacks: Rc<dyn Callbacks> = Rc::new(Silent);
            let import = import(&rt, &nid, Security::Tls, &callbacks);
            let answer: u64 = import.ask(Op::MdtGetattr, &41_u64).await.unwrap();
            assert!(import.close().await);
            server.stop();
            answer
        });
        assert_eq!(answer, 42, "{theirs:?}");
    }
}

#[test]
fn who_does_not_encrypt_is_told_what_would_be_right() {
    let why = with_runtime(async |rt| {
        let (server, nid) = serve(&rt, Security::Tls);
        let callbacks: Rc<dyn Callbacks> = Rc::new(Silent);
        let import = import(&rt, &nid, Security::None, &callbacks);
        assert_eq!(import.ready(Duration::from_secs(30)).await, Err(FsError::Access));
        let why = import.failure().unwrap();
        server.stop();
        why
    });
    assert!(why.contains("encrypted connections only") && why.contains("net.security"), "{why}");
}

/// The handshake of a client whose proof is about the binding that `choose` gives; what it ends with, and whether the server's
/// proof was about that binding, too.
async fn shake(
    rt: &Rt,
    nid: &Nid,
    choose: impl Fn(Option<[u8; BINDING_BYTES]>) -> Option<[u8; BINDING_BYTES]>,
) -> (Result<(), FsError>, bool) {
    let (sink, mut source) = ends(rt.connect_encrypted(nid).await.unwrap());
    let binding = choose(sink.binding());
    let client = ClientId(3);
    let ask = ConnectRequest {
        target: "next".into(),
        nonce: vec![1; 32].into(),
        version_min: wire::VERSION,
        version_max: wire::VERSION,
        role: Role::Client,
        dialled: nid.to_string().as_str().into(),
        ..ConnectRequest::default()
    };
    sink.send(Header::request(Op::Connect, client, Xid(0)), wire::encode(&ask), Bulk::new());
    let (header, body) = source.recv().await.unwrap();
    header.result().unwrap();
    let answer: ConnectReply = wire::decode(&body).unwrap();
    let meant = meant(&ask, &answer, binding);
    let prove =
        |side| key(Security::Auto).proof(side, Role::Client, [&ask.nonce, &answer.nonce], &meant, client).unwrap();
    let theirs = ClusterKey::matches(&prove("server"), &answer.proof);
    let auth =
        AuthRequest { proof: prove("client").to_vec().into(), identity: vec![2; 32].into(), ..AuthRequest::default() };
    sink.send(Header::request(Op::Auth, client, Xid(0)), wire::encode(&auth), Bulk::new());
    let (header, _) = source.recv().await.unwrap();
    (header.result(), theirs)
}

#[test]
fn a_proof_that_was_made_for_another_connection_is_refused_and_so_is_one_for_none() {
    with_runtime(async |rt| {
        let (server, nid) = serve(&rt, Security::Auto);
        assert_eq!(shake(&rt, &nid, |own| own).await, (Ok(()), true));
        // As somebody passes them on who decrypts one connection and encrypts another.
        let other = |own: Option<[u8; BINDING_BYTES]>| {
            own.map(|mut b| {
                b[31] ^= 1;
                b
            })
        };
        assert_eq!(shake(&rt, &nid, other).await, (Err(FsError::Access), false));
        assert_eq!(shake(&rt, &nid, |_| None).await, (Err(FsError::Access), false));
        server.stop();
    });
}
