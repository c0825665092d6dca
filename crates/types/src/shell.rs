//! Words of shell commands: what a message tells people to run is pasted into a shell.
use alloc::string::String;
use core::fmt::Write;

/// `bytes` (a path, a name) as one word of a command in POSIX shells, or of bash where it has characters that do not print. It is written
/// without apostrophes wherever that can be done: messages have theirs around whole commands.
#[must_use]
pub fn shell_word(bytes: &[u8]) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(b);
    let text = core::str::from_utf8(bytes).ok();
    match text.filter(|t| !t.chars().any(char::is_control)) {
        Some(text) if !text.is_empty() && bytes.iter().all(plain) => text.into(),
        // An interactive bash takes `!` for a command of before within quotation marks.
        Some(text) if !bytes.contains(&b'!') => {
            let mut word = String::from('"');
            for c in text.chars() {
                if matches!(c, '"' | '\\' | '$' | '`') {
                    word.push('\\');
                }
                word.push(c);
            }
            word + "\""
        }
        _ => {
            let mut word = String::from("$'");
            for b in bytes {
                match b {
                    b'\n' => word += "\\n",
                    b'\'' | b'\\' => word.extend(['\\', char::from(*b)]),
                    0x20..=0x7E => word.push(char::from(*b)),
                    // Writing to a string does not fail.
                    _ => drop(write!(word, "\\x{b:02x}")),
                }
            }
            word + "'"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_plain_where_it_can_be_and_means_the_same_to_a_shell_where_it_cannot() {
        for (path, word) in [
            (&b"/srv/stria-1/ost0"[..], "/srv/stria-1/ost0"),
            (b"/srv/a b", "\"/srv/a b\""),
            (b"", "\"\""),
            (b"/srv/it's", "\"/srv/it's\""),
            (b"/srv/$HOME`x`\"\\", "\"/srv/\\$HOME\\`x\\`\\\"\\\\\""),
            (b"/srv/a;b*", "\"/srv/a;b*\""),
            (b"~", "\"~\""),
            ("/srv/\u{e4}".as_bytes(), "\"/srv/\u{e4}\""),
            (b"/srv/a\nb", "$'/srv/a\\nb'"),
            (b"/srv/a!'b", "$'/srv/a!\\'b'"),
            (b"/srv/\xff\x01", "$'/srv/\\xff\\x01'"),
        ] {
            assert_eq!(shell_word(path), word);
        }
    }
}
