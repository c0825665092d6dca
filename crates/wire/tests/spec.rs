//! The specification is what the declarations say, and the declarations are what goes over the wire.
#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet;

use wire::shape::{Rows, Shapes};
use wire::{Class, Op, Side};

const PAGE: &str = include_str!("../../../docs/spec/wire.md");

#[test]
fn the_page_is_current() {
    let at = PAGE.find(wire::spec::MARK).expect("the page has a generated half");
    assert!(
        PAGE[at..] == wire::spec::messages(),
        "docs/spec/wire.md is not what the declarations say: cargo xtask pages --write"
    );
}

#[test]
fn every_body_is_of_some_message() {
    let mut shapes = Shapes::default();
    let ways = || Op::ALL.iter().flat_map(|op| op.ways());
    ways().for_each(|way| drop(((way.request.shape)(&mut shapes), (way.reply.shape)(&mut shapes))));
    let met: BTreeSet<&str> = shapes.iter().map(|(place, _)| place).collect();
    for (module, bodies) in wire::MODULES {
        for body in *bodies {
            assert!(
                met.contains(&*format!("{module}.{}", body.name)),
                "{module}.{} is no part of a message",
                body.name
            );
        }
    }
}

#[test]
fn a_request_of_a_caller_begins_with_who_asks() {
    for op in Op::ALL {
        for way in op.ways() {
            let mut shapes = Shapes::default();
            let name = (way.request.shape)(&mut shapes);
            let first =
                shapes.iter().find(|(place, _)| format!("`{place}`") == name).and_then(|(_, s)| match &s.rows {
                    Rows::Fields(fields) => Some(fields[0][1].clone()),
                    _ => None,
                });
            assert_eq!(first.as_deref() == Some("`mdt.Cred`"), op.is(Class::CALLER), "{op:?}");
            let caller = wire::mdt::caller_of(*op, &(way.request.example)());
            assert_eq!(caller.is_some(), op.is(Class::CALLER), "{op:?}");
        }
        assert_eq!(wire::mdt::caller_of(*op, &[9; 7]), None);
    }
}

#[test]
fn classes_go_together() {
    for op in Op::ALL {
        let asked = op.ways().iter().any(|way| way.side != Side::Client);
        assert!(!op.is(Class::PASSING) || op.is(Class::CALM), "{op:?}: who only asks about the server is calm");
        assert!(!op.is(Class::CHANGES) || !op.is(Class::CALM), "{op:?}: a transaction is not calm");
        assert!(asked || op.class() == Class(0), "{op:?}: classes are those of requests");
    }
    let labels: BTreeSet<(Option<Side>, &str)> = Op::ALL.iter().map(|op| (served(*op), op.label())).collect();
    assert_eq!(labels.len(), Op::ALL.len(), "no target has two kinds of one name");
}

/// The kind of target that has the request to itself.
fn served(op: Op) -> Option<Side> {
    op.ways().iter().map(|way| way.side).find(|side| matches!(side, Side::Mdt | Side::Ost))
}
