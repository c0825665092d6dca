//! What is wrong with a daemon or a server of this file system, as far as this host can tell, and the command that helps.
//! Nothing here asks a process: a process that stands still answers nobody, but the kernel knows that it does.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use serde_json::{Value, json};

use crate::out;

/// What is wrong, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// A clause that names who is ill and how.
    pub what: String,
    /// A clause with the command.
    pub remedy: String,
}

impl Trouble {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Trouble {
        Trouble { what: what.into(), remedy: remedy.into() }
    }
    /// As programs read it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({"what": self.what, "do": self.remedy})
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

/// How the kernel says that a process fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fares {
    /// It can run.
    Well,
    /// A signal stopped it (SIGSTOP, SIGTSTP), or a debugger holds it.
    Stopped,
    /// It waits for a device.
    Device,
    /// It has ended.
    Gone,
}

/// How a process fares.
#[must_use]
pub fn fares(pid: i32) -> Fares {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may hold anything.
    match stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()) {
        Some('T' | 't') => Fares::Stopped,
        Some('D') => Fares::Device,
        None | Some('Z' | 'X') => Fares::Gone,
        Some(_) => Fares::Well,
    }
}

/// What is wrong with a process that does not answer, and what to do.
#[must_use]
pub fn of_process(pid: i32) -> Trouble {
    match fares(pid) {
        Fares::Stopped => {
            Trouble::new(format!("process {pid} is stopped"), format!("'kill -CONT {pid}' lets it go on"))
        }
        Fares::Device => Trouble::new(
            format!("process {pid} waits for a device"),
            "the kernel's log ('dmesg') says which; it goes on when that answers",
        ),
        Fares::Gone => Trouble::new(format!("process {pid} has ended"), "start it again"),
        Fares::Well => Trouble::new(
            format!("process {pid} runs, and does not answer within a second"),
            "its log says what it is busy with; 'stria status' again shows whether it lasts",
        ),
    }
}

/// What is wrong with the daemon of a mount, of which `pid` is known where it could be connected to.
#[must_use]
pub fn of_daemon(at: &Path, pid: Option<i32>, why: &str) -> Trouble {
    let at = out::word(at);
    match pid {
        Some(pid) => {
            let t = of_process(pid);
            Trouble::new(format!("its daemon does not answer: {}", t.what), t.remedy)
        }
        None => Trouble::new(
            why.to_string(),
            format!("'stria umount {at}' takes the mount away, 'stria mount' or 'stria up' makes it anew"),
        ),
    }
}

/// Where a server's store is served, as far as the mount knows.
pub struct Place<'a> {
    /// The cluster's directory on this host, if the mount was started with it.
    pub dir: Option<&'a str>,
    /// Its address.
    pub nid: &'a str,
    /// The OST's index; `None`: the metadata server.
    pub ost: Option<u64>,
    /// Whether its supervisor tries to start it, and says why it does not.
    pub is_tried: bool,
}

impl Place<'_> {
    /// The command that starts the server, and where.
    fn start(&self) -> String {
        if self.is_tried {
            return "its supervisor says above why it does not start, and starts it once that is mended".into();
        }
        let (role, of) = match self.ost {
            None => ("mds", String::new()),
            Some(ost) => ("oss", format!(" --ost {ost}")),
        };
        let packaged = self.dir.and_then(|d| d.strip_prefix("/var/lib/stria/")).filter(|name| !name.contains('/'));
        let here = self.address().is_some_and(|a| is_own(a.ip()));
        match (self.dir, packaged) {
            (_, Some(name)) if here => format!("'systemctl start stria-{role}@{name}' starts it"),
            (Some(dir), _) if here => {
                format!("'stria {role} --dir {}{of}' starts it", out::word(Path::new(dir)))
            }
            _ => {
                format!("start it on its host: 'systemctl start stria-{role}@CLUSTER', or 'stria {role} --dir DIR{of}'")
            }
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        self.nid.strip_prefix("tcp:").unwrap_or(self.nid).parse().ok()
    }
}

