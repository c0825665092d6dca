//! What is printed of a file that passed: its path, a line as `ls -l` has it, or what a format says.
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::stat::{At, Clock, Stat};
use super::test::Candidate;
use super::time;
use crate::failure::Failure;
use crate::lfs::accounts::Account;

/// What is done with a file that passed.
#[derive(Debug, PartialEq)]
pub enum Action {
    Print,
    Print0,
    List,
    Format(Vec<Piece>),
}

/// A piece of a format.
#[derive(Debug, PartialEq)]
pub enum Piece {
    Bytes(Vec<u8>),
    /// A letter behind `%`.
    Value(char),
    /// A letter behind `%L`.
    OfLayout(char),
    /// A time, as a whole or by one of strftime(3)'s letters or `@`.
    Time(Clock, Option<char>),
}

/// Where a file was found.
pub struct Found<'a> {
    pub file: &'a Candidate<'a>,
    pub root: &'a Path,
    pub depth: usize,
    pub now: i64,
}

impl Action {
    /// Appends what it prints.
    ///
    /// # Errors
    /// The file's layout cannot be read.
    pub fn print(&self, f: &Found<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        let path = f.file.path.as_os_str().as_bytes();
        match self {
            Action::Print => out.extend(path.iter().chain(b"\n")),
            Action::Print0 => out.extend(path.iter().chain(b"\0")),
            Action::List => list(f, out),
            Action::Format(pieces) => {
                for piece in pieces {
                    match piece {
                        Piece::Bytes(bytes) => out.extend(bytes),
                        Piece::Value(letter) => value(*letter, f, out),
                        Piece::OfLayout(letter) => out.extend(of_layout(*letter, f.file)?.bytes()),
                        Piece::Time(clock, form) => out.extend(moment(&f.file.stat, *clock, *form).bytes()),
                    }
                }
            }
        }
        Ok(())
    }
}

fn link_target(f: &Found<'_>) -> Vec<u8> {
    std::fs::read_link(f.file.path).map(|t| t.as_os_str().as_bytes().to_vec()).unwrap_or_default()
}

/// As find(1)'s `-ls`.
fn list(f: &Found<'_>, out: &mut Vec<u8>) {
    const HALF_A_YEAR: i64 = 182 * 86_400;
    let s = &f.file.stat;
    let (at, _) = s.time(Clock::Modified).unwrap_or_default();
    let recent = (f.now - HALF_A_YEAR..=f.now + 3600).contains(&at);
    let date = time::show(at, if recent { c"%b %e %H:%M" } else { c"%b %e  %Y" });
    let line = format!(
        "{:>9} {:>6} {} {:>3} {:<8} {:<8} {:>8} {date} ",
        s.ino(),
        s.blocks().div_ceil(2),
        s.mode_text(),
        s.links(),
        Account::User.name(s.uid()),
        Account::Group.name(s.gid()),
        s.bytes()
    );
    out.extend(line.bytes());
    out.extend(f.file.path.as_os_str().as_bytes());
    if s.letter() == 'l' {
        out.extend(b" -> ".iter().copied().chain(link_target(f)));
    }
    out.push(b'\n');
}

fn value(letter: char, f: &Found<'_>, out: &mut Vec<u8>) {
    let (path, s) = (f.file.path, &f.file.stat);
    let bytes = |p: Option<&std::ffi::OsStr>| p.map(|p| p.as_bytes().to_vec());
    let text = match letter {
        'p' => return out.extend(path.as_os_str().as_bytes()),
        'f' => return out.extend(bytes(path.file_name()).unwrap_or_else(|| path.as_os_str().as_bytes().to_vec())),
        'h' => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).map(Path::as_os_str);
            return out.extend(bytes(parent).unwrap_or_else(|| b".".to_vec()));
        }
        'H' => return out.extend(f.root.as_os_str().as_bytes()),
        'P' => return out.extend(path.strip_prefix(f.root).unwrap_or(path).as_os_str().as_bytes()),
        'l' if s.letter() == 'l' => return out.extend(link_target(f)),
        'l' => return,
        's' => s.bytes().to_string(),
        'b' => s.blocks().to_string(),
        'k' => s.blocks().div_ceil(2).to_string(),
        'm' => format!("{:o}", s.perm()),
        'M' => s.mode_text(),
        'u' => Account::User.name(s.uid()),
        'U' => s.uid().to_string(),
        'g' => Account::Group.name(s.gid()),
        'G' => s.gid().to_string(),
        'n' => s.links().to_string(),
        'i' => s.ino().to_string(),
        'd' => f.depth.to_string(),
        _ => s.letter().to_string(),
    };
    out.extend(text.bytes());
}

fn of_layout(letter: char, file: &Candidate<'_>) -> Result<String, Failure> {
    if letter == 'F' {
        return Ok(types::Fid::from_ino(file.stat.ino()).to_string());
    }
    let Some(layout) = file.layout()? else { return Ok(String::new()) };
    Ok(match letter {
        'c' => layout.stripe_count().to_string(),
        'S' => layout.stripe_size().bytes().to_string(),
        'i' => layout.first_ost().0.to_string(),
        'p' => layout.pool().map(|p| p.to_string()).unwrap_or_default(),
        _ => layout.objects().iter().map(|o| o.ost.0.to_string()).collect::<Vec<_>>().join(","),
    })
}

