//! What the server of the page answers: the page's own files, events with what is looked at, and changes of policies.
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::guard::Guard;
use super::switches;
use super::watch::{VIEWERS_MAX, Watch};
use crate::control;
use crate::http::{Answer, Request, Response, Site};
use crate::top::source::Source;

const PAGE: &str = include_str!("page/page.html");
const LOGIN: &str = include_str!("page/login.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");
const ICON: &str = include_str!("page/icon.svg");
/// Where the login form says what was wrong.
const SAID: &str = "<!-- said -->";
const WRONG_TOKEN: &str = r#"<p role="alert" class="bad">This is not the token.</p>"#;

/// What a browser may load and send from the page: its own files, to this server.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Milliseconds after which a browser whose events ended asks for them again.
const AGAIN_MS: u32 = 2000;

/// See the module's head.
pub struct Pages {
    guard: Guard,
    watch: Arc<Watch>,
    source: Source,
    read_only: bool,
    /// Held while a policy is switched.
    switching: Mutex<()>,
}

impl Site for Pages {
    const NAME: &'static str = "web";
    /// Viewers keep theirs; the others are for all else that a browser asks.
    const CONNECTIONS_MAX: usize = VIEWERS_MAX + 16;
    const BODY_BYTES_MAX: usize = 4 << 10;

    fn answer(&self, request: &Request) -> Answer {
        if let Some(refusal) = self.guard.refuse_host(request) {
            return Answer::Whole(closed(refusal));
        }
        if request.path.strip_prefix(self.guard.place()) == Some("events") {
            return self.events(request);
        }
        Answer::Whole(closed(self.response(request)))
    }
}

/// With the fields that keep browsers from loading, sending, showing or remembering more than is meant.
fn closed(response: Response) -> Response {
    response
        .with("Content-Security-Policy", CONTENT_POLICY)
        .with("X-Content-Type-Options", "nosniff")
        .with("X-Frame-Options", "DENY")
        .with("Referrer-Policy", "same-origin")
        .with("Cross-Origin-Opener-Policy", "same-origin")
        .with("Cross-Origin-Resource-Policy", "same-origin")
}

/// The refusal of a request by another method; `None`: it has one of these.
fn other_method(request: &Request, allowed: &'static str) -> Option<Response> {
    let fits = allowed.split(", ").any(|m| m == request.method);
    (!fits).then(|| Response::plain(405, format!("{allowed} only\n")).with("Allow", allowed))
}

/// The value of a parameter in a query or a form.
fn parameter<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split('&').filter_map(|pair| pair.split_once('=')).find(|(n, _)| *n == name).map(|(_, value)| value)
}

fn told(status: u16, value: &Value) -> Response {
    Response::new(status, "application/json", format!("{value}\n"))
}

fn refused(status: u16, why: impl std::fmt::Display) -> Response {
    told(status, &json!({"error": why.to_string()}))
}

impl Pages {
    /// The site of a mount's page.
    pub fn new(guard: Guard, watch: Arc<Watch>, source: Source, read_only: bool) -> Pages {
        Pages { guard, watch, source, read_only, switching: Mutex::default() }
    }

    fn response(&self, request: &Request) -> Response {
        const LOOK: &str = "GET, HEAD";
        let file =
            |kind, text: &str| other_method(request, LOOK).unwrap_or_else(|| Response::new(200, kind, text.into()));
        match request.path.as_str() {
            "/" => other_method(request, LOOK).unwrap_or_else(|| self.enter(parameter(&request.query, "token"))),
            "/login" => other_method(request, "POST").unwrap_or_else(|| self.log_in(request)),
            "/style.css" => file("text/css; charset=utf-8", STYLE),
            "/script.js" => file("text/javascript; charset=utf-8", SCRIPT),
            "/icon.svg" => file("image/svg+xml", ICON),
            path => match path.strip_prefix(self.guard.place()) {
                Some("") if !self.guard.knows(request) => login("", 403),
                Some("") => file("text/html; charset=utf-8", PAGE),
                Some("set") => other_method(request, "POST").unwrap_or_else(|| self.set(request)),
                _ => Response::plain(404, "there is no such page: open the URL that 'stria web' printed\n".into()),
            },
        }
    }

    /// Lets a browser in that shows the token.
    fn enter(&self, token: Option<&str>) -> Response {
        match token {
            None => login("", 403),
            Some(token) if !self.guard.is_token(token) => login(WRONG_TOKEN, 403),
            Some(_) => Response::plain(303, format!("{}\n", self.guard.place()))
                .with("Location", self.guard.place())
                .with("Set-Cookie", self.guard.cookie()),
        }
    }