/// What is wrong with a server, as a mount's answer to `status` shows it; `None`: nothing that is known.
#[must_use]
pub fn of_server(target: &Value, place: &Place<'_>) -> Option<Trouble> {
    let name = format!("{} at {}", target["target"].as_str().unwrap_or("?"), place.nid);
    let silent = target["silent"] == true;
    let connected = matches!(target["state"].as_str(), Some("Full" | "Replaying"));
    if let Some(why) = target["refused"].as_str() {
        let (what, remedy) = why.split_once(". ").unwrap_or((why, "its log says what helps"));
        return Some(Trouble::new(format!("{name} is not served: {what}"), remedy));
    }
    if target["active"] == false {
        return Some(Trouble::new(
            format!("{name} is deactivated"),
            format!(
                "its files answer EIO; if somebody deactivated it, 'stria set_param osc.*OST{:04x}*.active=1' takes it back; if its store was not found or does not open, it comes back by itself once that is mended",
                place.ost.unwrap_or_default()
            ),
        ));
    }
    match target["store"].as_str() {
        Some("failed") => {
            let remedy = "it comes back by itself when its disk is well, its log says why; a file system that has to be mounted again \
                 needs its server stopped before: then start it again";
            return Some(Trouble::new(format!("the store of {name} failed"), remedy));
        }
        Some("full") if place.ost.is_none() => {
            let remedy = "what would make it longer (new names, attributes) is ENOSPC: remove files, or make room on the disk of its directory";
            return Some(Trouble::new(format!("the store of {name} has no space"), remedy));
        }
        Some("full") => {
            let remedy = "remove files or add OSTs; 'stria df' shows the space";
            return Some(Trouble::new(format!("the store of {name} has no space"), remedy));
        }
        _ => {}
    }
    if connected && !silent {
        return None;
    }
    if target["barred"] == true {
        let why = target["failure"].as_str().unwrap_or("its credential opens nothing there");
        let remedy = "mount again with a credential that is valid ('stria credential list' on the metadata server's host shows all); where clocks are \
             apart, set them: it asks again every 30 s";
        return Some(Trouble::new(format!("{name} does not take this mount: {why}"), remedy));
    }
    let process = place.address().filter(|a| is_own(a.ip())).and_then(listener);
    if let Some(pid) = process {
        let t = of_process(pid);
        return Some(Trouble::new(format!("{name} does not answer: {}", t.what), t.remedy));
    }
    if silent {
        let host = place.address().map_or_else(|| "its host".into(), |a| a.ip().to_string());
        let remedy = format!("look whether {host} runs and is reached ('ping {host}'), and at the server's log there");
        return Some(Trouble::new(format!("{name} does not answer"), remedy));
    }
    let why = target["failure"].as_str().map(|f| format!(" ({f})")).unwrap_or_default();
    Some(Trouble::new(format!("{name} is away{why}"), place.start()))
}

/// Whether an address is this host's.
fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// The process of this host and network namespace that listens at an address. `None`: none, or one that this user may not
/// look at.
fn listener(address: SocketAddr) -> Option<i32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| std::fs::read_to_string(t).unwrap_or_default());
    let inode = tables.iter().flat_map(|t| t.lines()).find_map(|line| listens(line, address))?;
    let wanted = format!("socket:[{inode}]");
    let numbers = std::fs::read_dir("/proc").ok()?.flatten();
    let mut processes = numbers.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    processes.find(|pid| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.into_iter().any(|e| std::fs::read_link(e.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()))
    })
}

