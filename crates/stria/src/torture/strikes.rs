//! What goes wrong during a torture, one strike after another, drawn from the seed.
use std::sync::Arc;
use std::time::{Duration, Instant};

use types::Rng;

use super::rig::{MOUNTS, Rig};
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
    /// Another program fills the disk below the stores for some seconds.
    Full,
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
    ];
}

/// Stops of processes, in seconds.
const STOPS_S: [u64; 3] = [10, 40, 90];
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
    osts: u16,
    until: Instant,
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
        let classes: Vec<Class> = classes.iter().copied().filter(|c| *c != Class::Full || rig.can_fill()).collect();
        let counts = classes.iter().map(|c| (*c, 0)).collect();
        Strikes { rig, shared, rng, classes, counts, osts, until }
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
    /// The length of a stop: a long one only where it leaves time for others.
    fn stop_s(&mut self) -> u64 {
        let limit = (self.seconds_left() / 2).max(STOPS_S[0]);
        let possible: Vec<u64> = STOPS_S.into_iter().filter(|s| *s <= limit).collect();
        possible[self.rng.below(possible.len() as u64) as usize]
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
        note!("  kill {}", names.join(" "));
        for name in names {
            self.rig.servers.kill(&name);
        }
    }
    fn kill_all(&mut self) {
        note!("  kill all servers");
        for (name, _) in self.rig.servers.restarts() {
            self.rig.servers.kill(&name);
        }
    }
    fn stop_server(&mut self) {
        let (name, seconds) = (self.server(), self.stop_s());
        note!("  stop {name} for {seconds} s");
        self.rig.servers.send(&name, libc::SIGSTOP);
        self.wait(seconds);
        self.rig.servers.send(&name, libc::SIGCONT);
    }
    fn stop_client(&mut self) {
        let (mount, seconds) = (self.any_mount(), self.stop_s());
        note!("  stop the daemon of mount {mount} for {seconds} s");
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
    /// Waits until a mount that was away answers again, and has told what it lost.
    fn settle(&self, mount: usize) {
        let at = &self.rig.mounts[mount].at;
        for _ in 0..3 {
            // Whatever the answer: that there is one says that the client has talked to its servers.
            let _ = std::fs::read_dir(at).map(Iterator::count);
            self.wait(1);
        }
    }
    fn kill_clients(&mut self, mounts: &[usize]) -> Result<(), String> {
        note!("  kill the daemons of mounts {mounts:?}");
        mounts.iter().for_each(|m| self.shared.begin_loss(*m));
        mounts.iter().for_each(|m| self.rig.crash_mount(*m));
        self.mount_again(mounts)
    }
    fn crash(&mut self) -> Result<(), String> {
        note!("  kill everything");
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
        note!("  reset all connections");
        let ports: Vec<String> = self.rig.servers.restarts().iter().filter_map(|(name, _)| self.port(name)).collect();
        for port in ports {
            let filter = format!("sport = :{port} or dport = :{port}");
            let done = std::process::Command::new("ss").args(["-K", "-t", &filter]).output();
            if let Err(e) = done {
                note!("  (ss of iproute2 cannot be run: {e})");
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
        note!("  fill the disk");
        self.shared.begin_full();
        let filler = self.rig.fill().map_err(|e| e.to_string())?;
        let seconds = 3 + self.rng.below(5);
        self.wait(seconds);
        drop(filler);
        // What was refused while there was no space is told by the next sync of each file.
        self.wait(2);
        self.shared.end_full();
        Ok(())
    }
}
