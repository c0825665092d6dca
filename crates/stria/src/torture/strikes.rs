//! What goes wrong during a torture, one strike after another, drawn from the seed.
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use types::Rng;

use super::rig::{MOUNTS, Rig, mount_node};
use super::shared::Shared;

/// A kind of fault.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// SIGKILL of one or two servers.
    Kill,
    /// SIGKILL of all servers at once.
    KillAll,
    /// SIGSTOP of a server for 10, 40 or 90 s.
    Stop,
    /// SIGSTOP of a mount's daemon for 10, 40 or 90 s: beyond 20 s it is evicted.
    StopClient,
    /// SIGKILL of a mount's daemon.
    KillClient,
    /// SIGKILL of every server and every mount's daemon.
    Crash,
    /// All TCP connections of the cluster are reset.
    Reset,
    /// Another program fills the disks below the stores for some seconds.
    Full,
    /// The disk of a store fails: either it loses what it was not told to keep, and a well one with the rest takes its place below a
    /// server that is killed; or most of it is not there for some seconds, and the server comes back by itself.
    Device,
    /// A server or a mount is cut off from everybody, for up to 8 s or for 30 s.
    Partition,
    /// What one process sends to another is lost, for up to 8 s or for 30 s.
    OneWay,
}

impl Class {
    /// All of them.
    pub const ALL: &[Class] = &[
        Class::Kill,
        Class::KillAll,
        Class::Stop,
        Class::StopClient,
        Class::KillClient,
        Class::Crash,
        Class::Reset,
        Class::Full,
        Class::Device,
        Class::Partition,
        Class::OneWay,
    ];
}

/// Stops of processes, in seconds.
const STOPS_S: [u64; 3] = [10, 40, 90];
/// Short cuts last up to so many seconds.
const CUT_SHORT_S: u64 = 8;
/// Long ones so many: longer than it takes until somebody is evicted.
const CUT_LONG_S: u64 = 30;
/// Everything has found back to everything so long after a strike.
const BACK_WITHIN: Duration = Duration::from_secs(180);
/// A stopped client may lose what it had not written out when it is away for longer.
const EVICTED_AFTER_S: u64 = 15;

/// Draws and carries out strikes.
pub struct Strikes<'a> {
    rig: &'a Rig,
    shared: Arc<Shared>,
    rng: Rng,
    classes: Vec<Class>,
    /// How often each class struck.
    counts: Vec<(Class, u64)>,
    stops: Stops,
    osts: u16,
    until: Instant,
}

/// How often each length of a stop came: of servers and of clients alike.
#[derive(Default)]
struct Stops([u64; STOPS_S.len()]);

impl Stops {
    /// The length of a stop: of those that leave time for others (at most `limit` seconds, or the shortest) one that came least.
    fn next(&mut self, limit: u64, rng: &mut Rng) -> u64 {
        let fits: Vec<usize> = (0..STOPS_S.len()).filter(|i| *i == 0 || STOPS_S[*i] <= limit).collect();
        let least = fits.iter().map(|i| self.0[*i]).min().unwrap_or_default();
        let least: Vec<usize> = fits.into_iter().filter(|i| self.0[*i] == least).collect();
        let chosen = least[rng.below(least.len() as u64) as usize];
        self.0[chosen] += 1;
        STOPS_S[chosen]
    }
}

