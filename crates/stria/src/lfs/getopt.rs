//! Short and long options as `lfs` takes them: joined (`-c4`), grouped (`-qr`), negative values (`-c -1`), `--name=value`;
//! options of the field that need what is not here are refused by name.
use std::ffi::OsString;

use crate::failure::Failure;

/// Options in order and operands.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Letter and value.
    pub options: Vec<(char, Option<String>)>,
    /// Everything else.
    pub operands: Vec<OsString>,
}

impl Parsed {
    /// Whether an option was given.
    pub fn has(&self, letter: char) -> bool {
        self.options.iter().any(|(l, _)| *l == letter)
    }
    /// The last value of an option.
    pub fn value(&self, letter: char) -> Option<&str> {
        self.options.iter().rev().find(|(l, _)| *l == letter)?.1.as_deref()
    }
}

/// What a verb understands.
pub struct Grammar {
    /// Its name, for messages.
    pub verb: &'static str,
    /// Letters; a colon behind those with a value, two behind those whose value may be missing and then stands joined.
    pub short: &'static str,
    /// Long names of letters.
    pub long: &'static [(&'static str, char)],
    /// Options that exist elsewhere and need what is not here.
    pub absent: &'static [Absent],
}

/// Options that need what this file system does not have.
pub struct Absent {
    /// Their letters.
    pub letters: &'static str,
    /// Their long names.
    pub names: &'static [&'static str],
    /// What is missing, and what to do instead.
    pub why: &'static str,
}

/// Options that would make or name components.
pub const COMPOSITE: Absent = Absent {
    letters: "Ez",
    names: &[
        "component-count",
        "comp-count",
        "component-end",
        "comp-end",
        "component-add",
        "comp-add",
        "component-del",
        "comp-del",
        "component-set",
        "comp-set",
        "component-flags",
        "comp-flags",
        "component-start",
        "comp-start",
        "extension-size",
        "ext-size",
        "foreign",
        "mdt-count",
        "mdt-hash",
    ],
    why: "composite, foreign and striped-directory layouts are not there: a file has one layout from end to end (-c, -S, -i, -o)",
};
/// Options of mirrors and their parity.
pub const MIRRORS: Absent = Absent {
    letters: "",
    names: &["mirror-count", "mirror-index", "mirror-id", "mirror-state", "ec"],
    why: "mirrors and parity are not there: keep a second copy of the file (cp)",
};

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    No,
    Next,
    Joined,
}

impl Grammar {
    fn takes(&self, letter: char) -> Option<Value> {
        let at = self.short.find(letter).filter(|_| letter != ':')?;
        let behind = &self.short[at + letter.len_utf8()..];
        Some(match (behind.starts_with("::"), behind.starts_with(':')) {
            (true, _) => Value::Joined,
            (_, true) => Value::Next,
            _ => Value::No,
        })
    }
    /// Why an option is refused: it needs what is not here, or nobody knows it.
    fn refuse(&self, option: &str, letter: Option<char>) -> Failure {
        let name = option.strip_prefix("--").map(|n| n.split('=').next().unwrap_or(n));
        let known = |a: &&Absent| match (name, letter) {
            (Some(name), _) => a.names.contains(&name),
            (_, letter) => letter.is_some_and(|l| a.letters.contains(l)),
        };
        let option = name.map_or_else(|| option.into(), |n| format!("--{n}"));
        match self.absent.iter().find(known) {
            Some(a) => Failure::with_errno(format!("{}: {option}: {}", self.verb, a.why), libc::EOPNOTSUPP),
            None => Failure::usage(format!("{0}: unknown option '{option}': see '{0} --help'", self.verb)),
        }
    }
    fn long_option(&self, argument: &str) -> Result<(char, Value, Option<String>), Failure> {
        let name = &argument[2..];
        let (name, joined) = name.split_once('=').map_or((name, None), |(n, v)| (n, Some(v.to_string())));
        let letter = self.long.iter().find(|(n, _)| *n == name).map(|(_, l)| *l);
        let letter = letter.ok_or_else(|| self.refuse(argument, None))?;
        let value = self.takes(letter).unwrap_or(Value::No);
        if value == Value::No && joined.is_some() {
            return Err(Failure::usage(format!("{}: option '--{name}' takes no value", self.verb)));
        }
        Ok((letter, value, joined))
    }

