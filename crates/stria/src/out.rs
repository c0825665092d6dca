//! What commands print. `say!` is for those whose output is all they do: a reader that has seen enough (`| head`) ends
//! them without a word, a full disk with an error. `note!` is for those that have more to do than to print: they go on.
use std::fmt;
use std::io::{self, Write};

/// Exit code of a program that nobody reads any more, as shells show SIGPIPE's.
const UNREAD: i32 = 128 + libc::SIGPIPE;

/// Prints a line, or ends the program.
macro_rules! say {
    ($($text:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($text)*))) };
}
/// Prints a line if it can be printed.
macro_rules! note {
    ($($text:tt)*) => { $crate::out::try_print(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints, or ends the program.
pub fn print(text: fmt::Arguments<'_>) {
    if let Err(e) = write(text) {
        let code = match e.kind() {
            io::ErrorKind::BrokenPipe => UNREAD,
            _ => {
                let _ = writeln!(io::stderr(), "stria: writing the output: {e}");
                e.raw_os_error().unwrap_or(libc::EIO)
            }
        };
        std::process::exit(code);
    }
}

/// Prints if possible.
pub fn try_print(text: fmt::Arguments<'_>) {
    let _ = write(text);
}

fn write(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    out.flush()
}
