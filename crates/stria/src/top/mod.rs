//! `stria top`: who does what at which server, now. One mount's daemon asks all servers at the same time and waits for
//! none longer than a moment ([`crate::control`], `look`); a look is read as numbers ([`sample`]), two looks give rates
//! ([`rates`]), and those are shown as text ([`text`]), on a terminal ([`screen`]) or as JSON.
pub mod rates;
pub mod sample;
mod screen;
pub mod source;
mod text;

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant, SystemTime};

use crate::cli;
use crate::failure::{Failure, Outcome};
use rates::{History, Order, View};
use sample::Sample;
use screen::{Key, Screen, Signals};
use source::Source;
use text::Layout;

/// Seconds between two looks.
const INTERVALS: [f64; 8] = [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Jobs and clients that one page of text shows, each.
const USES_MAX: usize = 20;

/// The verb `top`.
///
/// # Errors
/// No mount, no terminal; with `--once` and `--json` also a mount that does not answer.
pub fn top(arguments: &cli::Top) -> Outcome {
    let interval = Duration::from_secs_f64(arguments.interval);
    if arguments.json || arguments.once {
        return print(&find(arguments)?, arguments, interval);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "standard output is no terminal: 'stria top --once' prints text, --json a line of JSON for each look",
        ));
    }
    // Before there are threads that a signal could end the program through.
    let signals = Signals::take().map_err(terminal_failed)?;
    watch(find(arguments)?, interval, &signals)
}

/// The mount that is meant: the one named, else the one we are in, else the only one.
fn find(arguments: &cli::Top) -> Outcome<Source> {
    Source::find(arguments.mount.as_deref(), arguments.dir.as_deref())
}

/// A look at all servers; the failure says what is wrong with the daemon, and what to do.
fn look(source: &Source) -> Outcome<Sample> {
    source
        .look(sample::PAGES)
        .answer(source::moment())
        .map(|answer| Sample::read(&answer))
        .map_err(|e| source.failure(&e))
}

fn terminal_failed(e: std::io::Error) -> Failure {
    Failure::with_errno(format!("the terminal: {e}"), e.raw_os_error().unwrap_or(libc::EIO))
}

/// Prints views until nobody reads them any more, or one.
fn print(source: &Source, arguments: &cli::Top, interval: Duration) -> Outcome {
    let mut history = History::default();
    history.view(&look(source)?);
    let mut next = Instant::now();
    loop {
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let mut view = history.view(&look(source)?);
        Order::default().sort(&mut view.jobs);
        Order::default().sort(&mut view.clients);
        if arguments.json {
            let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            say!("{}", view.json(time.as_secs_f64()));
        } else {
            let layout = Layout { kinds: true, uses_max: USES_MAX, order: Order::default() };
            say!("{} at {}", view.fsname, view.mount_point);
            text::lines(&view, layout, usize::MAX).iter().for_each(|line| say!("{line}"));
        }
        if arguments.once {
            return Ok(());
        }
    }
}

/// What is shown on a terminal.
struct Page {
    view: View,
    /// Why there is nothing new.
    failure: Option<String>,
    layout: Layout,
    interval: Duration,
    paused: bool,
    help: bool,
    /// Lines of the page above the screen.
    scrolled: usize,
}

/// What a key asks for beyond the page.
#[derive(PartialEq, Eq, Debug)]
enum Wish {
    Nothing,
    Interval,
    End,
}

impl Page {
    fn new(interval: Duration) -> Page {
        let layout = Layout { uses_max: 100, ..Layout::default() };
        Page { view: View::default(), failure: None, layout, interval, paused: false, help: false, scrolled: 0 }
    }

