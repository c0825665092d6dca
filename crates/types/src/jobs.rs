//! Jobs: whose I/O is whose, by a name that the client makes and a number that travels with every request.
use alloc::collections::BTreeMap;
use alloc::string::String;

/// Longest name of a job in bytes; longer ones are cut where they are made.
pub const JOB_NAME_BYTES_MAX: usize = 64;

/// The number of a job's name (FNV-1a, 64 bits, never 0); 0 for the empty name, which is no job.
#[must_use]
pub fn job_id(name: &[u8]) -> u64 {
    if name.is_empty() {
        return 0;
    }
    let hash = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, hash).max(1)
}

/// Names that clients told a server.
#[derive(Clone, Debug, Default)]
pub struct JobNames {
    names: BTreeMap<u64, String>,
    limit_hits: u64,
}

/// Names that a server keeps; more are shown by their number.
const NAMES_MAX: usize = 16_384;

impl JobNames {
    /// Takes a name in, if it is one and there is room.
    pub fn tell(&mut self, name: &[u8]) {
        let printable = name.iter().all(|b| b.is_ascii_graphic() && !b"\"'\\".contains(b));
        if name.is_empty() || name.len() > JOB_NAME_BYTES_MAX || !printable {
            return;
        }
        let job = job_id(name);
        if self.names.len() >= NAMES_MAX && !self.names.contains_key(&job) {
            self.limit_hits += 1;
            return;
        }
        self.names.entry(job).or_insert_with(|| String::from_utf8_lossy(name).into_owned());
    }
    /// Names for which there was no room so far.
    #[must_use]
    pub fn limit_hits(&self) -> u64 {
        self.limit_hits
    }
    /// What a job is called.
    #[must_use]
    pub fn show(&self, job: u64) -> String {
        self.names.get(&job).cloned().unwrap_or_else(|| alloc::format!("{job:016x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_and_what_is_no_name_is_not_kept() {
        assert_eq!(job_id(b""), 0);
        assert_ne!(job_id(b"dd.0"), job_id(b"dd.1"));
        let mut names = JobNames::default();
        for name in [&b"dd.0"[..], b"", b"two words", b"quo\"te", &[b'x'; 65], b"line\nfeed"] {
            names.tell(name);
        }
        assert_eq!(names.show(job_id(b"dd.0")), "dd.0");
        assert_eq!((names.names.len(), names.show(0x17).as_str()), (1, "0000000000000017"));
        (0..20_000u32).for_each(|i| names.tell(alloc::format!("job{i}").as_bytes()));
        assert_eq!((names.names.len(), names.limit_hits()), (NAMES_MAX, 20_001 - NAMES_MAX as u64));
    }
}