    fn log_in(&self, request: &Request) -> Response {
        if !self.guard.is_own(request) {
            return Response::plain(403, "another page sent this form\n".into());
        }
        let form = String::from_utf8_lossy(&request.body);
        // Blanks around it, as they come along when a line is copied.
        self.enter(Some(parameter(&form, "token").unwrap_or_default().trim_matches('+')))
    }

    /// Why a request is not answered that only the page may send; `None`: it is answered.
    fn stranger(&self, request: &Request) -> Option<&'static str> {
        match (self.guard.knows(request), self.guard.is_own(request)) {
            (false, _) => Some("this browser has not shown the token: open the URL that 'stria web' printed"),
            (_, false) => Some("another page sent this request"),
            _ => None,
        }
    }

    fn events(&self, request: &Request) -> Answer {
        if let Some(refusal) = other_method(request, "GET") {
            return Answer::Whole(closed(refusal));
        }
        if let Some(why) = self.stranger(request) {
            return Answer::Whole(closed(Response::plain(403, format!("{why}\n"))));
        }
        let Some(mut viewer) = self.watch.viewer() else {
            let why = format!("{VIEWERS_MAX} viewers are here already, and no more are served: close one of theirs\n");
            return Answer::Whole(closed(Response::plain(503, why)));
        };
        let facts = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "mount_point": self.source.at,
            "read_only": self.read_only,
            "switches": switches::shown(),
            "past": viewer.past,
        });
        let mut first = Some(format!("retry: {AGAIN_MS}\nevent: facts\ndata: {facts}\n\n"));
        let next = move || Some(first.take().unwrap_or_else(|| format!("data: {}\n\n", viewer.latest())).into_bytes());
        let head = Response::new(200, "text/event-stream", String::new()).with("X-Accel-Buffering", "no");
        Answer::Stream(closed(head), Box::new(next))
    }

    /// Switches a policy: `{"switch": ID, "value": NAME}`.
    fn set(&self, request: &Request) -> Response {
        if let Some(why) = self.stranger(request) {
            return refused(403, why);
        }
        if self.read_only {
            return refused(403, "this page only shows ('stria web --read-only')");
        }
        // Forms, which other pages may send, cannot have it.
        let kind = request.field("content-type").unwrap_or_default();
        if kind.split(';').next().map(str::trim) != Some("application/json") {
            return refused(415, "write JSON, and Content-Type: application/json");
        }
        let wish: Value = match serde_json::from_slice(&request.body) {
            Ok(wish) => wish,
            Err(e) => return refused(400, format_args!("not JSON: {e}")),
        };
        let (Some(id), Some(value)) = (wish["switch"].as_str(), wish["value"].as_str()) else {
            return refused(400, r#"write {"switch": ID, "value": NAME}"#);
        };
        let pattern = match switches::checked(id, value) {
            Ok(pattern) => pattern,
            Err(why) => return refused(422, why),
        };
        let Ok(_alone) = self.switching.try_lock() else {
            return refused(503, "another change is under way: try again when it is done");
        };
        tracing::warn!("the page sets {pattern}={value}");
        let question = json!({"do": "set_param", "pattern": pattern, "value": value});
        match control::ask(self.source.renewed().connection, &question) {
            Ok(answer) => told(200, &json!({"set": answer["set"], "value": value})),
            Err(e) => refused(502, e),
        }
    }
}

fn login(said: &str, status: u16) -> Response {
    Response::new(status, "text/html; charset=utf-8", LOGIN.replace(SAID, said))
}

#[cfg(test)]
mod tests {
    use super::super::guard::Token;
    use super::*;

    fn pages(read_only: bool) -> Pages {
        let guard = Guard::new(Token::fresh().unwrap(), true, Vec::new()).unwrap();
        let source = Source::nowhere();
        Pages::new(guard, Arc::new(Watch::default()), source, read_only)
    }

    impl Pages {
        /// A request by a browser that has shown the token; `{}` in the path is the place.
        fn ask(&self, method: &str, path: &str, fields: &str, body: &str) -> Response {
            let cookie = self.guard.cookie();
            let cookie = cookie.split(';').next().unwrap();
            self.ask_unknown(method, path, &format!("Cookie: {cookie}\r\n{fields}"), body)
        }
        fn ask_unknown(&self, method: &str, path: &str, fields: &str, body: &str) -> Response {
            let path = path.replace("{}", self.guard.place());
            let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost:1\r\n{fields}\r\n");
            match self.answer(&Request::of(&head, body)) {
                Answer::Whole(response) => response,
                Answer::Stream(response, _) => response,
            }
        }
    }

