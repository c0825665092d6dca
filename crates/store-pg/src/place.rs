//! Where a store is: a connection string without a password, and the file that has the password.
//!
//! The directory of a metadata target whose store is in a database holds both in a file of its own, so that whoever opens the
//! directory opens the database.
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::memory::Memory;
use crate::security::Security;

/// The file of a metadata target's directory that says where its store is.
pub const PLACE_FILE: &str = "mdt.postgres";

/// How long an attempt to reach a server may take when the connection string does not say: 3 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the network may keep silent about what was sent when the connection string does not say: 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const PORT_DEFAULT: u16 = 5432;

/// Where a store is.
#[derive(Clone)]
pub struct Place {
    text: String,
    passfile: Option<PathBuf>,
    security: Security,
    config: Config,
    /// What the metadata target's directory remembers of it; nothing of a place that stands in none.
    memory: Option<Arc<Memory>>,
    /// What was said of its servers last.
    said: Arc<Mutex<String>>,
}

/// The same store, in whichever directory that stands.
impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        (&self.text, &self.passfile) == (&other.text, &other.passfile)
    }
}
impl Eq for Place {}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.text)
    }
}
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a place is none: a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaceError(pub String);
impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for PlaceError {}

impl Place {
    /// Of a connection string (`postgres://USER@HOST[:PORT][,HOST...]/DATABASE?OPTIONS`) and the file with its password.
    ///
    /// # Errors
    /// It is none; it holds a password, names no user or no database, or its options of security make no sense.
    pub fn parse(text: &str, passfile: Option<&Path>) -> Result<Place, PlaceError> {
        let wrong = |why: &str| PlaceError(format!("'{}' names no metadata store: {why}", without_password(text)));
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(wrong("say postgres://USER@HOST[:PORT]/DATABASE"));
        }
        let (security, url) = Security::of_url(text).map_err(|why| wrong(&why))?;
        let mut config = Config::from_str(&url).map_err(|e| wrong(&with_causes(&e)))?;
        if config.get_password().is_some() {
            return Err(wrong("a password there is seen by others: put it into a file (mdt.passfile, PGPASSFILE)"));
        }
        if config.get_user().is_none_or(str::is_empty) {
            return Err(wrong("it names no user: postgres://USER@HOST/DATABASE"));
        }
        if config.get_dbname().is_none_or(str::is_empty) {
            return Err(wrong("it names no database: postgres://USER@HOST/DATABASE"));
        }
        if config.get_hosts().is_empty() {
            return Err(wrong("it names no host: postgres://USER@HOST/DATABASE, or ?host=DIRECTORY-OF-THE-SOCKET"));
        }
        config.ssl_mode(security.mode());
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_MAX).keepalives_idle(SILENCE_MAX);
        }
        if config.get_application_name().is_none() {
            config.application_name("stria mds");
        }
        Ok(Place {
            text: text.into(),
            passfile: passfile.map(Into::into),
            security,
            config,
            memory: None,
            said: Arc::default(),
        })
    }

    /// Of a metadata target's directory; `None`: its store is in the directory itself.
    ///
    /// # Errors
    /// The file there cannot be read, or says no place.
    pub fn of_dir(dir: &Path) -> Result<Option<Place>, PlaceError> {
        let path = dir.join(PLACE_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(PlaceError(format!("{}: {e}", path.display()))),
        };
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let store = value("store").ok_or_else(|| PlaceError(format!("{}: no line 'store URL'", path.display())))?;
        let place = Place::parse(store, value("passfile").map(Path::new));
        let mut place = place.map_err(|e| PlaceError(format!("{}: {e}", path.display())))?;
        place.memory = Some(Arc::new(Memory::of(dir)));
        Ok(Some(place))
    }

    /// Writes it down in a metadata target's directory, which its owner alone can read.
    ///
    /// # Errors
    /// The file system says no.
    pub fn write_to(&self, dir: &Path) -> io::Result<()> {
        rt::make_private_dir(dir)?;
        let mut text = format!("store {}\n", self.text);
        if let Some(passfile) = &self.passfile {
            text.push_str(&format!("passfile {}\n", passfile.display()));
        }
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(dir.join(PLACE_FILE))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::File::open(dir)?.sync_all()
    }

    /// The same without what is remembered of it: for who takes it whatever that says.
    pub(crate) fn unremembered(&self) -> Place {
        Place { memory: None, ..self.clone() }
    }

    /// Says something of its servers, unless that is what was said last.
    pub(crate) fn warn_once(&self, text: String) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != text {
            tracing::warn!("{text}");
            *said = text;
        }
    }

    pub(crate) fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }

    /// What protects connections, with the certificates of today.
    pub(crate) fn security(&self) -> Result<MakeRustlsConnect, PlaceError> {
        self.security.connector().map_err(PlaceError)
    }

    /// What connections are made by, with the password of today.
    pub(crate) fn config(&self) -> Result<Config, PlaceError> {
        let mut config = self.config.clone();
        if let Some(password) = self.password()? {
            config.password(password);
        }
        Ok(config)
    }

    /// Its servers, in the order in which they stand there: what each is called, and what connections to it alone are made by.
    pub(crate) fn servers(&self) -> Result<Vec<(String, Config)>, PlaceError> {
        let all = self.config()?;
        let (hosts, ports, addresses) = (all.get_hosts(), all.get_ports(), all.get_hostaddrs());
        let servers = hosts.iter().enumerate().map(|(i, host)| {
            let port = ports.get(i).or(ports.first()).copied().unwrap_or(PORT_DEFAULT);
            let mut one = without_servers(&all);
            one.port(port);
            if let Some(address) = addresses.get(i) {
                one.hostaddr(*address);
            }
            match host {
                Host::Tcp(name) => (format!("{name}:{port}"), one.host(name).clone()),
                Host::Unix(dir) => (format!("{}:{port}", dir.display()), one.host_path(dir).clone()),
            }
        });
        Ok(servers.collect())
    }

    /// From the file that was named, else from PGPASSFILE, else from ~/.pgpass, as PostgreSQL's own programs read it.
    fn password(&self) -> Result<Option<String>, PlaceError> {
        let of_environment = || std::env::var_os("PGPASSFILE").map(PathBuf::from);
        let of_home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".pgpass")).filter(|p| p.exists());
        let Some(path) = self.passfile.clone().or_else(of_environment).or_else(of_home) else { return Ok(None) };
        let failed = |e: io::Error| PlaceError(format!("{}, which holds the database's password: {e}", path.display()));
        let mode = fs::metadata(&path).map_err(failed)?.mode();
        if mode & 0o077 != 0 {
            return Err(PlaceError(format!(
                "{}: others can read the database's password (mode {:o}): chmod 600",
                path.display(),
                mode & 0o777
            )));
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let (user, database) = (self.config.get_user().unwrap_or(""), self.config.get_dbname().unwrap_or(""));
        let ports = self.config.get_ports();
        let hosts = self.config.get_hosts().iter().enumerate().map(|(i, host)| {
            let port = ports.get(i).or(ports.first()).copied().unwrap_or(PORT_DEFAULT);
            match host {
                Host::Tcp(name) => (name.clone(), port),
                Host::Unix(_) => ("localhost".to_string(), port),
            }
        });
        Ok(hosts.into_iter().find_map(|(host, port)| password_in(&text, &[&host, &port.to_string(), database, user])))
    }
}

