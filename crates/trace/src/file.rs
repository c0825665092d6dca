//! The file format of traces, version 2: `docs/spec/trace.md`. Files of version 1 are read, too: their records are shorter.
//!
//! A head, then blocks: what is known of a target, records of a target, the end. Every block has a checksum; what is wrong is
//! refused with its place. A reader holds no more than a small multiple of what it is given.
use crate::record::{RECORD_BYTES, RECORD_BYTES_1, RecordError};
use crate::{Flags, Record};
use std::fmt;
use std::io;

/// First bytes of a trace.
pub const MAGIC: [u8; 8] = *b"STRTRACE";
/// The version that is written.
pub const VERSION: u16 = 2;
/// Records of one block at most.
pub const BLOCK_RECORDS_MAX: usize = 8192;

const HEAD_BYTES: usize = 16;
const BLOCK_HEAD_BYTES: usize = 12;
const SETTINGS_BYTES_MAX: usize = 1 << 16;
/// Targets of one trace at most.
const TARGETS_MAX: usize = 4096;

/// Kinds of blocks.
const TARGET: u16 = 1;
const RECORDS: u16 = 2;
const END: u16 = 3;

/// A target of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Target {
    /// What is known of it, as the keys of `stria sim` where there is one: name and value.
    pub settings: Vec<(String, String)>,
    /// Its requests, in the order in which they were done.
    pub records: Vec<Record>,
}

impl Target {
    /// A target of which `text` tells, one `KEY=VALUE` a line.
    ///
    /// # Errors
    /// A sentence with the line that is none.
    pub fn from_text(text: &str) -> Result<Target, String> {
        let pair = |line: &str| match line.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_string(), value.to_string())),
            _ => Err(format!("'{}' is not KEY=VALUE", line.escape_debug())),
        };
        Ok(Target { settings: text.lines().map(pair).collect::<Result<_, _>>()?, records: Vec::new() })
    }
    /// What is known of it, one `KEY=VALUE` a line.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.settings.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
    }
    /// A setting.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }
    /// A setting that is a number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<i64> {
        self.setting(key)?.parse().ok()
    }
    /// Whether it has a scheduler: metadata targets and clients have none.
    #[must_use]
    pub fn has_scheduler(&self) -> bool {
        !matches!(self.setting("source"), Some("mdt" | "client"))
    }
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.setting("target").unwrap_or("?")
    }
}

/// A trace: targets with what they served.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The targets.
    pub targets: Vec<Target>,
}

impl Trace {
    /// Records of all targets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.targets.iter().map(|t| t.records.len()).sum()
    }
    /// What came to schedulers: what others do besides is left out, and targets without a scheduler.
    #[must_use]
    pub fn scheduled(mut self) -> Trace {
        self.targets.retain(Target::has_scheduler);
        for target in &mut self.targets {
            target.records.retain(|r| !r.flags.has(Flags::UNSCHEDULED));
        }
        self
    }
    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Writes it.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn write(&self, out: impl io::Write) -> io::Result<()> {
        let mut writer = Writer::new(out)?;
        for target in &self.targets {
            let at = writer.target(target)?;
            writer.records(at, &target.records)?;
        }
        writer.finish().map(drop)
    }
}

/// Writes a trace block by block.
pub struct Writer<W> {
    out: W,
    targets: u16,
    records: u64,
}

impl<W: io::Write> Writer<W> {
    /// Writes the head.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&(RECORD_BYTES as u16).to_le_bytes());
        head.extend_from_slice(&wire::crc32c(&head).to_le_bytes());
        out.write_all(&head)?;
        Ok(Writer { out, targets: 0, records: 0 })
    }
    /// Begins a target with what is known of it; answers its number in the file.
    ///
    /// # Errors
    /// What `out` answers; more targets or settings than a file holds.
    pub fn target(&mut self, target: &Target) -> io::Result<u16> {
        let (at, text) = (self.targets, target.to_text());
        if usize::from(at) >= TARGETS_MAX || text.len() > SETTINGS_BYTES_MAX {
            let what =
                format!("a trace holds at most {TARGETS_MAX} targets with {SETTINGS_BYTES_MAX} bytes of settings");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.block(TARGET, at, text.as_bytes())?;
        self.targets += 1;
        Ok(at)
    }
    /// Adds records of the target with number `at`.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn records(&mut self, at: u16, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for part in records.chunks(BLOCK_RECORDS_MAX) {
            bytes.clear();
            part.iter().for_each(|r| r.put(&mut bytes));
            self.block(RECORDS, at, &bytes)?;
            self.records += part.len() as u64;
        }
        Ok(())
    }
    /// Writes the end, and hands `out` back.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn finish(mut self) -> io::Result<W> {
        let records = self.records;
        self.block(END, 0, &records.to_le_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }
    fn block(&mut self, kind: u16, at: u16, payload: &[u8]) -> io::Result<()> {
        let len = u32::try_from(payload.len()).expect("blocks are bounded");
        let mut head = [kind.to_le_bytes(), at.to_le_bytes()].concat();
        head.extend_from_slice(&len.to_le_bytes());
        let crc = wire::crc32c_append(wire::crc32c(&head), payload);
        head.extend_from_slice(&crc.to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(payload)
    }
}

/// Why bytes are no trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadError {
    /// Byte of the file.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.what)
    }
}
impl std::error::Error for ReadError {}

