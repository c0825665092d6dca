//! Short and long options as `lfs` takes them: joined (`-c4`), grouped (`-qr`), negative values (`-c -1`), `--name=value`.
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

/// Reads `arguments`. `short`: letters, a colon behind those with a value. `long`: names of letters.
///
/// # Errors
/// An unknown option, or one without its value.
pub fn getopt(verb: &str, arguments: &[OsString], short: &str, long: &[(&str, char)]) -> Result<Parsed, Failure> {
    let unknown = |o: &str| Failure::usage(format!("{verb}: unknown option '{o}': see '{verb} --help'"));
    let takes = |letter: char| {
        let at = short.find(letter).filter(|_| letter != ':')?;
        Some(short[at + letter.len_utf8()..].starts_with(':'))
    };
    let mut parsed = Parsed::default();
    let mut rest = arguments.iter();
    let mut next = |option: &str| -> Result<String, Failure> {
        let missing = || Failure::usage(format!("{verb}: option '{option}' needs a value"));
        rest.next().map(|v| v.to_string_lossy().into_owned()).ok_or_else(missing)
    };
    // A `while let` over `rest` would borrow it for the whole loop; `next` hands arguments out one by one.
    while let Ok(argument) = next("") {
        if argument == "--" {
            while let Ok(operand) = next("") {
                parsed.operands.push(operand.into());
            }
        } else if let Some(name) = argument.strip_prefix("--") {
            let (name, joined) = name.split_once('=').map_or((name, None), |(n, v)| (n, Some(v.to_string())));
            let letter = long.iter().find(|(n, _)| *n == name).map(|(_, l)| *l).ok_or_else(|| unknown(&argument))?;
            let value = match (takes(letter), joined) {
                (Some(true), Some(v)) => Some(v),
                (Some(true), None) => Some(next(&argument)?),
                (_, None) => None,
                (_, Some(_)) => return Err(Failure::usage(format!("{verb}: option '--{name}' takes no value"))),
            };
            parsed.options.push((letter, value));
        } else if argument.len() > 1 && argument.starts_with('-') {
            for (at, letter) in argument[1..].char_indices() {
                if !takes(letter).ok_or_else(|| unknown(&argument))? {
                    parsed.options.push((letter, None));
                    continue;
                }
                let joined = &argument[1 + at + letter.len_utf8()..];
                let value = if joined.is_empty() { next(&argument)? } else { joined.to_string() };
                parsed.options.push((letter, Some(value)));
                break;
            }
        } else {
            parsed.operands.push(argument.into());
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Parsed, String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        getopt("setstripe", &arguments, "c:S:dq", &[("stripe-count", 'c'), ("delete", 'd')]).map_err(|e| e.to_string())
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
    fn what_is_unknown_or_incomplete_is_named() {
        assert_eq!(read(&["-z"]).unwrap_err(), "setstripe: unknown option '-z': see 'setstripe --help'");
        assert_eq!(read(&["--zap"]).unwrap_err(), "setstripe: unknown option '--zap': see 'setstripe --help'");
        assert_eq!(read(&["-c"]).unwrap_err(), "setstripe: option '-c' needs a value");
        assert_eq!(read(&["--delete=1"]).unwrap_err(), "setstripe: option '--delete' takes no value");
    }
}
