//! Which of several servers of one database is used: of those that take changes, the one that has the newest commit.
//!
//! A primary of before that came back takes changes, too, and whoever takes the first one that answers loses what was changed since. So all
//! are looked at. Two that take changes and of which neither has all that the other has are left alone: which one counts is for people to say.
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::link::{Trouble, reach, state_of};
use crate::memory::State;
use crate::place::Place;

/// So long a server may take to answer once it is reached: one that stands still keeps nobody from the others.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// So long the other servers have after the first that takes changes has answered.
const OTHERS_MAX: Duration = Duration::from_secs(1);

/// A server that takes changes.
struct Candidate {
    name: String,
    /// Its place in the list.
    place: usize,
    client: Client,
    /// Of the store there, if there is one.
    state: Option<State>,
}

/// A connection, and the name of the server that it leads to.
pub(crate) struct Connected {
    pub server: String,
    pub client: Client,
}

impl From<Candidate> for Connected {
    fn from(chosen: Candidate) -> Connected {
        Connected { server: chosen.name, client: chosen.client }
    }
}

impl Candidate {
    fn said(&self) -> String {
        let state = self.state.as_ref().map_or_else(|| "no store".into(), State::to_string);
        format!("{} ({state})", self.name)
    }
}

/// A connection to the server to use. `at_least`: epoch and commit that it must have; the first one that has them will do. Without it all are
/// looked at, and servers that have gone apart are refused.
pub(crate) async fn connect(place: &Place, at_least: Option<(i64, i64)>) -> Result<Connected, Trouble> {
    let security = place.security().map_err(|e| Trouble::Refused(e.0))?;
    let mut servers = place.servers().map_err(|e| Trouble::Refused(e.0))?;
    if servers.len() == 1 {
        let (server, config) = servers.remove(0);
        return Ok(Connected { server, client: in_time(reach(&config, security)).await? });
    }
    let mut tried = JoinSet::new();
    for (at, (name, config)) in servers.into_iter().enumerate() {
        tried.spawn(look_at(at, name, config, security.clone()));
    }
    let (mut found, mut failed, mut until) = (Vec::new(), Vec::new(), None::<Instant>);
    loop {
        let next = match until {
            Some(until) => timeout_at(until, tried.join_next()).await.unwrap_or(None),
            None => tried.join_next().await,
        };
        match next {
            None => break,
            Some(Ok(Ok(server))) => {
                let has = server.state.as_ref().map(|s| (s.epoch, s.commit));
                if at_least.is_some_and(|(e, c)| has.is_some_and(|(epoch, commit)| epoch >= e && commit >= c)) {
                    return Ok(server.into());
                }
                found.push(server);
                until.get_or_insert_with(|| Instant::now() + OTHERS_MAX);
            }
            Some(Ok(Err(why))) => failed.push(why),
            Some(Err(e)) => failed.push((usize::MAX, "a server".into(), Trouble::Lost(e.to_string()))),
        }
    }
    if found.is_empty() {
        return Err(why_none(failed));
    }
    newest(place, found, at_least.is_none())
}

/// Whether a server that has not answered for a while answers nobody: it stands still, or cannot be reached.
pub(crate) async fn is_silent(place: &Place, server: &str) -> bool {
    let (Ok(security), Ok(servers)) = (place.security(), place.servers()) else { return false };
    let Some((_, config)) = servers.into_iter().find(|(name, _)| name == server) else { return false };
    let asked = async {
        let (client, connection) = config.connect(security).await?;
        let connection = tokio::spawn(connection);
        let answer = client.query("SELECT commit_number FROM stria_mdt", &[]).await;
        connection.abort();
        answer
    };
    match timeout(ANSWER_MAX, asked).await {
        // What it refuses it has answered.
        Ok(answer) => answer.is_err_and(|e| e.code().is_none()),
        Err(_) => true,
    }
}

/// An answer, or none within [`ANSWER_MAX`].
pub(crate) async fn in_time<T>(asked: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let late = || Trouble::Lost(format!("no answer within {} s", ANSWER_MAX.as_secs()));
    timeout(ANSWER_MAX, asked).await.unwrap_or_else(|_| Err(late()))
}

async fn look_at(
    place: usize,
    name: String,
    config: Config,
    security: MakeRustlsConnect,
) -> Result<Candidate, (usize, String, Trouble)> {
    let looked = async {
        let client = reach(&config, security).await?;
        let state = match state_of(&client).await {
            Err(Trouble::Missing) => None,
            state => Some(state?),
        };
        Ok((client, state))
    };
    match in_time(looked).await {
        Ok((client, state)) => Ok(Candidate { name, place, client, state }),
        Err(why) => Err((place, name, why)),
    }
}

/// Of servers none of which takes changes: what each says. It may pass if it does for one of them.
fn why_none(mut failed: Vec<(usize, String, Trouble)>) -> Trouble {
    failed.sort_by_key(|(place, ..)| *place);
    if failed.iter().all(|(.., why)| matches!(why, Trouble::ReadOnly)) {
        return Trouble::ReadOnly;
    }
    let all: Vec<String> = failed.iter().map(|(_, name, why)| format!("{name}: {why}")).collect();
    let may_pass = failed.iter().any(|(.., why)| why.may_pass());
    (if may_pass { Trouble::Lost } else { Trouble::Refused })(all.join("; "))
}

/// The one that has what all the others have.
fn newest(place: &Place, mut found: Vec<Candidate>, must_agree: bool) -> Result<Connected, Trouble> {
    found.sort_by_key(|s| s.place);
    let order = |s: &Candidate| s.state.as_ref().map(|s| (s.epoch, s.commit));
    let at = (0..found.len()).rev().max_by_key(|i| order(&found[*i])).expect("there is one");
    let best = found.swap_remove(at);
    for other in &found {
        let (Some(its), Some(theirs)) = (&best.state, &other.state) else { continue };
        if !its.follows(theirs) && must_agree {
            return Err(Trouble::Refused(format!(
                "{} and {} both take changes and have gone apart: neither has all that the other has. End the one that is not to count, or make it a replica of the other; or name the other alone in the line 'store' of the metadata target's file mdt.postgres",
                best.said(),
                other.said()
            )));
        }
        if its != theirs {
            place.warn_once(format!(
                "{} takes changes, too, and is older than {}, which is used: make it a replica, or end it",
                other.name, best.name
            ));
        }
    }
    Ok(best.into())
}