/// The inode of the socket in a line of `/proc/net/tcp`, if that listens at the address.
fn listens(line: &str, wanted: SocketAddr) -> Option<u64> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (ip, port) = fields.get(1)?.split_once(':')?;
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(ip)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (to, from) in bytes.chunks_mut(4).zip(0..4) {
                to.copy_from_slice(&word(ip.get(from * 8..from * 8 + 8)?)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    let there = u16::from_str_radix(port, 16) == Ok(wanted.port()) && (ip == wanted.ip() || ip.is_unspecified());
    (there && *fields.get(3)? == LISTEN).then(|| fields.get(9)?.parse().ok())?
}

/// Four bytes of an address, which the kernel prints as a number of its own byte order.
fn word(hex: &str) -> Option<[u8; 4]> {
    u32::from_str_radix(hex, 16).ok().map(u32::to_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_a_signal_stopped_is_known_and_told_how_to_go_on() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let send = |signal| {
            // SAFETY: a signal to a child that was not collected yet.
            unsafe { libc::kill(pid, signal) };
        };
        send(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: as above; it returns when the child has stopped.
        unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert_eq!(fares(pid), Fares::Stopped);
        assert_eq!(of_process(pid).to_string(), format!("process {pid} is stopped: 'kill -CONT {pid}' lets it go on"));
        send(libc::SIGKILL);
        child.wait().unwrap();
        assert_eq!(fares(pid), Fares::Gone);
        assert_eq!(fares(std::process::id() as i32), Fares::Well);
    }

    #[test]
    fn the_process_that_listens_at_an_address_is_found() {
        for ip in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let Ok(listening) = std::net::TcpListener::bind(ip) else { continue };
            let port = listening.local_addr().unwrap().port();
            let ip: IpAddr = if ip.starts_with('[') { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
            assert_eq!(listener(SocketAddr::new(ip, port)), Some(std::process::id() as i32), "{ip}");
            drop(listening);
            assert_eq!(listener(SocketAddr::new(ip, port)), None);
        }
        for line in ["", "sl local", "0: 0100007F:", "0: zz:1 0 0A", "0: 0100007F:0050 0 0A 0 0 0 0 0 x"] {
            assert_eq!(listens(line, "127.0.0.1:80".parse().unwrap()), None, "{line}");
        }
    }

    #[test]
    fn servers_are_told_of_with_the_command_that_helps() {
        fn of(target: Value, nid: &str, dir: Option<&str>) -> Option<String> {
            of_server(&target, &Place { dir, nid, ost: Some(10), is_tried: false }).map(|t| t.to_string())
        }
        let away = json!({"target": "s-OST000a", "state": "Connecting", "failure": "refused"});
        // A port that was just free.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert_eq!(
            of(away.clone(), &free, Some("/c")).unwrap(),
            format!("s-OST000a at {free} is away (refused): 'stria oss --dir /c --ost 10' starts it")
        );
        let packaged = of(away.clone(), &format!("tcp:{free}"), Some("/var/lib/stria/scratch")).unwrap();
        assert!(packaged.ends_with("'systemctl start stria-oss@scratch' starts it"), "{packaged}");
        let far = of(away, "192.0.2.9:7989", Some("/c")).unwrap();
        assert!(far.contains("start it on its host: 'systemctl start stria-oss@CLUSTER'"), "{far}");
        let silent =
            of(json!({"target": "s-OST000a", "state": "Full", "silent": true}), "192.0.2.9:7989", None).unwrap();
        assert!(
            silent.contains("s-OST000a at 192.0.2.9:7989 does not answer: look whether 192.0.2.9 runs"),
            "{silent}"
        );
        assert_eq!(of(json!({"state": "Full", "silent": false, "store": "good"}), "192.0.2.9:7989", None), None);
        // A listener of this host: it is there, and says no.
        let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let barred = json!({"target": "s-OST000a", "state": "Connecting", "barred": true, "failure": "credential 'lab' was revoked"});
        let said = of(barred, &listening.local_addr().unwrap().to_string(), None).unwrap();
        assert!(said.contains("does not take this mount: credential 'lab' was revoked: mount again with"), "{said}");
        let mdt = Place { dir: None, nid: "local:mds", ost: None, is_tried: false };
        let full =
            of_server(&json!({"target": "s-MDT0000", "state": "Full", "store": "full"}), &mdt).unwrap().to_string();
        assert!(full.contains("s-MDT0000") && full.contains("make room on the disk of its directory"), "{full}");
        for (target, word) in [
            (json!({"state": "Full", "store": "failed"}), "start it again"),
            (json!({"state": "Full", "store": "full"}), "'stria df'"),
            (json!({"state": "Full", "active": false}), "'stria set_param osc.*OST000a*.active=1'"),
        ] {
            assert!(of(target, "local:oss", None).unwrap().contains(word), "{word}");
        }
    }
}
