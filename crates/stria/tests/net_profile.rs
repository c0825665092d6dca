//! `net.profile`: processes whose connections go through an emulated network card, and what is refused.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;

use support::{Cluster, can_mount, good, refused, text};

#[test]
fn a_mount_behind_a_slower_card_has_the_same_bytes() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(2);
    let (near, far) = (cluster.mount("near", &[]), cluster.mount("far", &["--set", "net.profile=gbe"]));
    good(&["setstripe", "-c", "2", text(&near.join("a"))]);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    fs::write(near.join("a"), &bytes).unwrap();
    assert!(fs::read(far.join("a")).unwrap() == bytes);
    let other: Vec<u8> = bytes.iter().rev().copied().collect();
    fs::write(far.join("b"), &other).unwrap();
    assert!(fs::read(near.join("b")).unwrap() == other);
    cluster.stop();
}

#[test]
fn profiles_are_explained_and_unknown_ones_refused() {
    let said = good(&["config", "explain", "net.profile"]);
    assert!(["none", "gbe", "10gbe", "ib-qdr", "100gbe"].iter().all(|name| said.contains(name)), "{said}");
    let dir = tempfile::tempdir().unwrap();
    let (code, said) = refused(&["mkfs", "--dir", text(&dir.path().join("c")), "--set", "net.profile=token-ring"]);
    assert!(code == libc::EINVAL && said.contains("token-ring") && said.contains("100gbe"), "{said}");
}