/// All that is said of connections, but not to whom.
fn without_servers(all: &Config) -> Config {
    let mut one = Config::new();
    one.ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .channel_binding(all.get_channel_binding())
        .target_session_attrs(all.get_target_session_attrs())
        .load_balance_hosts(all.get_load_balance_hosts())
        .keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle());
    if let Some(v) = all.get_user() {
        one.user(v);
    }
    if let Some(v) = all.get_password() {
        one.password(v);
    }
    if let Some(v) = all.get_dbname() {
        one.dbname(v);
    }
    if let Some(v) = all.get_options() {
        one.options(v);
    }
    if let Some(v) = all.get_application_name() {
        one.application_name(v);
    }
    if let Some(v) = all.get_connect_timeout() {
        one.connect_timeout(*v);
    }
    if let Some(v) = all.get_tcp_user_timeout() {
        one.tcp_user_timeout(*v);
    }
    if let Some(v) = all.get_keepalives_interval() {
        one.keepalives_interval(v);
    }
    if let Some(v) = all.get_keepalives_retries() {
        one.keepalives_retries(v);
    }
    one
}

/// The password of the first line whose fields fit: `host:port:database:user:password`, `*` fits all, `\` before `:` and `\`.
fn password_in(text: &str, wanted: &[&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line.chars();
        for want in wanted {
            let mut field = String::new();
            loop {
                match rest.next()? {
                    ':' => break,
                    '\\' => field.push(rest.next()?),
                    c => field.push(c),
                }
            }
            if field != "*" && field != *want {
                return None;
            }
        }
        let mut password = String::new();
        while let Some(c) = rest.next() {
            password.push(if c == '\\' { rest.next()? } else { c });
        }
        Some(password)
    })
}

