//! `stria web` over clusters of real processes: who gets in, what the page is told, what may be changed, and who is away. Needs
//! root and `/dev/fuse` where it mounts.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::Value;
use support::{Cluster, Daemon, can_mount, good, refused, text};

/// An answer, read to its end.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Who asks a page's server: its address, and the cookie that it gave.
#[derive(Clone)]
struct Browser {
    address: String,
    cookie: String,
    /// Path below which the page is.
    place: String,
}

impl Browser {
    fn stranger(address: &str) -> Browser {
        Browser { address: address.into(), cookie: String::new(), place: String::new() }
    }

    /// One that opens a URL with a token.
    fn open(url: &str) -> Browser {
        let rest = url.strip_prefix("http://").unwrap();
        let (address, path) = rest.split_at(rest.find('/').unwrap());
        Browser::stranger(address).entered(&Browser::stranger(address).ask("GET", path, "", ""))
    }

    /// The same, let in by an answer.
    fn entered(&self, answer: &Answer) -> Browser {
        assert_eq!(answer.status, 303, "{}{}", answer.head, answer.body);
        let cookie = answer.field("Set-Cookie").unwrap();
        assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap().into();
        Browser { cookie, place: answer.field("Location").unwrap().into(), ..self.clone() }
    }

    fn begin(&self, method: &str, path: &str, fields: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap_or_else(|e| panic!("{}: {e}", self.address));
        let host = if fields.contains("Host: ") { String::new() } else { format!("Host: {}\r\n", self.address) };
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let cookie = &self.cookie;
        write!(stream, "{method} {path} HTTP/1.1\r\n{host}Cookie: {cookie}\r\n{length}{fields}\r\n{body}").unwrap();
        stream
    }

    fn ask(&self, method: &str, path: &str, fields: &str, body: &str) -> Answer {
        let mut answer = String::new();
        self.begin(method, path, fields, body).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.into(), body: body.into() }
    }

    fn set(&self, fields: &str, body: &str) -> (u16, Value) {
        let fields = format!("Content-Type: application/json\r\n{fields}");
        let answer = self.ask("POST", &format!("{}set", self.place), &fields, body);
        (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|e| panic!("{e}: {}", answer.body)))
    }

    fn events(&self) -> Events {
        let stream = self.begin("GET", &format!("{}events", self.place), "Accept: text/event-stream\r\n", "");
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Type: text/event-stream\r\n"), "{head}");
        assert!(!head.contains("Access-Control"), "{head}");
        Events { lines }
    }
}

/// The page's events.
struct Events {
    lines: BufReader<TcpStream>,
}

impl Events {
    /// The next one: its name, and its data.
    fn next(&mut self) -> (String, Value) {
        let (mut name, mut data) = (String::new(), Value::Null);
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the events ended");
            if let Some(text) = line.strip_prefix("event: ") {
                name = text.trim().into();
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = serde_json::from_str(text).unwrap();
            } else if line == "\n" {
                return (name, data);
            }
        }
    }

    /// The first document of which something is so.
    fn until(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..60 {
            let (name, document) = self.next();
            if name.is_empty() && is(&document) {
                return document;
            }
        }
        panic!("never: {what}");
    }
}

/// A page's server.
fn web(c: &Cluster, arguments: &[&str]) -> Daemon {
    let line = [&["web", "--listen", "127.0.0.1:0"], arguments].concat();
    Daemon::start(&line, &c.dir.path().join("web.log"))
}

fn server(document: &Value, target: &str) -> Value {
    let all = document["servers"].as_array().unwrap();
    all.iter().find(|s| s["target"].as_str().unwrap().ends_with(target)).cloned().unwrap_or(Value::Null)
}

