//! Patterns over parameter names: `*` and `?` within a part, `[abc]` and `[a-c]`, `{one,two}`; parts are separated by dots.
//!
//! One rule for tools, clients and servers. Cost: pattern times name, for each of at most 128 alternatives: anybody on a host may have
//! its mount, and all servers, look at hundreds of names.
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

/// Alternatives that a pattern may have at most; what is beyond stays as written.
const ALTERNATIVES_MAX: usize = 128;
/// Longest pattern in bytes; longer ones match nothing.
const PATTERN_BYTES_MAX: usize = 4096;

/// Whether a name matches a pattern.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    Glob::new(pattern).matches(name)
}

/// A pattern that is matched with several names.
#[derive(Clone, Debug)]
pub struct Glob {
    /// The pattern without braces.
    alternatives: Vec<String>,
}

impl Glob {
    /// Reads a pattern; every text is one.
    #[must_use]
    pub fn new(pattern: &str) -> Glob {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Glob { alternatives: Vec::new() };
        }
        let mut done = Vec::new();
        let mut open = vec![pattern.to_string()];
        while let Some(next) = open.pop() {
            let braces = next.find('{').and_then(|a| Some((a, a + next[a..].find('}')?)));
            match braces {
                Some((a, b)) if done.len() + open.len() + next[a..b].matches(',').count() < ALTERNATIVES_MAX => {
                    let with = |alt: &str| format!("{}{alt}{}", &next[..a], &next[b + 1..]);
                    open.extend(next[a + 1..b].split(',').rev().map(with));
                }
                _ => done.push(next),
            }
        }
        Glob { alternatives: done }
    }

    /// Whether a name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.alternatives.iter().any(|p| whole(p, name))
    }

    /// The part of a name, cut at the pattern's number of parts, that matches.
    #[must_use]
    pub fn matches_prefix<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.alternatives.iter().find_map(|p| {
            let parts = p.split('.').count();
            let end = name.match_indices('.').nth(parts - 1).map_or(name.len(), |(at, _)| at);
            whole(p, &name[..end]).then_some(&name[..end])
        })
    }
}

fn whole(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.split('.'), name.split('.'));
    loop {
        match (p.next(), n.next()) {
            (Some(p), Some(n)) if part(p.as_bytes(), n.as_bytes()) => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

fn part(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(b'?') => Some(1),
            Some(b'[') => class(&pattern[p..], text[t]),
            Some(c) if *c == text[t] => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(n), _) => (p, t) = (p + n, t + 1),
            (None, Some((after, at))) => {
                (p, t) = (after, at + 1);
                star = Some((after, at + 1));
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// Length of the class at the pattern's start when it holds the byte.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let close = pattern.iter().position(|c| *c == b']')?;
    let inside = &pattern[1..close];
    let range = |w: &[u8]| w[1] == b'-' && (w[0]..=w[2]).contains(&byte);
    (inside.contains(&byte) || inside.windows(3).any(range)).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_within_parts() {
        for (pattern, name) in [
            ("osc.*.max_rpcs_in_flight", "osc.stria-OST0000-osc-1.max_rpcs_in_flight"),
            ("osc.stria-OST000[0-3]*.{stats,import}", "osc.stria-OST0002-osc-1.import"),
            ("{llite,osc}.*.*_mb", "llite.x.max_cached_mb"),
            ("{mdt,osd}.*.{commits,md_stats}", "osd.x.commits"),
            ("ost.OSS.{ost,ost_io}.nrs_*", "ost.OSS.ost_io.nrs_policies"),
            ("*.*.*", "a.b.c"),
            ("a.b?.c*d", "a.bx.cyydzd"),
            ("", ""),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("osc.*", "osc.a.b"),
            ("*", "a.b"),
            ("osc.{a,b}.c", "osc.d.c"),
            ("a.[0-1]", "a.2"),
            ("a.[", "a.x"),
            ("a.b", "a"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_listing_is_cut_at_the_patterns_depth() {
        let prefix = |pattern: &str| Glob::new(pattern).matches_prefix("osc.a.stats").map(ToString::to_string);
        assert_eq!(prefix("osc.*").as_deref(), Some("osc.a"));
        assert_eq!(prefix("*").as_deref(), Some("osc"));
        assert_eq!(prefix("{llite,osc}.*.stats").as_deref(), Some("osc.a.stats"));
        assert_eq!(prefix("osc.*.*.*"), None);
    }

    #[test]
    fn many_braces_and_long_patterns_do_not_explode() {
        assert!(!matches(&"{a,b}".repeat(40), "x"));
        assert!(Glob::new(&"{a,b}".repeat(40)).alternatives.len() <= ALTERNATIVES_MAX);
        assert!(Glob::new(&format!("{{{}}}", ",".repeat(4000))).alternatives.len() <= ALTERNATIVES_MAX);
        assert!(!matches(&"*".repeat(PATTERN_BYTES_MAX + 1), "x"));
    }
}
