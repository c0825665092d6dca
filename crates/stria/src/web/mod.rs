//! `stria web`: a page that shows the cluster live. One mount's daemon is asked what `status` and `top` ask ([`document`]), once
//! a second for all viewers together and only while there are some ([`watch`]); browsers get it as events ([`site`]). Who may
//! look is decided in [`guard`], what may be set from the page in [`switches`].
mod document;
mod guard;
mod site;
mod switches;
mod watch;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::cli;
use crate::daemon::{self, ClusterDir};
use crate::failure::{Failure, Outcome};
use crate::http::{self, Server};
use crate::top::source::Source;
use document::Observer;
use guard::{Guard, Token};
use site::Pages;
use watch::{Look, Watch};

/// The verb `web`. Serves until it is ended by a signal.
///
/// # Errors
/// No mount; the address is none, taken, not this host's, or reached by others without a login; the token's file cannot be
/// made or read.
pub fn web(arguments: &cli::Web) -> Outcome {
    let what = format!("--listen {}", arguments.listen);
    let wanted = http::address(&what, &arguments.listen).map_err(Failure::usage)?;
    let local = http::is_loopback(wanted.ip());
    if !local && arguments.login.is_none() {
        let port = wanted.port();
        return Err(Failure::usage(format!(
            "{what}: other hosts reach this address: say --login FILE, whose token browsers then have to give (it is made if missing), or listen on 127.0.0.1 and come through 'ssh -L {port}:127.0.0.1:{port} HOST'"
        )));
    }
    let source = find(arguments.path.as_deref())?;
    let token = match &arguments.login {
        Some(file) => Token::of_file(file)?,
        None => Token::fresh()?,
    };
    let own_name = hostname();
    let names = arguments.name.iter().chain(Some(&own_name).filter(|_| !local)).cloned().collect();
    let url_token = if arguments.login.is_none() { format!("?token={}", token.text()) } else { String::new() };
    let watch = Arc::new(Watch::default());
    let guard = Guard::new(token, local, names)?;
    let site = Pages::new(guard, watch.clone(), source.clone(), arguments.read_only);
    let server = Server::start(&what, wanted, site)?;
    announce(&format!("http://{}/{url_token}", reached_at(server.address(), &own_name)), local, arguments);
    let mut observer = Observer::default();
    watch.run(|anew| {
        if anew {
            observer.forget();
        }
        let document = observer.look(&source.renewed());
        Look { document: document.to_string(), sums: document["sums"].clone() }
    })
}

/// The mount that a path is on, or one of the cluster whose directory it is.
fn find(path: Option<&Path>) -> Outcome<Source> {
    let on_mount = Source::find(path, None);
    match (path, on_mount) {
        // A mount that stands still must not be looked into.
        (Some(dir), Err(e)) if i32::from(e.code()) != libc::ETIMEDOUT => match ClusterDir::open_if_there(dir)? {
            Some(_) => Source::find(None, Some(dir)),
            None => {
                let why =
                    format!("{e}; nor is {} a cluster's directory: 'stria status' shows the mounts", dir.display());
                Err(Failure::usage(why).exiting(e.code()))
            }
        },
        (_, found) => found,
    }
}

/// Says where the page is. The token itself is told only where no file has it.
fn announce(url: &str, local: bool, arguments: &cli::Web) {
    if daemon::is_awaited() {
        daemon::outlives_starter();
        note!("ready {url}");
        return;
    }
    note!("{url}");
    if let Some(file) = &arguments.login {
        note!("the token that browsers have to give is in {}", file.display());
    }
    if !local {
        note!(
            "what goes to browsers of other hosts is not encrypted: where others can listen, take --listen 127.0.0.1:PORT and 'ssh -L'"
        );
    }
}

/// An address as a browser is told it.
fn reached_at(address: SocketAddr, own_name: &str) -> String {
    if address.ip().is_unspecified() { format!("{own_name}:{}", address.port()) } else { address.to_string() }
}

/// The name of this host, as far as it is one.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".into() } else { name.into() }
}