    /// Reads `arguments`.
    ///
    /// # Errors
    /// An unknown option, one without its value, or one that needs what is not here.
    pub fn read(&self, arguments: &[OsString]) -> Result<Parsed, Failure> {
        let mut parsed = Parsed::default();
        let mut rest = arguments.iter();
        let text = |a: &OsString| a.to_string_lossy().into_owned();
        let missing = |option: &str| Failure::usage(format!("{}: option '{option}' needs a value", self.verb));
        while let Some(given) = rest.next() {
            let argument = text(given);
            if argument == "--" {
                parsed.operands.extend(rest.by_ref().cloned());
            } else if argument.starts_with("--") {
                let (letter, value, joined) = self.long_option(&argument)?;
                let value = match (value, joined) {
                    (Value::Next, None) => Some(rest.next().map(text).ok_or_else(|| missing(&argument))?),
                    (_, joined) => joined,
                };
                parsed.options.push((letter, value));
            } else if argument.len() > 1 && argument.starts_with('-') {
                for (at, letter) in argument[1..].char_indices() {
                    let value = self.takes(letter).ok_or_else(|| self.refuse(&argument, Some(letter)))?;
                    let joined = Some(argument[1 + at + letter.len_utf8()..].to_string()).filter(|j| !j.is_empty());
                    let value = match (value, joined) {
                        (Value::No, _) => {
                            parsed.options.push((letter, None));
                            continue;
                        }
                        (Value::Next, None) => Some(rest.next().map(text).ok_or_else(|| missing(&argument))?),
                        (_, joined) => joined,
                    };
                    parsed.options.push((letter, value));
                    break;
                }
            } else {
                parsed.operands.push(given.clone());
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Parsed, String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let long = &[("stripe-count", 'c'), ("delete", 'd'), ("ost", 'o')];
        let grammar = Grammar { verb: "setstripe", short: "c:S:dqo::", long, absent: &[COMPOSITE, MIRRORS] };
        grammar.read(&arguments).map_err(|e| e.to_string())
    }

    #[test]
    fn options_come_joined_grouped_negative_and_long() {
        let p = read(&["-c", "-1", "f", "-S4M", "-qd", "--stripe-count=3", "g", "--", "-x"]).unwrap();
        assert_eq!((p.value('c'), p.value('S')), (Some("3"), Some("4M")));
        assert!(p.has('q') && p.has('d') && !p.has('x'));
        assert_eq!(p.operands, ["f", "g", "-x"]);
        assert_eq!(p.options[0], ('c', Some("-1".into())));
    }

    #[test]
    fn a_value_that_may_be_missing_stands_joined() {
        assert_eq!(read(&["-o", "f"]).unwrap().operands, ["f"]);
        assert_eq!(read(&["-qo3", "--ost"]).unwrap().options[1..], [('o', Some("3".into())), ('o', None)]);
        assert_eq!(read(&["--ost=4"]).unwrap().value('o'), Some("4"));
    }

    #[test]
    fn what_is_unknown_or_incomplete_is_named() {
        assert_eq!(read(&["-w"]).unwrap_err(), "setstripe: unknown option '-w': see 'setstripe --help'");
        assert_eq!(read(&["--zap"]).unwrap_err(), "setstripe: unknown option '--zap': see 'setstripe --help'");
        assert_eq!(read(&["-c"]).unwrap_err(), "setstripe: option '-c' needs a value");
        for (option, missing) in
            [("-E1M", "composite"), ("--comp-flags=init", "--comp-flags: composite"), ("--ec=2+1", "--ec: mirrors")]
        {
            let said = read(&[option]).unwrap_err();
            assert!(said.contains(missing), "{said}");
        }
        assert_eq!(read(&["--delete=1"]).unwrap_err(), "setstripe: option '--delete' takes no value");
    }
}
