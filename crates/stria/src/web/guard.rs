//! Who may look at the page.
//!
//! A browser shows the token once, in the URL that was printed or in the login form, and gets a cookie of this process for it.
//! Ports are no part of a cookie's place: another user's server on this host would be sent it, too. So the cookie belongs to a
//! path that nobody can guess, and the page and everything that it asks for lie below that path.
//!
//! - Another user of the host, or a page of another site, has neither token nor cookie nor path.
//! - A name that was made to lead here (DNS rebinding) is not one of this server's: the Host field is looked at first.
//! - A request that another page had the browser send (CSRF) has another `Origin` or `Sec-Fetch-Site`; the cookie is
//!   `SameSite=Strict`, and no answer allows other origins to read it (no CORS).
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use crate::daemon::{make_secret, read_secret};
use crate::failure::{Failure, Outcome};
use crate::http::{Request, Response};

/// The cookie's name.
const COOKIE: &str = "stria-web";
/// Fewest characters of a token.
const TOKEN_CHARACTERS_MIN: usize = 32;
/// Longest name of a server that a refusal repeats.
const NAME_SHOWN_MAX: usize = 100;

/// So many random bytes, in hexadecimal digits.
fn random_text<const BYTES: usize>() -> Outcome<String> {
    let (mut bytes, place) = ([0; BYTES], Path::new("/dev/urandom"));
    let filled = std::fs::File::open(place).and_then(|mut f| f.read_exact(&mut bytes));
    filled.map_err(|e| Failure::io("reading", place, &e))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Compares in constant time, apart from the length.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0u8, |d, (a, b)| d | (a ^ b)) == 0
}

