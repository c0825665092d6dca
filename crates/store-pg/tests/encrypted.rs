//! Connections to the database over a network: encrypted, with whom, and by whose certificate.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#[path = "support/postgres.rs"]
mod postgres;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use mds::kv::MetaKv;
use mds::kv::conformance::{batch, count};
use postgres::{Postgres, is_there};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use store_pg::{Identity, Patience, Place};

/// An authority of the name.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key in PEM: for a host of the name, or a user of that name.
fn signed(by: &CertifiedIssuer<'static, KeyPair>, name: &str) -> (String, String) {
    let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, by).unwrap().pem(), key.serialize_pem())
}

/// Opens the store at the URL, adds to it the batch of the number, and counts what is in it.
fn commit(url: &str, n: u64) -> Result<u64, String> {
    let place = Place::parse(url, None).map_err(|e| e.to_string())?;
    let main = |rt: rt::Rt| async move {
        let kv =
            store_pg::open(&rt, &place, Some((0x77, 0x1234)), 0, Patience::Lease).await.map_err(|e| e.to_string())?;
        kv.commit(batch(n)).await.map_err(|e| e.to_string())?;
        Ok(count(&*kv).await)
    };
    rt::real::run(frames::FramePool::new(1 << 20), main).unwrap()
}

fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn connections_are_as_protected_as_their_url_says() {
    if !is_there() {
        return;
    }
    let mut server = Postgres::start();
    server.database("fs");
    let identity = Identity { fsname: "fs".into(), cluster: 0x77, uuid: 0x1234 };
    let socket = Place::parse(&server.url("fs"), None).unwrap();
    rt::real::run(frames::FramePool::new(1 << 20), |rt| async move {
        drop(store_pg::create(&rt, &socket, &identity).await.unwrap());
    })
    .unwrap();

    let (ours, other) = (authority("ours"), authority("another"));
    let (ca, foreign) = (server.file("ca.pem", &ours.pem()), server.file("other.pem", &other.pem()));
    let (host, user, stranger) = (signed(&ours, "localhost"), signed(&ours, "stria"), signed(&other, "stria"));
    let (host, host_key) = (server.file("host.pem", &host.0), server.file("host.key", &host.1));
    let (user, user_key) = (server.file("user.pem", &user.0), server.file("user.key", &user.1));
    let (stranger, stranger_key) = (server.file("stranger.pem", &stranger.0), server.file("stranger.key", &stranger.1));
    let port = port();
    let over = |host: &str, options: &str| format!("postgres://stria@{host}:{port}/fs{options}");
    let with = |level: &str, root: &Path| format!("?sslmode={level}&sslrootcert={}", root.display());
    let own = |certificate: &Path, key: &Path| format!("&sslcert={}&sslkey={}", certificate.display(), key.display());
    let listen = ["listen_addresses=127.0.0.1".to_string(), format!("port={port}")];
    let encrypted = [
        "ssl=on".to_string(),
        format!("ssl_cert_file={}", host.display()),
        format!("ssl_key_file={}", host_key.display()),
        format!("ssl_ca_file={}", ca.display()),
    ];

    // One that cannot: in the clear only where nobody minds.
    server.kill(libc::SIGQUIT);
    server.set("local all all trust\nhost all all 127.0.0.1/32 trust\n", &listen);
    server.start_again();
    assert_eq!(commit(&over("127.0.0.1", "?sslmode=disable"), 1), Ok(1));
    assert_eq!(commit(&over("127.0.0.1", ""), 2), Ok(2));
    let e = commit(&over("127.0.0.1", "?sslmode=require"), 3).unwrap_err();
    assert!(e.contains("TLS"), "{e}");

    // One that takes encrypted connections only.
    server.kill(libc::SIGQUIT);
    server.set("local all all trust\nhostssl all all 127.0.0.1/32 trust\n", &[&listen[..], &encrypted].concat());
    server.start_again();
    assert!(commit(&over("127.0.0.1", "?sslmode=disable"), 3).unwrap_err().contains("no encryption"));
    assert_eq!(commit(&over("127.0.0.1", ""), 3), Ok(3));
    assert_eq!(commit(&over("127.0.0.1", "?sslmode=require"), 4), Ok(4));
    assert_eq!(commit(&over("localhost", &with("verify-full", &ca)), 5), Ok(5));
    assert_eq!(commit(&over("127.0.0.1", &with("verify-ca", &ca)), 6), Ok(6));
    let e = commit(&over("127.0.0.1", &with("verify-full", &ca)), 7).unwrap_err();
    assert!(e.contains("not valid for name"), "{e}");
    for level in ["require", "verify-ca", "verify-full"] {
        let e = commit(&over("localhost", &with(level, &foreign)), 7).unwrap_err();
        assert!(e.contains("invalid peer certificate"), "{level}: {e}");
    }

    // One that asks for its clients' certificates.
    server.kill(libc::SIGQUIT);
    server.set("local all all trust\nhostssl all all 127.0.0.1/32 cert\n", &[&listen[..], &encrypted].concat());
    server.start_again();
    let full = with("verify-full", &ca);
    assert_eq!(commit(&over("localhost", &format!("{full}{}", own(&user, &user_key))), 7), Ok(7));
    commit(&over("localhost", &full), 8).unwrap_err();
    commit(&over("localhost", &format!("{full}{}", own(&stranger, &stranger_key))), 8).unwrap_err();
    let e = commit(&over("localhost", &format!("{full}{}", own(&user, &stranger_key))), 8).unwrap_err();
    assert!(e.contains("user.pem") && e.contains("stranger.key"), "{e}");
    fs::set_permissions(&user_key, fs::Permissions::from_mode(0o644)).unwrap();
    let e = commit(&over("localhost", &format!("{full}{}", own(&user, &user_key))), 8).unwrap_err();
    assert!(e.contains("mode 644"), "{e}");
    fs::write(&ca, "nothing").unwrap();
    let e = commit(&over("localhost", &full), 8).unwrap_err();
    assert!(e.contains("ca.pem: no certificate"), "{e}");
}