/// A connection string as it may be shown.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.into() };
    match rest.split_once('@') {
        Some((who, host)) => format!("{scheme}://{}@{host}", who.split(':').next().unwrap_or("")),
        None => text.into(),
    }
}

/// An error with what caused it.
pub(crate) fn with_causes(e: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (e.to_string(), e.source());
    while let Some(c) = cause {
        let more = c.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = c.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_place_without_user_database_or_host_or_with_a_password_is_refused_and_says_what_would_be_right() {
        for (text, right) in [
            ("mysql://a@b/c", "say postgres://"),
            ("postgres://db/fs", "names no user"),
            ("postgres://a@db", "names no database"),
            ("postgres://a@/fs", "names no host"),
            ("postgres://a:secret@db/fs", "mdt.passfile"),
            ("postgres://a@db/fs?sslmode=allow", "verify-full"),
            ("postgres://a@db/fs?sslmode=verify-full", "sslrootcert=FILE"),
            ("postgres://a@db/fs?sslmode=require&sslrootcert=ca.pem", "ca.pem is no absolute path"),
            ("postgres://a@db/fs?sslcert=/c.pem", "go together"),
            ("postgres://a@db/fs?colour=red", "colour"),
        ] {
            let e = Place::parse(text, None).unwrap_err().to_string();
            assert!(e.contains(right), "{text}: {e}");
            assert!(!e.contains("secret"), "{e}");
        }
        let all =
            "postgres://a@db1,db2:5433/fs?sslmode=verify-full&target_session_attrs=read-write&sslrootcert=/etc/a%20b";
        assert!(Place::parse(all, None).is_ok());
        let unread = Place::parse(all, None).unwrap().security().err().unwrap().to_string();
        assert!(unread.starts_with("/etc/a b: "), "{unread}");
    }

    #[test]
    fn a_directory_tells_the_place_that_was_written_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("mdt0");
        assert_eq!(Place::of_dir(&at).unwrap(), None);
        let place = Place::parse("postgres://stria@db/fs", Some(Path::new("/etc/stria/pgpass"))).unwrap();
        place.write_to(&at).unwrap();
        assert_eq!(Place::of_dir(&at).unwrap(), Some(place.clone()));
        assert!(place.write_to(&at).is_err(), "a place is written down once");
        fs::write(at.join(PLACE_FILE), "nothing\n").unwrap();
        assert!(Place::of_dir(&at).unwrap_err().to_string().contains("no line 'store URL'"));
    }

    #[test]
    fn a_password_is_that_of_the_first_line_that_fits_of_a_file_that_others_cannot_read() {
        let text = "# all\nother:*:*:*:no\ndb:5432:f\\:s:a:p\\:w\\\\\n*:*:*:*:last";
        assert_eq!(password_in(text, &["db", "5432", "f:s", "a"]).unwrap(), "p:w\\");
        assert_eq!(password_in(text, &["db", "5432", "fs", "a"]).unwrap(), "last");
        assert_eq!(password_in("db:1:2", &["db", "1", "2", "3"]), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "*:*:*:*:word").unwrap();
        let place = Place::parse("postgres://a@db/fs", Some(file.path())).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(place.config().unwrap_err().to_string().contains("mode 640"));
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(place.config().unwrap().get_password(), Some(&b"word"[..]));
    }
}
