//! The rings of a file system: asked through a mount, a piece at a time.
use std::fmt;

use serde_json::{Value, json};
use trace::{Record, Target};

use crate::control;
use crate::failure::{Failure, Outcome};

/// Who keeps a ring.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Keeper {
    Ost(u16),
    Mdt,
    /// The mount that is asked.
    Client,
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keeper::Ost(ost) => write!(f, "OST {ost}"),
            Keeper::Mdt => f.write_str("the metadata target"),
            Keeper::Client => f.write_str("this client"),
        }
    }
}

/// What a keeper told at a time.
pub(super) struct Told {
    pub settings: String,
    pub total: u64,
    pub lost: u64,
    pub records: Vec<Record>,
}

/// Asks a keeper for the records from the `from`-th on.
pub(super) fn ask(connection: u32, of: Keeper, from: u64) -> Outcome<Told> {
    let name = match of {
        Keeper::Ost(ost) => json!(ost),
        Keeper::Mdt => json!("mdt"),
        Keeper::Client => json!("client"),
    };
    let answer = control::ask(connection, &json!({"do": "trace", "of": name, "from": from}))?;
    let number = |key: &str| answer[key].as_u64().unwrap_or_default();
    let nonsense = |why: String| Failure::with_errno(format!("{of} answered nonsense: {why}"), libc::EPROTO);
    let version = u16::try_from(number("version")).unwrap_or(u16::MAX);
    let records = bytes_of(&answer["records"]).and_then(|bytes| trace::told::records(&bytes, version));
    let settings = answer["settings"].as_str().unwrap_or_default().to_string();
    Ok(Told { settings, total: number("total"), lost: number("lost"), records: records.map_err(nonsense)? })
}

fn bytes_of(value: &Value) -> Result<Vec<u8>, String> {
    let text = value.as_str().unwrap_or_default();
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pair = |p: &[u8]| Some(digit(p[0])? << 4 | digit(*p.get(1)?)?);
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
    bytes.ok_or_else(|| "its records are not hexadecimal".into())
}

/// A ring as it is now.
pub(super) struct Whole {
    pub target: Target,
    /// Records that were overwritten.
    pub lost: u64,
}

/// All that a keeper has.
pub(super) fn whole(connection: u32, of: Keeper) -> Outcome<Whole> {
    let first = ask(connection, of, u64::MAX)?;
    let mut target = Target::from_text(&first.settings).map_err(|e| Failure::from(format!("{of}: {e}")))?;
    let (mut lost, mut next) = (0, 0);
    while next < first.total {
        let told = ask(connection, of, next)?;
        if told.records.is_empty() && told.lost == 0 {
            break;
        }
        // What is overwritten while it is being read takes what came before it along.
        if told.lost > 0 && next > 0 {
            target.records.clear();
        }
        next += told.lost + told.records.len() as u64;
        lost = next - told.records.len() as u64 - target.records.len() as u64;
        target.records.extend(told.records);
    }
    Ok(Whole { target, lost })
}
