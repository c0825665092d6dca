//! The second half of `docs/spec/wire.md`: every message and what it consists of, from the declarations.
use std::fmt::Write;

use crate::shape::{Bits, Rows, Shape, Shapes, plain};
use crate::{Class, Flags, Op, Side, Way, lock, mdt, quota};

/// What stands before the generated half of the page; the rest is written by hand.
pub const MARK: &str = "<!-- What follows is written by `cargo xtask pages --write` from `crates/wire/src`. -->\n";

/// Bits that are plain numbers in their fields.
const BITS: &[Bits] = &[
    mdt::AttrFlags::BITS,
    mdt::SetBits::BITS,
    mdt::LockBits::BITS,
    lock::EnqueueFlags::BITS,
    quota::QuotaBits::BITS,
    quota::QuotaParts::BITS,
];

/// The generated half, with its mark.
#[must_use]
pub fn messages() -> String {
    let mut out = String::from(MARK);
    out += "\n## Flags of headers\n| flag | value | meaning |\n|---|---|---|\n";
    for (name, value, meaning) in Flags::BITS.values {
        let _ = writeln!(out, "| {name} | {value} | {} |", plain(meaning));
    }
    out += "\n## Classes of messages\nWhat is to be known of a message before its body is read.\n\n| class | meaning |\n|---|---|\n";
    for (name, _, meaning) in Class::BITS.values {
        let _ = writeln!(out, "| {name} | {} |", plain(meaning));
    }
    let mut shapes = Shapes::default();
    BITS.iter().for_each(|bits| shapes.bits(bits));
    out += "\n## Messages\n`to`: session, any target of whatever kind; target, metadata and object storage targets; client, a callback to who opened the\nsession. A message with two rows has another body on each way. `name` is what statistics and metrics call it.\n\n| number | message | to | body | answer | name | class | what it asks |\n|---|---|---|---|---|---|---|---|\n";
    for op in Op::ALL {
        for way in op.ways() {
            message(&mut out, *op, way, &mut shapes);
        }
    }
    for (number, name) in Op::RETIRED {
        let _ = writeln!(out, "| {number} | {name} | | | | | | Not used any more. |");
    }
    out += "\n## Structs, enumerations and bits\n";
    for (place, shape) in shapes.iter() {
        describe(&mut out, place, shape);
    }
    out
}

fn message(out: &mut String, op: Op, way: &Way, shapes: &mut Shapes) {
    let side = match way.side {
        Side::Session => "session",
        Side::Target => "target",
        Side::Mdt => "MDT",
        Side::Ost => "OST",
        Side::Client => "client",
    };
    let classes = Class::BITS.values.iter().filter(|(_, bit, _)| u64::from(op.class().0) & bit != 0);
    let classes: Vec<&str> = classes.map(|(name, ..)| *name).collect();
    let (request, reply) = ((way.request.shape)(shapes), (way.reply.shape)(shapes));
    let (number, name, label) = (op as u16, op.name(), op.label());
    let (classes, meaning) = (classes.join(" "), plain(op.meaning()));
    let _ = writeln!(out, "| {number} | {name} | {side} | {request} | {reply} | {label} | {classes} | {meaning} |");
}

fn describe(out: &mut String, place: &str, shape: &Shape) {
    let _ = writeln!(out, "\n### {place}\n{}\n", shape.meaning);
    match &shape.rows {
        Rows::Fields(fields) => {
            *out += "| field | type | meaning |\n|---|---|---|\n";
            for [name, shape, meaning] in fields {
                let _ = writeln!(out, "| {name} | {shape} | {meaning} |");
            }
        }
        Rows::Values(values) | Rows::Bits(values) => {
            let what = if matches!(shape.rows, Rows::Bits(_)) { "bit" } else { "byte" };
            let _ = writeln!(out, "| name | {what} | meaning |\n|---|---|---|");
            for (name, value, meaning) in values {
                let _ = writeln!(out, "| {name} | {value} | {meaning} |");
            }
        }
    }
}