    const JSON: &str = "Content-Type: application/json\r\n";

    #[test]
    fn nobody_gets_in_without_the_token_and_who_shows_it_gets_a_cookie_and_a_place() {
        let p = pages(false);
        let token = p.guard.token_text();
        for path in ["/", "/?token=", "/?token=0123", "{}"] {
            let r = p.ask_unknown("GET", path, "", "");
            assert!(r.status == 403 && r.body.contains("<form"), "{path}: {r:?}");
            assert_eq!(r.body.contains("not the token"), path.contains("token="), "{path}");
        }
        assert_eq!(p.ask_unknown("GET", "{}events", "", "").status, 403);
        assert_eq!(p.ask_unknown("POST", "{}set", JSON, r#"{"switch": "nrs", "value": "fifo"}"#).status, 403);
        let field = |r: &Response, name: &str| r.fields.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        for r in [
            p.ask_unknown("GET", &format!("/?token={token}"), "", ""),
            p.ask_unknown("POST", "/login", "Origin: http://localhost:1\r\n", &format!("token={token}")),
        ] {
            assert_eq!((r.status, field(&r, "Location").as_deref()), (303, Some(p.guard.place())));
            assert_eq!(field(&r, "Set-Cookie"), Some(p.guard.cookie()));
            assert!(field(&r, "Content-Security-Policy").unwrap().starts_with("default-src 'none'; script-src 'self'"));
        }
        let foreign = p.ask_unknown("POST", "/login", "Origin: http://evil.example\r\n", &format!("token={token}"));
        assert_eq!(foreign.status, 403);
        let page = p.ask("GET", "{}", "", "");
        assert!(page.status == 200 && page.body.contains("<main"), "{page:?}");
        assert_eq!(p.ask("GET", "{}events", "", "").kind, "text/event-stream");
        assert_eq!(p.ask("GET", "{}events", "Sec-Fetch-Site: cross-site\r\n", "").status, 403);
        assert_eq!(p.ask("GET", "{}none", "", "").status, 404);
        assert_eq!(p.ask("GET", "/0123/", "", "").status, 404);
        assert_eq!(p.ask("POST", "{}", "", "").status, 405);
        assert_eq!(p.ask("GET", "{}set", "", "").status, 405);
    }

    #[test]
    fn policies_of_the_list_are_set_and_nothing_else() {
        let p = pages(false);
        let set = |fields: &str, body: &str| p.ask("POST", "{}set", fields, body);
        let good = r#"{"switch": "nrs", "value": "fifo"}"#;
        // Nothing is mounted there: it was asked.
        let asked = set(JSON, good);
        assert!(asked.status == 502 && asked.body.contains("is not there any more"), "{asked:?}");
        for (fields, body, status) in [
            ("", good, 415),
            ("Content-Type: text/plain\r\n", good, 415),
            ("Content-Type: application/json\r\nOrigin: http://localhost:2\r\n", good, 403),
            (JSON, "{", 400),
            (JSON, r#"{"switch": "nrs"}"#, 400),
            (JSON, r#"{"switch": "ost.OSS.ost_io.nrs_policies", "value": "fifo"}"#, 422),
            (JSON, r#"{"switch": "nrs", "value": "fifo; reboot"}"#, 422),
        ] {
            assert_eq!(set(fields, body).status, status, "{fields} {body}");
        }
        let _alone = p.switching.lock().unwrap();
        assert_eq!(set(JSON, good).status, 503);
        assert_eq!(pages(true).ask("POST", "{}set", JSON, good).status, 403);
    }

    #[test]
    fn viewers_beyond_the_last_place_are_told_so() {
        let p = pages(false);
        let viewers: Vec<_> = std::iter::from_fn(|| p.watch.viewer()).collect();
        let r = p.ask("GET", "{}events", "", "");
        assert!(r.status == 503 && r.body.contains(&format!("{} viewers", viewers.len())), "{r:?}");
        drop(viewers);
        assert_eq!(p.ask("GET", "{}events", "", "").status, 200);
    }

    #[test]
    fn the_page_loads_and_sends_nothing_elsewhere_and_has_nothing_inline() {
        for text in [PAGE, LOGIN, SCRIPT, STYLE] {
            let names = text.replace("http://www.w3.org/2000/svg", "");
            for word in
                ["http://", "https://", "//cdn", "@import", "url(", "innerHTML", "eval(", " style=", " onclick="]
            {
                assert!(!names.contains(word), "{word}");
            }
        }
        assert!(PAGE.contains("lang=\"en\"") && PAGE.contains("<noscript>") && LOGIN.contains(SAID));
    }
}
