//! The terminal: its other screen without a cursor, keys as they are pressed, and everything as it was when this ends,
//! also by a panic.
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use crossterm::{cursor, execute, queue, style, terminal};

/// A terminal that shows what this program draws.
pub struct Screen(());

/// Gives the terminal back. Where it cannot be told, nothing can be done about it.
fn restore() {
    let _ = terminal::disable_raw_mode();
    let _ = execute!(io::stdout(), cursor::Show, terminal::EnableLineWrap, terminal::LeaveAlternateScreen);
}

impl Screen {
    /// Takes the terminal of standard output.
    ///
    /// # Errors
    /// It is none, or refuses.
    pub fn take() -> io::Result<Screen> {
        terminal::enable_raw_mode()?;
        let screen = Screen(());
        // What a panic says is read on the screen from which the program was started.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        execute!(io::stdout(), terminal::EnterAlternateScreen, terminal::DisableLineWrap, cursor::Hide)?;
        Ok(screen)
    }

    /// Columns and rows; 80 and 24 where nobody knows.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        terminal::size().map_or((80, 24), |(w, h)| (w.max(1).into(), h.max(1).into()))
    }

    /// Shows lines from the top, the first one inverted. They fit.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut out = Vec::new();
        for (row, line) in (0u16..).zip(lines) {
            queue!(out, cursor::MoveTo(0, row))?;
            match row {
                0 => queue!(
                    out,
                    style::SetAttribute(style::Attribute::Reverse),
                    style::Print(line),
                    style::SetAttribute(style::Attribute::Reset)
                )?,
                _ => queue!(out, style::Print(line))?,
            }
            queue!(out, terminal::Clear(terminal::ClearType::UntilNewLine))?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        let mut terminal = io::stdout().lock();
        terminal.write_all(&out)?;
        terminal.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// A key that means something here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// A sign; Ctrl-C is `\x03`.
    Char(char),
    /// A line up or down.
    Lines(isize),
    /// A page up or down.
    Pages(isize),
    /// To the top.
    Home,
}

/// Keys in what a terminal sent; what means nothing here is left out.
#[must_use]
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    const KNOWN: &[(&[u8], Key)] = &[
        (b"\x1b[A", Key::Lines(-1)),
        (b"\x1bOA", Key::Lines(-1)),
        (b"\x1b[B", Key::Lines(1)),
        (b"\x1bOB", Key::Lines(1)),
        (b"\x1b[5~", Key::Pages(-1)),
        (b"\x1b[6~", Key::Pages(1)),
        (b"\x1b[H", Key::Home),
        (b"\x1bOH", Key::Home),
        (b"\x1b[1~", Key::Home),
    ];
    let (mut rest, mut found) = (bytes, Vec::new());
    while let Some((first, after)) = rest.split_first() {
        if let Some((sequence, key)) = KNOWN.iter().find(|(s, _)| rest.starts_with(s)) {
            found.push(*key);
            rest = &rest[sequence.len()..];
        } else if *first == 0x1b {
            // Another sequence: it ends with a letter or a tilde.
            let end = after.iter().skip(1).position(|b| b.is_ascii_alphabetic() || *b == b'~');
            rest = end.map_or(&[], |end| &after[end + 2..]);
        } else {
            found.extend(first.is_ascii().then(|| Key::Char(char::from(*first))));
            rest = after;
        }
    }
    found
}

/// Signals that end or resize, as something that can be waited for. They do nothing else any more.
pub struct Signals(std::fs::File);

impl Signals {
    /// For threads that are made from now on.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn take() -> io::Result<Signals> {
        // SAFETY: a set on the stack that is emptied before use; the new descriptor is nobody else's.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGWINCH] {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals(std::os::fd::FromRawFd::from_raw_fd(fd)))
        }
    }
    /// Its descriptor, which can be read when a signal came.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
    /// A signal that came.
    #[must_use]
    pub fn next(&self) -> Option<i32> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let read = io::Read::read(&mut &self.0, &mut info).ok()?;
        let number = info.first_chunk().filter(|_| read == info.len())?;
        i32::try_from(u32::from_ne_bytes(*number)).ok()
    }
}

/// Waits until one of the descriptors can be read, or was closed by the other side: which. A negative one is left out.
///
/// # Errors
/// The kernel's answer.
pub fn wait(fds: [i32; 3]) -> io::Result<[bool; 3]> {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: an array of the said length on the stack.
    let rc = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
    match rc {
        rc if rc >= 0 => Ok(polled.map(|p| p.revents != 0)),
        _ => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok([false; 3]),
            e => Err(e),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_what_a_terminal_sends_and_other_sequences_are_passed_over() {
        let of = |text: &str| keys(text.as_bytes());
        assert_eq!(of("qh"), [Key::Char('q'), Key::Char('h')]);
        assert_eq!(of("\x1b[A\x1bOB\x1b[6~\x1b[H"), [Key::Lines(-1), Key::Lines(1), Key::Pages(1), Key::Home]);
        assert_eq!(of("\x1b[1;5Cb\x1b[15~n"), [Key::Char('b'), Key::Char('n')]);
        assert_eq!(of("\x03"), [Key::Char('\x03')]);
        assert_eq!(of("\x1b"), []);
        assert_eq!(of("é"), []);
    }
}