fn wrong<T>(offset: usize, what: impl Into<String>) -> Result<T, ReadError> {
    Err(ReadError { offset: offset as u64, what: what.into() })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a trace.
///
/// # Errors
/// The first byte that is wrong, and why; a newer version is named.
pub fn read(bytes: &[u8]) -> Result<Trace, ReadError> {
    let head = match bytes.get(..HEAD_BYTES) {
        Some(head) if head[..8] == MAGIC => head,
        None if bytes.len() >= 8 && bytes[..8] == MAGIC => {
            return wrong(bytes.len(), "the file ends within its head: it was cut off");
        }
        _ => return wrong(0, "this is no trace of Stria: it does not begin with STRTRACE"),
    };
    let version = u16_at(head, 8);
    if !(1..=VERSION).contains(&version) {
        let which = if version > VERSION { "newer: use a newer stria" } else { "not one that was ever in use" };
        return wrong(
            8,
            format!("the trace has version {version}, this program reads 1 to {VERSION}; that is {which}"),
        );
    }
    if u32_at(head, 12) != wire::crc32c(&head[..12]) {
        return wrong(0, "the head does not match its checksum: the file is damaged");
    }
    let record_bytes = if version == 1 { RECORD_BYTES_1 } else { RECORD_BYTES };
    if usize::from(u16_at(head, 10)) != record_bytes {
        let told = u16_at(head, 10);
        return wrong(10, format!("records of {told} bytes, version {version} has {record_bytes}"));
    }
    let mut trace = Trace::default();
    let mut at = HEAD_BYTES;
    loop {
        let (block, next) = Block::at(bytes, at)?;
        match block.kind {
            TARGET => block.target(&mut trace)?,
            RECORDS if version == 1 => block.records(&mut trace, Record::get_1)?,
            RECORDS => block.records(&mut trace, Record::get)?,
            END => return block.end(&trace, bytes.len() - next).map(|()| trace),
            other => return wrong(at, format!("a block of kind {other}, which no version has")),
        }
        at = next;
    }
}

struct Block<'a> {
    kind: u16,
    target: u16,
    /// Where it begins, and its payload.
    at: usize,
    payload_at: usize,
    payload: &'a [u8],
}

impl Block<'_> {
    fn at(bytes: &[u8], at: usize) -> Result<(Block<'_>, usize), ReadError> {
        let payload_at = at + BLOCK_HEAD_BYTES;
        let Some(head) = bytes.get(at..payload_at) else {
            return wrong(
                bytes.len(),
                "the file ends without its last block: it was cut off, or is still being written",
            );
        };
        let end = payload_at + u32_at(head, 4) as usize;
        let Some(payload) = bytes.get(payload_at..end) else {
            let len = u32_at(head, 4);
            return wrong(at, format!("a block of {len} bytes reaches beyond the end of the file: it was cut off"));
        };
        if u32_at(head, 8) != wire::crc32c_append(wire::crc32c(&head[..8]), payload) {
            return wrong(at, "the block does not match its checksum: the file is damaged");
        }
        Ok((Block { kind: u16_at(head, 0), target: u16_at(head, 2), at, payload_at, payload }, end))
    }

    fn target(&self, trace: &mut Trace) -> Result<(), ReadError> {
        let n = trace.targets.len();
        if n >= TARGETS_MAX || usize::from(self.target) != n {
            return wrong(self.at + 2, format!("target {} where target {n} is due", self.target));
        }
        if self.payload.len() > SETTINGS_BYTES_MAX {
            return wrong(self.at + 4, format!("settings of more than {SETTINGS_BYTES_MAX} bytes"));
        }
        let text = match std::str::from_utf8(self.payload) {
            Ok(text) => text,
            Err(e) => return wrong(self.payload_at + e.valid_up_to(), "settings are UTF-8 text"),
        };
        match Target::from_text(text) {
            Ok(target) => trace.targets.push(target),
            Err(why) => return wrong(self.payload_at, why),
        }
        Ok(())
    }

    fn records<const N: usize>(
        &self,
        trace: &mut Trace,
        get: fn(&[u8; N]) -> Result<Record, RecordError>,
    ) -> Result<(), ReadError> {
        let Some(target) = trace.targets.get_mut(usize::from(self.target)) else {
            return wrong(self.at + 2, format!("records of target {}, which was not told of", self.target));
        };
        let (records, rest) = self.payload.as_chunks::<N>();
        if !rest.is_empty() || records.is_empty() || records.len() > BLOCK_RECORDS_MAX {
            let len = self.payload.len();
            return wrong(self.at + 4, format!("{len} bytes are not 1 to {BLOCK_RECORDS_MAX} records"));
        }
        for (i, bytes) in records.iter().enumerate() {
            match get(bytes) {
                Ok(record) => target.records.push(record),
                Err(e) => return wrong(self.payload_at + i * N + e.at, format!("a request: {}", e.what)),
            }
        }
        Ok(())
    }

    fn end(&self, trace: &Trace, behind: usize) -> Result<(), ReadError> {
        let Ok(told) = self.payload.try_into().map(u64::from_le_bytes) else {
            return wrong(self.at + 4, "the last block holds the number of records, 8 bytes");
        };
        if told != trace.len() as u64 {
            return wrong(self.payload_at, format!("{told} records were written, {} are here", trace.len()));
        }
        if behind > 0 {
            return wrong(self.payload_at + self.payload.len(), format!("{behind} bytes behind the end"));
        }
        Ok(())
    }
}

/// Puts right the checksums of bytes that look like a trace: for tests that change traces.
pub fn mend(bytes: &mut [u8]) {
    if bytes.len() < HEAD_BYTES {
        return;
    }
    let crc = wire::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let mut at = HEAD_BYTES;
    while let Some(head) = bytes.get(at..at + BLOCK_HEAD_BYTES) {
        let end = at + BLOCK_HEAD_BYTES + u32_at(head, 4) as usize;
        let Some(payload) = bytes.get(at + BLOCK_HEAD_BYTES..end) else { return };
        let crc = wire::crc32c_append(wire::crc32c(&bytes[at..at + 8]), payload);
        bytes[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}
