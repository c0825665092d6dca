//! Patterns over parameter names: `*` and `?` within a part, `[abc]`, `{one,two}`; parts are separated by dots.

/// Alternatives that a pattern may have at most; what is beyond stays as written.
const ALTERNATIVES_MAX: usize = 1024;

/// Whether a name matches a pattern.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    alternatives(pattern).iter().any(|p| whole(p, name))
}

/// The part of a name, cut at the pattern's number of parts, that matches a pattern.
#[must_use]
pub fn matches_prefix<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    alternatives(pattern).iter().find_map(|p| {
        let parts = p.split('.').count();
        let end = name.match_indices('.').nth(parts - 1).map_or(name.len(), |(at, _)| at);
        whole(p, &name[..end]).then_some(&name[..end])
    })
}

fn whole(pattern: &str, name: &str) -> bool {
    let (p, n): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), name.split('.').collect());
    p.len() == n.len() && p.iter().zip(n).all(|(p, n)| part(p.as_bytes(), n.as_bytes()))
}

/// The pattern without braces.
fn alternatives(pattern: &str) -> Vec<String> {
    let mut done = Vec::new();
    let mut open = vec![pattern.to_string()];
    while let Some(next) = open.pop() {
        let braces = next.find('{').and_then(|a| Some((a, a + next[a..].find('}')?)));
        match braces {
            Some((a, b)) if done.len() + open.len() < ALTERNATIVES_MAX => {
                let with = |alt: &str| format!("{}{alt}{}", &next[..a], &next[b + 1..]);
                open.extend(next[a + 1..b].split(',').rev().map(with));
            }
            _ => done.push(next),
        }
    }
    done
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
        assert_eq!(matches_prefix("osc.*", "osc.a.stats"), Some("osc.a"));
        assert_eq!(matches_prefix("*", "osc.a.stats"), Some("osc"));
        assert_eq!(matches_prefix("{llite,osc}.*.stats", "osc.a.stats"), Some("osc.a.stats"));
        assert_eq!(matches_prefix("osc.*.*.*", "osc.a.stats"), None);
    }

    #[test]
    fn many_braces_do_not_explode() {
        assert!(!matches(&"{a,b}".repeat(40), "x"));
        assert!(alternatives(&"{a,b}".repeat(40)).len() <= 2 * ALTERNATIVES_MAX);
    }
}