/// What a browser has to show.
pub struct Token(String);

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn fresh() -> Outcome<Token> {
        random_text::<24>().map(Token)
    }

    /// The one in a file that is its owner's alone; a file that is missing is made, with a new one.
    ///
    /// # Errors
    /// The file cannot be made or read, is open to others, or holds no token.
    pub fn of_file(file: &Path) -> Outcome<Token> {
        const WHAT: &str = "--login";
        make_secret(WHAT, file, &format!("{}\n", Token::fresh()?.0))?;
        let text = String::from_utf8_lossy(&read_secret(WHAT, file)?).trim().to_string();
        let fits = |c: u8| c.is_ascii_alphanumeric() || b"-_".contains(&c);
        if text.len() < TOKEN_CHARACTERS_MIN || !text.bytes().all(fits) {
            return Err(Failure::usage(format!(
                "{WHAT} {}: a token is one line of at least {TOKEN_CHARACTERS_MIN} letters, digits, '-' and '_', and this has {} characters: remove the file, and a token is made",
                file.display(),
                text.len()
            )));
        }
        Ok(Token(text))
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// See the module's head.
pub struct Guard {
    token: Token,
    session: String,
    place: String,
    local: bool,
    names: Vec<String>,
}

impl Guard {
    /// For a server that this host alone reaches (`local`) or others, too, and that browsers also know by `names`.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(token: Token, local: bool, names: Vec<String>) -> Outcome<Guard> {
        let place = format!("/{}/", random_text::<12>()?);
        Ok(Guard { token, session: random_text::<24>()?, place, local, names })
    }

    /// The path below which everything lies; it ends with `/`.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The refusal of a request that was sent to another name than this server's.
    ///
    /// Addresses are fine, of this host alone where nobody else reaches the server: a page of another site comes with a name.
    #[must_use]
    pub fn refuse_host(&self, request: &Request) -> Option<Response> {
        let host = request.field("host").unwrap_or_default();
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_ours = match name.parse::<IpAddr>() {
            Ok(ip) => !self.local || crate::http::is_loopback(ip),
            Err(_) => name.eq_ignore_ascii_case("localhost") || self.names.iter().any(|n| n.eq_ignore_ascii_case(name)),
        };
        if is_ours {
            return None;
        }
        let name: String = name.chars().filter(|c| !c.is_control()).take(NAME_SHOWN_MAX).collect();
        let why = format!("this server is not called '{name}': 'stria web --name NAME' gives it a further name\n");
        Some(Response::plain(403, why))
    }

    /// The token, for tests of what it opens.
    #[cfg(test)]
    pub fn token_text(&self) -> &str {
        self.token.text()
    }

    /// Whether this is the token.
    #[must_use]
    pub fn is_token(&self, given: &str) -> bool {
        same(self.token.text(), given)
    }

    /// Whether the browser that asks has shown the token before.
    #[must_use]
    pub fn knows(&self, request: &Request) -> bool {
        let cookies = request.field("cookie").unwrap_or_default().split(';');
        let mut ours = cookies.filter_map(|c| c.trim().split_once('=')).filter(|(name, _)| *name == COOKIE);
        ours.any(|(_, value)| same(&self.session, value))
    }

    /// The cookie for a browser that showed the token, as `Set-Cookie` has it.
    #[must_use]
    pub fn cookie(&self) -> String {
        format!("{COOKIE}={}; Path={}; HttpOnly; SameSite=Strict", self.session, self.place)
    }

    /// Whether the page itself asks, or somebody who is no browser; not a page of another site.
    #[must_use]
    pub fn is_own(&self, request: &Request) -> bool {
        let host = request.field("host").unwrap_or_default();
        let own_origin = |origin: &str| {
            let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        };
        let own_site = |site: &str| ["same-origin", "none"].contains(&site);
        request.field("origin").is_none_or(own_origin) && request.field("sec-fetch-site").is_none_or(own_site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn asked(fields: &str) -> Request {
        Request::of(&format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n"), "")
    }

    #[test]
    fn a_name_that_leads_here_and_is_not_this_servers_is_refused() {
        let guard = |local| Guard::new(Token::fresh().unwrap(), local, vec!["node7.example".into()]).unwrap();
        let (local, wide) = (guard(true), guard(false));
        let refused =
            |g: &Guard, host: &str| g.refuse_host(&asked(&format!("Host: {host}"))).map(|r| (r.status, r.body));
        for host in ["127.0.0.1:7980", "localhost", "LOCALHOST:1", "[::1]:7980", "127.9.9.9", "Node7.example:80"] {
            assert_eq!(refused(&local, host), None, "{host}");
            assert_eq!(refused(&wide, host), None, "{host}");
        }
        for host in ["evil.example", "evil.example:7980", "", "localhost.evil.example", "127.0.0.1.evil.example", "["] {
            for g in [&local, &wide] {
                let (status, why) = refused(g, host).unwrap_or_else(|| panic!("{host} is let in"));
                assert!(status == 403 && why.contains("--name"), "{why}");
            }
        }
        assert!(refused(&local, "192.0.2.1:7980").is_some() && refused(&wide, "192.0.2.1:7980").is_none());
    }

    #[test]
    fn a_cookie_of_this_process_is_known_and_no_other() {
        let guard = Guard::new(Token::fresh().unwrap(), true, Vec::new()).unwrap();
        let cookie = guard.cookie();
        let (pair, rest) = cookie.split_once(';').unwrap();
        assert_eq!(rest, format!(" Path={}; HttpOnly; SameSite=Strict", guard.place()));
        let known = |cookies: &str| guard.knows(&asked(&format!("Host: x\r\nCookie: {cookies}")));
        assert!(known(pair) && known(&format!("a=b; {pair}")) && known(&format!("stria-web=old; {pair}; c=d")));
        let (_, value) = pair.split_once('=').unwrap();
        for cookies in
            ["", "stria-web=", "stria-web", &pair[..pair.len() - 1], &format!("{pair}0"), &format!("x{pair}"), value]
        {
            assert!(!known(cookies), "{cookies}");
        }
        assert!(!guard.knows(&asked("Host: x")));
        assert!(guard.is_token(guard.token.text()) && !guard.is_token("") && !guard.is_token(value));
        let other = Guard::new(Token::fresh().unwrap(), true, Vec::new()).unwrap();
        assert!(other.place() != guard.place() && other.cookie() != cookie && !other.is_token(guard.token.text()));
    }

    #[test]
    fn what_another_page_has_the_browser_send_is_not_the_pages_own() {
        let guard = Guard::new(Token::fresh().unwrap(), true, Vec::new()).unwrap();
        let own = |fields: &str| guard.is_own(&asked(&format!("Host: 127.0.0.1:7980\r\n{fields}")));
        assert!(own("A: b") && own("Origin: http://127.0.0.1:7980\r\nSec-Fetch-Site: same-origin"));
        assert!(own("Origin: https://127.0.0.1:7980") && own("Sec-Fetch-Site: none"));
        for fields in [
            "Origin: http://127.0.0.1:7981",
            "Origin: http://evil.example",
            "Origin: null",
            "Origin: 127.0.0.1:7980",
            "Sec-Fetch-Site: same-site",
            "Sec-Fetch-Site: cross-site",
        ] {
            assert!(!own(fields), "{fields}");
        }
    }

    #[test]
    fn a_tokens_file_is_made_once_is_its_owners_alone_and_has_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let made = Token::of_file(&file).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Token::of_file(&file).unwrap().text() == made.text() && made.text().len() == 48);
        std::fs::write(&file, "short\n").unwrap();
        let why = Token::of_file(&file).err().unwrap().to_string();
        assert!(why.contains("at least 32") && why.contains("5 characters") && !why.contains("short"), "{why}");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let why = Token::of_file(&file).err().unwrap().to_string();
        assert!(why.contains("chmod -R go= "), "{why}");
        let why = Token::of_file(&dir.path().join("none/token")).err().unwrap().to_string();
        assert!(why.contains("--login") && why.contains("none/token"), "{why}");
    }
}
