//! Names of users and groups as the host's name service has them (files, LDAP, sssd: whatever `/etc/nsswitch.conf` names), which
//! getpwnam(3) and getgrnam(3) ask. A number stands for itself, whether anybody has it or not.
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Bytes of a record that are made room for first; groups with many members take more.
const RECORD_BYTES: usize = 4096;
/// Most bytes of a record.
const RECORD_BYTES_MAX: usize = 16 << 20;

/// Whose names are meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Account {
    /// A user.
    User,
    /// A group.
    Group,
}

/// Names that were asked for: a listing has few users and many files.
static KNOWN: LazyLock<Mutex<HashMap<(Account, u32), String>>> = LazyLock::new(Mutex::default);

impl Account {
    /// The name behind an id, or the number where there is none, or where the name service does not say.
    pub fn name(self, id: u32) -> String {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = || self.ask_name(id, RECORD_BYTES).ok().flatten().unwrap_or_else(|| id.to_string());
        known.entry((self, id)).or_insert_with(asked).clone()
    }

    /// The id behind a name or a number.
    ///
    /// # Errors
    /// A sentence.
    pub fn id(self, text: &str) -> Result<u32, String> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err("numbers go from 0 to 4294967294".into());
        }
        let found = CString::new(text).ok().map(|name| self.ask_id(&name, RECORD_BYTES)).transpose();
        match found {
            Ok(found) => found.flatten().ok_or_else(|| "nobody has this name: write a number".into()),
            Err(e) => Err(format!("the name service of this host does not say who that is ({e}): write a number")),
        }
    }

    fn ask_id(self, name: &CStr, bytes: usize) -> io::Result<Option<u32>> {
        match self {
            Account::User => record(
                bytes,
                // SAFETY: a NUL-terminated name, a record and a buffer of the said length, all outliving the call.
                |into, buffer, found| unsafe {
                    libc::getpwnam_r(name.as_ptr(), into, buffer.as_mut_ptr(), buffer.len(), found)
                },
                |user: &libc::passwd| user.pw_uid,
            ),
            Account::Group => record(
                bytes,
                // SAFETY: as above.
                |into, buffer, found| unsafe {
                    libc::getgrnam_r(name.as_ptr(), into, buffer.as_mut_ptr(), buffer.len(), found)
                },
                |group: &libc::group| group.gr_gid,
            ),
        }
    }

    fn ask_name(self, id: u32, bytes: usize) -> io::Result<Option<String>> {
        match self {
            Account::User => record(
                bytes,
                // SAFETY: a record and a buffer of the said length, outliving the call.
                |into, buffer, found| unsafe { libc::getpwuid_r(id, into, buffer.as_mut_ptr(), buffer.len(), found) },
                // SAFETY: a record that was found has a NUL-terminated name, in the buffer.
                |user: &libc::passwd| text_of(unsafe { CStr::from_ptr(user.pw_name) }),
            ),
            Account::Group => record(
                bytes,
                // SAFETY: as above.
                |into, buffer, found| unsafe { libc::getgrgid_r(id, into, buffer.as_mut_ptr(), buffer.len(), found) },
                // SAFETY: as above.
                |group: &libc::group| text_of(unsafe { CStr::from_ptr(group.gr_name) }),
            ),
        }
    }
}

fn text_of(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

/// What `take` takes of the record that `ask` finds, in a buffer of `bytes` or as many more as it needs; `None`: there is no such record.
fn record<T, R>(
    bytes: usize,
    ask: impl Fn(*mut T, &mut [c_char], *mut *mut T) -> c_int,
    take: impl Fn(&T) -> R,
) -> io::Result<Option<R>> {
    let mut buffer: Vec<c_char> = vec![0; bytes];
    loop {
        let (mut into, mut found) = (MaybeUninit::<T>::uninit(), ptr::null_mut());
        match ask(into.as_mut_ptr(), &mut buffer, &raw mut found) {
            libc::ERANGE if buffer.len() < RECORD_BYTES_MAX => buffer.resize(buffer.len() * 2, 0),
            libc::EINTR => {}
            // SAFETY: it is null or points to `into`, which was filled in then.
            0 => return Ok(unsafe { found.as_ref() }.map(take)),
            // What the C library's page has for "nobody has it", beside 0.
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_much_room_their_records_take() {
        for kind in [Account::User, Account::Group] {
            assert_eq!(kind.id("root"), Ok(0), "{kind:?}");
            assert_eq!(kind.name(0), "root");
            assert_eq!(kind.ask_id(c"root", 1).unwrap(), Some(0), "{kind:?}");
            assert_eq!(kind.ask_name(0, 1).unwrap().as_deref(), Some("root"), "{kind:?}");
        }
    }

    #[test]
    fn numbers_stand_for_themselves_and_what_is_neither_is_refused() {
        for kind in [Account::User, Account::Group] {
            assert_eq!((kind.id("0"), kind.id("4123456789")), (Ok(0), Ok(4_123_456_789)));
            assert_eq!(kind.name(4_123_456_789), "4123456789");
            for (text, why) in [
                ("no such name", "nobody has this name"),
                ("", "nobody has this name"),
                ("ro\0ot", "nobody has this name"),
                ("-1", "numbers go from"),
                ("4294967296", "numbers go from"),
            ] {
                let said = kind.id(text).unwrap_err();
                assert!(said.contains(why), "{text}: {said}");
            }
        }
    }
}