/// What another site, another user of the host, or somebody without the token gets.
fn check_strangers(b: &Browser) {
    let events = format!("{}events", b.place);
    let stranger = Browser::stranger(&b.address);
    for path in ["/", "/?token=", "/?token=00000000", b.place.as_str(), events.as_str()] {
        let answer = stranger.ask("GET", path, "", "");
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
        assert!(answer.field("Set-Cookie").is_none() && !answer.body.contains("servers"), "{path}: {}", answer.body);
    }
    let wrong = Browser { cookie: "stria-web=00".into(), ..b.clone() };
    assert_eq!(wrong.ask("GET", &b.place, "", "").status, 403);
    let wish = r#"{"switch": "nrs", "value": "fifo"}"#;
    assert_eq!(wrong.set("", wish).0, 403);
    // DNS rebinding: the right cookie, and a name that is not this server's.
    for host in ["evil.example", "evil.example:80", "192.0.2.1"] {
        let answer = b.ask("GET", &b.place, &format!("Host: {host}\r\n"), "");
        assert!(answer.status == 403 && answer.body.contains("--name"), "{host}: {}", answer.body);
    }
    assert_eq!(b.ask("GET", &b.place, "Host: localhost\r\n", "").status, 200);
    // CSRF: the browser's own cookie, sent by another page.
    for fields in ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: same-site\r\n"] {
        let (status, told) = b.set(fields, wish);
        assert!(status == 403 && told["error"].as_str().unwrap().contains("another page"), "{fields}: {told}");
    }
    let form = b.ask("POST", &format!("{}set", b.place), "Content-Type: text/plain\r\n", wish);
    assert_eq!(form.status, 415, "{}", form.body);
    assert_eq!(b.ask("OPTIONS", &format!("{}set", b.place), "Origin: http://evil.example\r\n", "").status, 405);
    let large = format!(r#"{{"switch": "{}"}}"#, "x".repeat(10_000));
    assert_eq!(b.ask("POST", &format!("{}set", b.place), "Content-Type: application/json\r\n", &large).status, 413);
}