fn moment(stat: &Stat, clock: Clock, form: Option<char>) -> String {
    let Some((seconds, nanos)): Option<At> = stat.time(clock) else { return String::new() };
    match form {
        None => time::show(seconds, c"%a %b %e %H:%M:%S") + &format!(".{nanos:09}0 ") + &time::show(seconds, c"%Y"),
        Some('@') => format!("{seconds}.{nanos:09}0"),
        Some('+') => time::show(seconds, c"%Y-%m-%d+%H:%M:%S") + &format!(".{nanos:09}0"),
        Some('S') => time::show(seconds, c"%S") + &format!(".{nanos:09}0"),
        Some(letter) => {
            let format = std::ffi::CString::new(format!("%{letter}")).unwrap_or_default();
            time::show(seconds, &format)
        }
    }
}

/// Letters that stand behind `%`.
const VALUES: &str = "pfhHPlsbkmMuUgGnidy";
/// Letters that stand behind `%L`.
const LAYOUT_VALUES: &str = "FcSipo";
/// Letters that stand behind `%A`, `%C`, `%T`, `%W`.
const TIME_FORMS: &str = "@+aAbBcdDhHIjklmMprSTUwWxXyYZ";

/// Reads a format of `-printf`.
///
/// # Errors
/// What cannot be printed, with what can.
pub fn format(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let piece = match c {
            '\\' => {
                bytes.extend(escape(&mut rest)?);
                continue;
            }
            '%' => match directive(&mut rest)? {
                Some(piece) => piece,
                None => {
                    bytes.push(b'%');
                    continue;
                }
            },
            c => {
                bytes.extend(c.encode_utf8(&mut [0; 4]).bytes());
                continue;
            }
        };
        pieces.push(Piece::Bytes(std::mem::take(&mut bytes)));
        pieces.push(piece);
    }
    pieces.push(Piece::Bytes(bytes));
    Ok(pieces)
}

/// What stands behind a `%`; `None`: the sign itself.
fn directive(rest: &mut std::str::Chars<'_>) -> Result<Option<Piece>, String> {
    let clock = |letter: char| Clock::of(letter.to_ascii_lowercase());
    Ok(Some(match rest.next() {
        Some('%') => return Ok(None),
        Some('L') => match rest.next() {
            Some(l) if LAYOUT_VALUES.contains(l) => Piece::OfLayout(l),
            l => return Err(unknown("%L", l, LAYOUT_VALUES)),
        },
        Some('a') => Piece::Time(Clock::Accessed, None),
        Some('c') => Piece::Time(Clock::Changed, None),
        Some('t') => Piece::Time(Clock::Modified, None),
        Some('w') => Piece::Time(Clock::Born, None),
        Some(c @ ('A' | 'C' | 'T' | 'W' | 'B')) => match rest.next() {
            Some(form) if TIME_FORMS.contains(form) => {
                let of = match c {
                    'T' => Some(Clock::Modified),
                    'W' => Some(Clock::Born),
                    c => clock(c),
                };
                Piece::Time(of.unwrap_or(Clock::Modified), Some(form))
            }
            form => return Err(unknown(&format!("%{c}"), form, TIME_FORMS)),
        },
        Some(c) if VALUES.contains(c) => Piece::Value(c),
        c => return Err(unknown("%", c, &format!("{VALUES}actwL%"))),
    }))
}

fn unknown(before: &str, letter: Option<char>, known: &str) -> String {
    let mut text = String::new();
    match letter {
        Some(c) => drop(write!(text, "'{before}{c}' prints nothing here")),
        None => drop(write!(text, "a letter is missing behind '{before}'")),
    }
    text + &format!(": behind {before} stands one of {known}")
}

fn escape(rest: &mut std::str::Chars<'_>) -> Result<Vec<u8>, String> {
    Ok(match rest.next() {
        Some('n') => b"\n".to_vec(),
        Some('t') => b"\t".to_vec(),
        Some('r') => b"\r".to_vec(),
        Some('a') => vec![7],
        Some('b') => vec![8],
        Some('f') => vec![12],
        Some('v') => vec![11],
        Some('\\') => b"\\".to_vec(),
        Some(first @ '0'..='7') => {
            let mut code = first.to_digit(8).unwrap_or(0);
            for _ in 0..2 {
                let Some(digit) = rest.clone().next().and_then(|c| c.to_digit(8)) else { break };
                rest.next();
                code = code * 8 + digit;
            }
            vec![(code & 0xff) as u8]
        }
        c => return Err(unknown("\\", c, "n t r a b f v \\ and octal digits")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read_and_what_they_cannot_say_is_named() {
        let pieces = format("%p\\t%Lc%%%T@\\0x\\101").unwrap();
        let bytes = |b: &[u8]| Piece::Bytes(b.to_vec());
        let expected = [
            bytes(b""),
            Piece::Value('p'),
            bytes(b"\t"),
            Piece::OfLayout('c'),
            bytes(b"%"),
            Piece::Time(Clock::Modified, Some('@')),
            bytes(b"\0xA"),
        ];
        assert_eq!(pieces, expected);
        for (text, why) in [
            ("%Q", "'%Q' prints nothing"),
            ("%", "missing behind '%'"),
            ("%Lx", "'%Lx'"),
            ("%T!", "'%T!'"),
            ("\\q", "'\\q'"),
        ] {
            let e = format(text).unwrap_err();
            assert!(e.contains(why), "{text}: {e}");
        }
    }
}
