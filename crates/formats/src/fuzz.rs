//! Runs a decoder over a committed corpus and over changes of it, and says which input broke it.
//!
//! Two variables steer it: `STRIA_FUZZ_RUNS` (inputs made per target; default 20,000) and `STRIA_FUZZ_SEED` (default 1).
//! Inputs whose outcome is new (the number that the check gives) join the ones that are changed further, so that the
//! walk goes deeper than one change from a good input.
//! `STRIA_FUZZ_COLLECT=1` writes the first few such inputs into the corpus, to be committed.
//! An input that breaks a decoder is written below the directory for temporary files; committed into the target's
//! corpus folder it is run for ever.
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use crate::memory;
use crate::mutate::Mutator;

/// Inputs that are kept for further changes, besides corpus and seeds.
const KEPT_MAX: usize = 4096;

/// Inputs that one run collects for the corpus.
const COLLECTED_MAX: usize = 4;

/// One decoder under test.
pub struct Target<'a> {
    /// Its name; its corpus is `<crate>/corpus/<name>/`, one input per file.
    pub name: &'a str,
    /// The crate's folder: `env!("CARGO_MANIFEST_DIR")`.
    pub root: &'a str,
    /// Well-formed inputs to begin with, besides the corpus.
    pub seeds: Vec<Vec<u8>>,
    /// Pieces that mean something in the format.
    pub words: &'a [&'a [u8]],
    /// Mends what would keep changes from getting any further: checksums.
    pub mend: Option<fn(&mut [u8])>,
    /// Bytes that an input of `n` bytes may make the decoder hold at most: `fixed + n * per_byte`.
    pub memory: (usize, usize),
}

impl Target<'_> {
    /// Runs `check` over corpus, seeds and changes. It gives a number for what came out (which error, which shape).
    ///
    /// # Panics
    /// When an input makes `check` panic or take more memory than allowed, with the path of that input; when the test
    /// binary's allocator does not count.
    pub fn run(&self, mut check: impl FnMut(&[u8]) -> u64) {
        assert!(memory::is_counted(), "declare formats::memory::Counting as the global allocator");
        let (runs, seed) = (number("STRIA_FUZZ_RUNS", 20_000), number("STRIA_FUZZ_SEED", 1));
        let mut pool = self.corpus();
        pool.extend(self.seeds.iter().cloned());
        pool.push(Vec::new());
        let mut outcomes = BTreeSet::new();
        for input in &pool {
            outcomes.insert(self.one(input, &mut check));
        }
        let (mut mutator, given) = (Mutator::new(seed, self.name, self.words), pool.len());
        let mut collect = if number("STRIA_FUZZ_COLLECT", 0) == 0 { 0 } else { COLLECTED_MAX };
        for i in 0..runs {
            let mut input = pool[mutator.below(pool.len())].clone();
            let other = mutator.below(pool.len());
            mutator.change(&mut input, &pool[other]);
            if let Some(mend) = self.mend
                && i % 4 != 0
            {
                mend(&mut input);
            }
            if outcomes.insert(self.one(&input, &mut check)) && pool.len() < given + KEPT_MAX {
                if collect > 0 && input.len() <= 1024 {
                    collect -= 1;
                    self.commit(&input);
                }
                pool.push(input);
            }
        }
        println!("{}: {given} given inputs, {runs} made with seed {seed}, {} outcomes", self.name, outcomes.len());
    }

    fn one(&self, input: &[u8], check: &mut impl FnMut(&[u8]) -> u64) -> u64 {
        let (done, peak) = memory::peak_of(|| catch_unwind(AssertUnwindSafe(|| check(input))));
        let allowed = self.memory.0 + input.len() * self.memory.1;
        match done {
            Ok(outcome) if peak <= allowed => outcome,
            Ok(_) => {
                let path = self.keep(input);
                panic!(
                    "{}: {} bytes of input made it hold {peak} bytes, {allowed} are allowed: {}",
                    self.name,
                    input.len(),
                    path.display()
                )
            }
            Err(panic) => {
                println!("{}: this input makes it panic: {}", self.name, self.keep(input).display());
                resume_unwind(panic)
            }
        }
    }

    fn keep(&self, input: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("stria-fuzz-{}-{}", self.name, std::process::id()));
        match std::fs::write(&path, input) {
            Ok(()) => path,
            Err(e) => PathBuf::from(format!("{} ({e}); bytes {input:02x?}", path.display())),
        }
    }

    fn commit(&self, input: &[u8]) {
        let dir = Path::new(self.root).join("corpus").join(self.name);
        let file = dir.join(format!("{:016x}", outcome_of_bytes(input)));
        std::fs::create_dir_all(&dir)
            .and_then(|()| std::fs::write(&file, input))
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }

    /// The committed inputs, in the order of their names.
    fn corpus(&self) -> Vec<Vec<u8>> {
        let dir = Path::new(self.root).join("corpus").join(self.name);
        let Ok(entries) = std::fs::read_dir(&dir) else { return Vec::new() };
        let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        files.sort();
        let read = |f: &PathBuf| std::fs::read(f).unwrap_or_else(|e| panic!("{}: {e}", f.display()));
        files.iter().map(read).collect()
    }
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")),
        Err(_) => default,
    }
}

/// A number for a text, for outcomes that are told apart by their words.
#[must_use]
pub fn outcome_of(text: &str) -> u64 {
    outcome_of_bytes(text.as_bytes())
}

fn outcome_of_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}