    fn on_key(&mut self, key: Key, rows: usize) -> Wish {
        let page = rows.saturating_sub(2).max(1) as isize;
        match key {
            Key::Char('q' | '\x03') => return Wish::End,
            Key::Char('h' | '?') => self.help = !self.help,
            Key::Char('k') => self.layout.kinds = !self.layout.kinds,
            Key::Char(' ') => self.paused = !self.paused,
            Key::Char('+' | '-') => {
                let now = self.interval.as_secs_f64();
                let mut longer = INTERVALS.iter().filter(|s| **s > now + 1e-3);
                let mut shorter = INTERVALS.iter().rev().filter(|s| **s < now - 1e-3);
                let next = if key == Key::Char('-') { longer.next() } else { shorter.next() };
                self.interval = next.map_or(self.interval, |s| Duration::from_secs_f64(*s));
                return Wish::Interval;
            }
            Key::Char(c) => {
                let orders = [
                    ('b', Order::Bytes),
                    ('r', Order::Read),
                    ('w', Order::Write),
                    ('o', Order::Requests),
                    ('n', Order::Name),
                ];
                if let Some((_, order)) = orders.iter().find(|(k, _)| *k == c) {
                    self.layout.order = *order;
                }
            }
            Key::Lines(n) => self.scrolled = self.scrolled.saturating_add_signed(n),
            Key::Pages(n) => self.scrolled = self.scrolled.saturating_add_signed(n * page),
            Key::Home => self.scrolled = 0,
        }
        Wish::Nothing
    }

    /// The lines that fit.
    fn lines(&mut self, (width, height): (usize, usize)) -> Vec<String> {
        let state =
            if self.paused { "stands still".into() } else { format!("every {} s", self.interval.as_secs_f64()) };
        let title = format!(
            "stria top: {} at {}  by {}, {state}  h help  q quit",
            self.view.fsname,
            self.view.mount_point,
            self.layout.order.name()
        );
        let mut body: Vec<String> = match (self.help, self.view.servers.is_empty()) {
            (true, _) => text::HELP.iter().map(|l| text::cut(l, width)).collect(),
            (_, true) => Vec::new(),
            _ => text::lines(&self.view, self.layout, width),
        };
        if let Some(failure) = &self.failure {
            body.insert(0, text::cut(failure, width));
        }
        let room = height.saturating_sub(1);
        self.scrolled = self.scrolled.min(body.len().saturating_sub(room));
        let shown = body.into_iter().skip(self.scrolled).take(room);
        let title = text::cut(&format!("{title:<width$}"), width);
        std::iter::once(title).chain(shown).take(height).collect()
    }
}