#[test]
fn the_page_shows_a_cluster_live_lets_only_its_own_browser_in_and_sets_policies_only() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let page = web(&c, &[text(&at)]);
    let b = Browser::open(&page.word);
    let shown = b.ask("GET", &b.place, "", "");
    assert!(shown.status == 200 && shown.body.contains("<main"), "{}", shown.body);
    let policy = shown.field("Content-Security-Policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"), "{policy}");
    for file in ["/style.css", "/script.js", "/icon.svg"] {
        assert_eq!(b.ask("GET", file, "", "").status, 200, "{file}");
    }
    check_strangers(&b);
    let mut events = b.events();
    let (name, facts) = events.next();
    assert!(
        name == "facts" && facts["read_only"] == false && facts["switches"].as_array().unwrap().len() == 5,
        "{facts}"
    );
    fs::write(at.join("f"), vec![7; 4 << 20]).unwrap();
    good(&["sync", text(&at)]);
    let d = events.until("all servers answer, and nothing is wrong", |d| {
        let answers = |t: &&str| server(d, t)["answers"] == true;
        let all = ["MDT0000", "OST0000", "OST0001"].iter().all(answers);
        all && d["away"].is_null() && d["troubles"] == serde_json::json!([])
    });
    assert!(d["cluster"]["fsname"] == "stria", "{d}");
    let ost = server(&d, "OST0000");
    assert!(ost["scheduler"]["dispatched"].is_u64() && ost["cache"]["classes"][0]["lookups"].is_u64(), "{ost}");
    assert!(ost["locks"]["count"].is_u64() && server(&d, "MDT0000")["locks"]["waited"].is_u64(), "{d}");
    assert!(d["mount"]["readahead"]["counters"]["reads"].is_u64() && d["mount"]["cache"]["policy"].is_string(), "{d}");
    events.until("the client and what it wrote is seen", |d| {
        let all = d["clients"]["shown"].as_array().unwrap();
        all.iter().any(|u| u["name"] == d["cluster"]["client"] && u["write_bytes"].as_u64() >= Some(4 << 20))
    });
    // A policy is switched, everywhere; what is none, and what is not on the list, is not.
    let before = good(&["get_param", "-n", "--at", text(&at), "ost.OSS.ost_io.nrs_policies"]);
    let other = if before.contains("crrn") { "fifo" } else { "crrn" };
    let (status, told) = b.set("", &format!(r#"{{"switch": "nrs", "value": "{other}"}}"#));
    assert_eq!((status, &told["set"]), (200, &serde_json::json!(["ost.OSS.ost_io.nrs_policies"])), "{told}");
    assert_eq!(good(&["get_param", "-n", "--at", text(&at), "ost.OSS.ost_io.nrs_policies"]).trim(), other);
    let seen = events.until("the new policy is seen", |d| d["policies"]["nrs"] == serde_json::json!([other]));
    assert_eq!(server(&seen, "OST0001")["queue"]["policy"], *other);
    for (body, word) in [
        (r#"{"switch": "obdfilter.*.evict_client", "value": "1"}"#, "there are nrs"),
        (r#"{"switch": "nrs", "value": "best"}"#, "'best' is no policy of nrs"),
    ] {
        let (status, told) = b.set("", body);
        assert!(status == 422 && told["error"].as_str().unwrap().contains(word), "{told}");
    }
    drop(events);
    drop(page);
    c.stop();
}

#[test]
fn a_killed_ost_and_a_dead_mount_are_shown_as_away_since_then_while_the_rest_goes_on() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    // The cluster's directory says which mount, too.
    let page = web(&c, &[&c.path("c"), "--read-only"]);
    let b = Browser::open(&page.word);
    let mut events = b.events();
    assert_eq!(events.next().1["read_only"], true);
    let (status, told) = b.set("", r#"{"switch": "nrs", "value": "fifo"}"#);
    assert!(status == 403 && told["error"].as_str().unwrap().contains("--read-only"), "{told}");
    events.until("both OSTs answer", |d| ["OST0000", "OST0001"].iter().all(|t| server(d, t)["answers"] == true));
    c.oss[1].take();
    let told = |d: &Value| d["troubles"].to_string().contains("--ost 1' starts it");
    let d = events.until("the killed OST is away, with the command that helps", |d| {
        server(d, "OST0001")["answers"] == false && told(d)
    });
    let since = server(&d, "OST0001")["since"].as_f64().unwrap();
    let later =
        events.until("the rest goes on", |d| d["away"].is_null() && server(d, "OST0000")["requests"]["per_s"].is_f64());
    assert_eq!(server(&later, "OST0001")["since"].as_f64(), Some(since));
    assert_eq!(server(&later, "OST0000")["answers"], true);
    c.start_oss(1);
    events.until("it is back", |d| server(d, "OST0001")["answers"] == true && server(d, "OST0001")["since"].is_null());
    // The daemon that is asked stands still: its page goes on, and says so.
    let daemon = c.mounts[0].1.child.id();
    // SAFETY: a signal to a child of this test that was not collected yet.
    let send = |signal| unsafe { libc::kill(daemon as i32, signal) };
    send(libc::SIGSTOP);
    let d = events.until("the mount is away", |d| d["away"].is_object() && !told(d));
    // It is not asked again and again meanwhile.
    let tasks = format!("/proc/{}/task", page.child.id());
    let threads = (0..6).map(|_| events.next()).map(|_| fs::read_dir(&tasks).unwrap().count()).max();
    send(libc::SIGCONT);
    assert!(threads < Some(10), "{threads:?} threads");
    assert_eq!(d["away"]["do"], format!("'kill -CONT {daemon}' lets it go on"));
    assert!(server(&d, "OST0000")["target"].is_string(), "what was known stays: {d}");
    events.until("the mount is back", |d| d["away"].is_null());
    drop((events, page));
    assert!(at.exists());
    c.stop();
}

#[test]
fn beyond_loopback_a_token_in_a_closed_file_is_asked_for_and_viewers_have_an_end() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    let (file, log) = (c.path("token"), c.dir.path().join("web.log"));
    let page = Daemon::start(&["web", "--listen", "0.0.0.0:0", "--login", &file, text(&at)], &log);
    assert!(!page.word.contains("token="), "{}", page.word);
    let token = fs::read_to_string(&file).unwrap();
    assert!(!page.said().contains(token.trim()), "the log tells the token");
    let port = page.word.trim_end_matches('/').rsplit_once(':').unwrap().1;
    let stranger = Browser::stranger(&format!("127.0.0.1:{port}"));
    let form =
        |token: &str| stranger.ask("POST", "/login", "Content-Type: application/x-www-form-urlencoded\r\n", token);
    assert!(form("token=wrong").body.contains("not the token") && form("").status == 403);
    let b = stranger.entered(&form(&format!("token={}", token.trim())));
    check_strangers_by_name(&b);
    let mut viewers = Vec::new();
    let full = loop {
        let answer = b.begin("GET", &format!("{}events", b.place), "", "");
        let mut first = [0; 12];
        (&answer).read_exact(&mut first).unwrap();
        match &first {
            b"HTTP/1.1 200" => viewers.push(answer),
            other => break String::from_utf8_lossy(other).into_owned(),
        }
        assert!(viewers.len() < 1000);
    };
    assert_eq!((full.as_str(), viewers.len()), ("HTTP/1.1 503", 32));
    assert_eq!(b.ask("GET", &b.place, "", "").status, 200, "the page itself is served all the same");
    // Most of them do not read; who does gets what comes.
    let mut reading = Events { lines: BufReader::new(viewers.pop().unwrap()) };
    reading.next();
    for _ in 0..3 {
        assert!(reading.next().1["servers"].is_array());
    }
    // Who leaves gives the place free, when the next look finds nobody there.
    drop(reading);
    let again = (0..600).any(|_| {
        std::thread::park_timeout(std::time::Duration::from_millis(50));
        let mut first = [0; 12];
        b.begin("GET", &format!("{}events", b.place), "", "").read_exact(&mut first).unwrap();
        &first == b"HTTP/1.1 200"
    });
    assert!(again, "no place became free");
    drop((viewers, page));
    c.stop();
}

fn check_strangers_by_name(b: &Browser) {
    assert_eq!(
        b.ask("GET", &b.place, "Host: 192.0.2.1:80\r\n", "").status,
        200,
        "an address is no name of another site"
    );
    assert_eq!(b.ask("GET", &b.place, "Host: evil.example\r\n", "").status, 403);
}

#[test]
fn what_cannot_be_is_refused_with_what_would_be_right() {
    for address in ["127.0.0.1", "localhost:80", "0.0.0.0:99999"] {
        let (code, said) = refused(&["web", "--listen", address]);
        assert!(code == libc::EINVAL && said.contains(address) && said.contains("write IP:PORT"), "{said}");
    }
    let (code, said) = refused(&["web", "--listen", "0.0.0.0:7980"]);
    assert!(
        code == libc::EINVAL && said.contains("--login FILE") && said.contains("ssh -L 7980:127.0.0.1:7980"),
        "{said}"
    );
    let dir = tempfile::tempdir().unwrap();
    let (code, said) = refused(&["web", text(dir.path())]);
    assert!(code != 0 && said.contains(text(dir.path())) && said.contains("'stria status' shows"), "{code} {said}");
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, said) = refused(&["web", "--listen", &address, text(&at)]);
    let port = address.rsplit_once(':').unwrap().1;
    assert!(code == libc::EADDRINUSE && said.contains(&format!("port {port} is in use by another process")), "{said}");
    let (code, said) = refused(&["web", "--listen", "192.0.2.77:0", "--login", &c.path("t"), text(&at)]);
    assert!(code == libc::EADDRNOTAVAIL && said.contains("does not have the address 192.0.2.77"), "{said}");
    fs::write(c.path("open"), "0123456789012345678901234567890123456789").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(Path::new(&c.path("open")), open).unwrap();
    let (code, said) = refused(&["web", "--listen", "127.0.0.1:0", "--login", &c.path("open"), text(&at)]);
    assert!(code == libc::EACCES && said.contains("chmod -R go= "), "{said}");
    c.stop();
}