impl<'a> Strikes<'a> {
    /// Strikes of some classes until a moment; those that this machine cannot do are left out.
    #[must_use]
    pub fn new(
        rig: &'a Rig,
        shared: Arc<Shared>,
        rng: Rng,
        classes: &[Class],
        osts: u16,
        until: Instant,
    ) -> Strikes<'a> {
        let can = |c: &Class| match c {
            Class::Full | Class::Device => rig.disks().is_some(),
            Class::Partition | Class::OneWay => rig.nets().is_some(),
            _ => true,
        };
        let classes: Vec<Class> = classes.iter().copied().filter(can).collect();
        let counts = classes.iter().map(|c| (*c, 0)).collect();
        Strikes { rig, shared, rng, classes, counts, stops: Stops::default(), osts, until }
    }
    /// How often each class struck.
    #[must_use]
    pub fn counts(&self) -> &[(Class, u64)] {
        &self.counts
    }

    /// One strike, from its beginning to its end.
    ///
    /// # Errors
    /// A mount does not come back: its daemon's words.
    pub fn strike(&mut self) -> Result<(), String> {
        if self.classes.is_empty() {
            self.shared.pause();
            return Ok(());
        }
        // Every class once before any comes again, so that short runs meet all.
        let least = self.counts.iter().map(|(_, n)| *n).min().unwrap_or(0);
        let next: Vec<usize> = (0..self.counts.len()).filter(|i| self.counts[*i].1 == least).collect();
        let at = next[self.rng.below(next.len() as u64) as usize];
        self.counts[at].1 += 1;
        match self.counts[at].0 {
            Class::Kill => self.kill(),
            Class::KillAll => self.kill_all(),
            Class::Stop => self.stop_server(),
            Class::StopClient => self.stop_client(),
            Class::KillClient => {
                let mount = self.any_mount();
                return self.kill_clients(&[mount]);
            }
            Class::Crash => return self.crash(),
            Class::Reset => self.reset(),
            Class::Full => return self.fill(),
            Class::Device => return self.device(),
            Class::Partition => return self.partition(),
            Class::OneWay => return self.one_way(),
        }
        Ok(())
    }

    fn server(&mut self) -> String {
        match self.rng.below(u64::from(self.osts) + 1) {
            0 => "mdt0".into(),
            i => format!("ost{}", i - 1),
        }
    }
    fn any_mount(&mut self) -> usize {
        self.rng.below(MOUNTS as u64) as usize
    }
    fn seconds_left(&self) -> u64 {
        self.until.saturating_duration_since(Instant::now()).as_secs()
    }
    fn stop_s(&mut self) -> u64 {
        let limit = self.seconds_left() / 2;
        self.stops.next(limit, &mut self.rng)
    }
    fn wait(&self, seconds: u64) {
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until && !self.shared.is_over() {
            self.shared.pause();
        }
    }

    fn kill(&mut self) {
        let mut names = vec![self.server()];
        if self.rng.chance(0.3) {
            names.push(self.server());
        }
        names.dedup();
        self.shared.strike(&format!("kill {}", names.join(" ")));
        for name in names {
            self.rig.servers.kill(&name);
        }
    }
    fn kill_all(&mut self) {
        self.shared.strike("kill all servers");
        for (name, _) in self.rig.servers.restarts() {
            self.rig.servers.kill(&name);
        }
    }
    fn stop_server(&mut self) {
        let (name, seconds) = (self.server(), self.stop_s());
        self.shared.strike(&format!("stop {name} for {seconds} s"));
        self.rig.servers.send(&name, libc::SIGSTOP);
        self.wait(seconds);
        self.rig.servers.send(&name, libc::SIGCONT);
    }
    fn stop_client(&mut self) {
        let (mount, seconds) = (self.any_mount(), self.stop_s());
        self.shared.strike(&format!("stop the daemon of mount {mount} for {seconds} s"));
        let loses = seconds > EVICTED_AFTER_S;
        if loses {
            self.shared.begin_loss(mount);
        }
        self.rig.signal_mount(mount, libc::SIGSTOP);
        self.wait(seconds);
        self.rig.signal_mount(mount, libc::SIGCONT);
        if loses {
            self.settle(mount);
            self.shared.end_loss(mount);
        }
    }
    /// Waits until a mount that was away has a session with every server again, and has told what it lost.
    fn settle(&self, mount: usize) {
        let begun = Instant::now();
        while !self.is_connected(mount) && !self.shared.is_over() {
            if begun.elapsed() > BACK_WITHIN {
                let at = self.rig.mounts[mount].at.display();
                self.shared.violation(format!("{at} has not found back to all servers after {BACK_WITHIN:?}"));
            }
            self.wait(1);
        }
        self.wait(1);
    }
    fn is_connected(&self, mount: usize) -> bool {
        let Some(status) = self.status(mount) else { return false };
        let osts = status["osts"].as_array();
        std::iter::once(&status["mdt"]).chain(osts.into_iter().flatten()).all(|t| t["state"] == "Full")
    }
    /// What a mount says of itself and of its servers.
    fn status(&self, mount: usize) -> Option<serde_json::Value> {
        let at = &self.rig.mounts[mount].at;
        let mounts = fuse::mount::mounts();
        let entry = mounts.iter().find(|m| m.at == *at)?;
        crate::control::ask(entry.minor, &json!({"do": "status"})).ok()
    }
    fn kill_clients(&mut self, mounts: &[usize]) -> Result<(), String> {
        self.shared.strike(&format!("kill the daemons of mounts {mounts:?}"));
        mounts.iter().for_each(|m| self.shared.begin_loss(*m));
        mounts.iter().for_each(|m| self.rig.crash_mount(*m));
        self.mount_again(mounts)
    }
    fn crash(&mut self) -> Result<(), String> {
        self.shared.strike("kill everything");
        let mounts: Vec<usize> = (0..MOUNTS).collect();
        mounts.iter().for_each(|m| self.shared.begin_loss(*m));
        for (name, _) in self.rig.servers.restarts() {
            self.rig.servers.kill(&name);
        }
        mounts.iter().for_each(|m| self.rig.crash_mount(*m));
        self.mount_again(&mounts)
    }
    fn mount_again(&self, mounts: &[usize]) -> Result<(), String> {
        for m in mounts {
            self.rig.mount(*m).map_err(|e| format!("mount {m} does not come back: {e}"))?;
            self.shared.end_loss(*m);
        }
        Ok(())
    }
    fn reset(&mut self) {
        self.shared.strike("reset all connections");
        let ports = self.rig.servers.restarts().into_iter().filter_map(|(name, _)| Some((self.port(&name)?, name)));
        for (port, name) in ports {
            let filter = format!("sport = :{port} or dport = :{port}");
            let done = self.rig.command_at(&name, "ss").args(["-K", "-t", &filter]).output();
            if let Err(e) = done {
                self.shared.strike(&format!("(ss of iproute2 cannot be run: {e})"));
            }
        }
    }
    fn port(&self, name: &str) -> Option<String> {
        match self.rig.dir.last_nid(name)? {
            rt::Nid::Tcp(address) => Some(address.port().to_string()),
            _ => None,
        }
    }
    fn fill(&mut self) -> Result<(), String> {
        self.shared.strike("fill the disk");
        self.shared.begin_full();
        let disks = self.rig.disks().ok_or("there are no disks to fill")?;
        let filler = disks.fill().map_err(|e| e.to_string())?;
        let seconds = 3 + self.rng.below(5);
        self.wait(seconds);
        drop(filler);
        self.goes_on();
        // What was refused while there was no space is told by the next sync of each file.
        self.wait(2);
        self.shared.end_full();
        Ok(())
    }
    /// Waits until each mount takes files again.
    fn goes_on(&self) {
        let begun = Instant::now();
        let put = |at: &Path| {
            let mut file = std::fs::File::create(at.join("probe"))?;
            file.write_all(&[1; 100_000])?;
            file.sync_all()
        };
        for at in self.rig.mounts.iter().map(|m| &m.at) {
            while let Err(e) = put(at) {
                if begun.elapsed() > BACK_WITHIN || self.shared.is_over() {
                    self.shared.violation(format!(
                        "{} takes no files {BACK_WITHIN:?} after there is space: {e}",
                        at.display()
                    ));
                    return;
                }
                self.wait(1);
            }
        }
    }
    /// Most of the disk of a store is not there for some seconds. Nobody starts the server again: its store comes back by itself.
    fn cut_disk_short(&mut self) -> Result<(), String> {
        let (name, seconds) = (self.server(), 4 + self.rng.below(12));
        self.shared.strike(&format!("most of the disk of {name} is not there for {seconds} s"));
        let disks = self.rig.disks().ok_or("there are no disks that can fail")?;
        let starts = |rig: &Rig| rig.servers.restarts().into_iter().find(|(n, _)| *n == name).map(|(_, times)| times);
        let before = starts(self.rig);
        self.shared.begin_broken();
        disks.cut_short(&name, true)?;
        self.wait(seconds);
        disks.cut_short(&name, false)?;
        self.shared.strike(&format!("the disk of {name} is whole again"));
        let begun = Instant::now();
        while !(0..MOUNTS).all(|m| self.is_well(m, &name)) && !self.shared.is_over() {
            if begun.elapsed() > BACK_WITHIN {
                self.shared.violation(format!("the store of {name} has not come back {BACK_WITHIN:?} after its disk"));
            }
            self.wait(1);
        }
        // It may have failed just before the disk was well, and nobody may have seen that yet.
        self.wait(3);
        self.goes_on();
        self.all_answer();
        if starts(self.rig) != before {
            self.shared.violation(format!("{name} died although only its disk failed"));
        }
        self.shared.end_broken();
        Ok(())
    }
    /// Whether a mount hears from a server that its store is good.
    fn is_well(&self, mount: usize, server: &str) -> bool {
        let Some(status) = self.status(mount) else { return false };
        let is_it = |t: &&serde_json::Value| match server.strip_prefix("ost").and_then(|i| i.parse::<u64>().ok()) {
            Some(index) => t["index"] == index,
            None => false,
        };
        let osts = status["osts"].as_array();
        let target = if server == "mdt0" { Some(&status["mdt"]) } else { osts.into_iter().flatten().find(is_it) };
        target.is_some_and(|t| t["store"] == "good")
    }
    fn device(&mut self) -> Result<(), String> {
        if self.rng.chance(0.5) {
            return self.cut_disk_short();
        }
        let (name, seconds) = (self.server(), 2 + self.rng.below(4));
        self.shared.strike(&format!("the disk of {name} fails for {seconds} s"));
        let disks = self.rig.disks().ok_or("there are no disks that can fail")?;
        self.shared.begin_broken();
        disks.fail(&name)?;
        self.wait(seconds);
        self.rig.servers.without(&name, || disks.replug(&name))?;
        self.shared.strike(&format!("{name} has a well disk again"));
        self.all_answer();
        self.shared.end_broken();
        Ok(())
    }
    fn partition(&mut self) -> Result<(), String> {
        let (node, seconds) = (self.any_node(), self.cut_s());
        self.shared.strike(&format!("cut {node} off for {seconds} s"));
        let nets = self.rig.nets().ok_or("there is no network that can be cut")?;
        // A server that hears of nobody gives all clients up.
        let lose = |m: usize| mount_of(&node).is_none_or(|own| own == m);
        self.lasting(seconds, (0..MOUNTS).filter(|m| lose(*m)).collect(), |out| nets.isolate(&node, out))
    }
    fn one_way(&mut self) -> Result<(), String> {
        let (from, mut to, seconds) = (self.any_node(), self.any_node(), self.cut_s());
        if to == from || mount_of(&from).is_some() && mount_of(&to).is_some() {
            to = if from == "mdt0" { "ost0".into() } else { "mdt0".into() };
        }
        self.shared.strike(&format!("lose what {from} sends to {to} for {seconds} s"));
        let nets = self.rig.nets().ok_or("there is no network that can be cut")?;
        let mounts = [&from, &to].into_iter().filter_map(|n| mount_of(n)).collect();
        self.lasting(seconds, mounts, |drop| nets.drop_between(&from, &to, drop))
    }
    /// A cut from its beginning to its end; `mounts` may be evicted when it is long.
    fn lasting(
        &self,
        seconds: u64,
        mounts: Vec<usize>,
        cut: impl Fn(bool) -> Result<(), String>,
    ) -> Result<(), String> {
        let mounts = if seconds > EVICTED_AFTER_S { mounts } else { Vec::new() };
        mounts.iter().for_each(|m| self.shared.begin_loss(*m));
        cut(true)?;
        self.wait(seconds);
        cut(false)?;
        if !mounts.is_empty() {
            self.all_answer();
        }
        mounts.iter().for_each(|m| self.shared.end_loss(*m));
        Ok(())
    }
    /// Waits until all mounts have heard from all servers.
    fn all_answer(&self) {
        for m in 0..MOUNTS {
            self.settle(m);
        }
    }
    fn any_node(&mut self) -> String {
        match self.rng.below(u64::from(self.osts) + 1 + MOUNTS as u64) {
            i if i < MOUNTS as u64 => mount_node(i as usize),
            _ => self.server(),
        }
    }
    /// The length of a cut: a long one only where it leaves time for others.
    fn cut_s(&mut self) -> u64 {
        let short = 1 + self.rng.below(CUT_SHORT_S);
        if self.rng.chance(0.3) && self.seconds_left() > 2 * CUT_LONG_S { CUT_LONG_S } else { short }
    }
}

/// The number of the mount that a node is.
fn mount_of(node: &str) -> Option<usize> {
    node.strip_prefix("mount")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_of_a_stop_comes_once_before_any_comes_again_where_there_is_time() {
        for seed in 0..20 {
            let (mut stops, mut rng) = (Stops::default(), Rng::new(seed));
            let mut first: Vec<u64> = (0..3).map(|_| stops.next(90, &mut rng)).collect();
            first.sort_unstable();
            assert_eq!(first, STOPS_S);
            let mut later: Vec<u64> = (0..2).map(|_| stops.next(89, &mut rng)).collect();
            later.sort_unstable();
            assert_eq!(later, [10, 40], "the longest does not fit");
            assert_eq!(stops.next(1000, &mut rng), 90);
            assert_eq!(stops.next(3, &mut rng), 10, "the shortest always fits");
        }
    }
}