/// Looks again and again, on a thread of its own, and tells `woken` of every look.
fn look_often(source: &Source, told: &Sender<Outcome<Sample>>, intervals: &Receiver<Duration>, woken: &mut UnixStream) {
    let mut interval = Duration::ZERO;
    loop {
        let began = Instant::now();
        // Nobody hears it any more: the program ends.
        if told.send(look(source)).is_err() || woken.write_all(b"x").is_err() {
            return;
        }
        let mut until = began + interval;
        loop {
            match intervals.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(new) => {
                    interval = new;
                    until = began + interval;
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn watch(source: Source, interval: Duration, signals: &Signals) -> Outcome {
    let failed = terminal_failed;
    let (mut waker, woken) = UnixStream::pair().map_err(failed)?;
    woken.set_nonblocking(true).map_err(failed)?;
    let ((tell, told), (set_interval, intervals)) = (channel(), channel());
    let _ = set_interval.send(interval);
    std::thread::spawn(move || look_often(&source, &tell, &intervals, &mut waker));
    let screen = Screen::take().map_err(failed)?;
    let (mut page, mut history) = (Page::new(interval), History::default());
    let mut stdin = std::io::stdin().as_raw_fd();
    loop {
        screen.draw(&page.lines(screen.size())).map_err(failed)?;
        let [typed, signalled, looked] = screen::wait([stdin, signals.fd(), woken.as_raw_fd()]).map_err(failed)?;
        while let Some(signal) = signals.next().filter(|_| signalled) {
            if signal != libc::SIGWINCH {
                // As a shell shows it.
                return Err(Failure::with_errno("", 128 + signal));
            }
        }
        if typed {
            let mut bytes = [0; 256];
            match std::io::stdin().lock().read(&mut bytes) {
                // Nobody types any more; signals end this.
                Ok(0) | Err(_) => stdin = -1,
                Ok(n) => {
                    for key in screen::keys(&bytes[..n]) {
                        match page.on_key(key, screen.size().1) {
                            Wish::End => return Ok(()),
                            Wish::Interval => drop(set_interval.send(page.interval)),
                            Wish::Nothing => {}
                        }
                    }
                }
            }
        }
        if looked {
            while (&woken).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
            take_looks(&told, &mut page, &mut history)?;
        }
    }
}

/// Shows what was looked at since.
fn take_looks(told: &Receiver<Outcome<Sample>>, page: &mut Page, history: &mut History) -> Outcome {
    loop {
        match told.try_recv() {
            Ok(look) if page.paused => drop(look),
            Ok(Ok(sample)) => {
                page.view = history.view(&sample);
                page.failure = None;
            }
            Ok(Err(why)) => page.failure = Some(why.to_string()),
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => return Err(Failure::from("nobody looks any more".to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sample::tests::look;
    use super::*;

    fn page() -> Page {
        let mut page = Page::new(Duration::from_secs(1));
        let mut history = History::default();
        history.view(&Sample::read(&look(5, 100)));
        page.view = history.view(&Sample::read(&look(9, 101)));
        page
    }

    #[test]
    fn a_page_fits_every_terminal() {
        for (width, height) in [(80, 24), (20, 5), (1, 1), (300, 100)] {
            let mut page = page();
            for _ in 0..50 {
                page.on_key(Key::Lines(1), height);
            }
            let lines = page.lines((width, height));
            assert!(lines.len() <= height && lines.iter().all(|l| l.chars().count() <= width), "{lines:?}");
            page.on_key(Key::Home, height);
            assert_eq!(page.scrolled, 0);
        }
        let lines = page().lines((80, 24));
        assert!(lines[0].starts_with("stria top: s at /m  by bytes, every 1 s") && lines[0].len() == 80, "{lines:?}");
        assert!(lines[1].starts_with("SERVER"), "{lines:?}");
    }

    #[test]
    fn keys_change_what_is_shown_and_how_often() {
        let mut p = page();
        let mut press = |c: char| {
            let wish = p.on_key(Key::Char(c), 24);
            (wish, p.lines((100, 24)))
        };
        assert!(press('r').1[0].contains("by read,") && press('n').1[0].contains("by name,"));
        assert!(
            !press('x').1.iter().any(|l| l.contains("nrs crr")) && press('k').1.iter().any(|l| l.contains("nrs crr"))
        );
        assert!(press('h').1.iter().any(|l| l.contains("this help")) && press('?').1[1].starts_with("SERVER"));
        let (wish, lines) = press('-');
        assert!(wish == Wish::Interval && lines[0].contains("every 2 s"), "{lines:?}");
        assert!(
            press('+').1[0].contains("every 1 s")
                && press('+').1[0].contains("every 0.5 s")
                && press('+').1[0].contains("every 0.5 s")
        );
        assert!(press(' ').1[0].contains("stands still"));
        assert_eq!((press('q').0, press('\x03').0), (Wish::End, Wish::End));
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_told_of_above_what_was_known() {
        let (tell, told) = channel();
        let (mut p, mut history) = (page(), History::default());
        tell.send(Err(Failure::from("/m: its daemon is stopped".to_string()))).unwrap();
        take_looks(&told, &mut p, &mut history).unwrap();
        let lines = p.lines((80, 24));
        assert!(lines[1] == "/m: its daemon is stopped" && lines[2].starts_with("SERVER"), "{lines:?}");
        tell.send(Ok(Sample::read(&look(9, 102)))).unwrap();
        take_looks(&told, &mut p, &mut history).unwrap();
        assert!(p.lines((80, 24))[1].starts_with("SERVER"));
        drop(tell);
        assert!(take_looks(&told, &mut p, &mut history).is_err());
    }
}
