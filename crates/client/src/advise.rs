//! What users advise about files on the servers (paper 004): levels of ranges, kept by the OSTs with the objects; and the
//! xattrs by which a level is set and shown where no ioctl can be called.
//!
//! `user.stria.advice` and `trusted.stria.advice` hold a level (`high`), or lines of a level and a range (`high 0-1048576`);
//! of a directory, what new files and directories in it get. `stria.advice` shows all that servers know, a line a range.
//! It decides nothing: which tier, what is fetched and what gives way is each OST's business.
use std::fmt::Write as _;
use std::rc::Rc;

use layout::StripeIndex;
use types::advise::{LEVEL_XATTRS, SHOWN_XATTR};
use types::{Extent, FsError, ObjectId, WallTime};
use wire::Op;
use wire::mdt::{AttrFlags, BytesReply, Cred, XattrRequest};
use wire::ost::{Advice, AdviseRequest, AdvisedRange, AdvisedReply, AdvisedRequest, IoOwner};

use crate::client::Client;
use crate::inode::{Inode, Striping};

/// xattrs that set and show a level.
const NAMES: [&[u8]; 2] = [LEVEL_XATTRS[0].to_bytes(), LEVEL_XATTRS[1].to_bytes()];
/// The xattr that shows everything.
const SHOWN: &[u8] = SHOWN_XATTR.to_bytes();
/// Most bytes of an xattr's value.
const VALUE_BYTES_MAX: usize = 65_536;

/// Whether an xattr of this name is advice.
pub(crate) fn is_advice(name: &[u8]) -> bool {
    NAMES.contains(&name) || name == SHOWN
}

fn is_dir(inode: &Inode) -> bool {
    inode.attr().mode & 0o170_000 == 0o040_000
}

/// A level and the range it is for.
fn parse(value: &[u8]) -> Result<(Advice, Extent), FsError> {
    let text = std::str::from_utf8(value).map_err(|_| FsError::Invalid)?;
    let mut words = text.split_whitespace();
    let level = words.next().and_then(Advice::level).ok_or(FsError::Invalid)?;
    let extent = match words.next() {
        None => Extent::ALL,
        Some(range) => {
            let (start, end) = range.split_once('-').ok_or(FsError::Invalid)?;
            let start = start.parse().map_err(|_| FsError::Invalid)?;
            let end = if end.is_empty() { u64::MAX } else { end.parse().map_err(|_| FsError::Invalid)? };
            Extent::checked(start, end).ok_or(FsError::Invalid)?
        }
    };
    if words.next().is_some() { Err(FsError::Invalid) } else { Ok((level, extent)) }
}

impl Client {
    /// Tells the OSTs of a file what a range of it is worth; of a directory, what new files in it get (`extent` is not
    /// looked at). The range is that of the file: an open end covers what the file grows by.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// EINVAL (an empty range, one that begins behind the file's end, a file without objects), ENOSPC (no server has room or
    /// budget for one byte of it), EPERM (another user asked for more), and what servers answer.
    pub async fn advise_servers(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        (advice, background): (Advice, bool),
        extent: Extent,
    ) -> Result<(), FsError> {
        if is_dir(inode) {
            let value = (!advice.name().is_empty()).then(|| advice.name().as_bytes()).ok_or(FsError::IsDirectory)?;
            return self.setxattr(cred, inode.fid, NAMES[0], Some(value), 0, false).await;
        }
        let project = inode.attr().project;
        let owner = IoOwner { uid: cred.uid, gid: cred.gid, project, job: cred.job };
        let since = self.sessions.rt().wall();
        self.advise_as(inode, (owner, since), (advice, background), extent).await
    }
    /// The same for a file, as that user said it at that time.
    pub(crate) async fn advise_as(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        (owner, since): (IoOwner, WallTime),
        (advice, background): (Advice, bool),
        extent: Extent,
    ) -> Result<(), FsError> {
        loop {
            let Some(s) = self.meta.layout_of(inode).await? else {
                return if advice == Advice::None { Ok(()) } else { Err(FsError::Invalid) };
            };
            if extent.is_empty() {
                return Err(FsError::Invalid);
            }
            if extent.start > 0 && advice != Advice::None && extent.start >= self.data.file_size(inode).await?.size {
                return Err(FsError::Invalid);
            }
            // What is not at the OSTs yet can have no place there, and would not be refused to anybody.
            self.data.write_out(inode).await;
            let ask = |object| AdviseRequest { object, extent, advice, background, owner: owner.clone(), since };
            let done = self.advise_objects(&s, extent, ask).await;
            if self.meta.unless_moved(inode, Some(s), done).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Tells the OSTs of a file's objects what is to be said to each, of the object's part of a range of the file.
    async fn advise_objects(
        &self,
        s: &Striping,
        extent: Extent,
        ask: impl Fn(ObjectId) -> AdviseRequest,
    ) -> Result<(), FsError> {
        let parts: Vec<_> = s.layout.geometry().objects(extent)?.collect();
        let calls = parts.into_iter().map(|part| {
            let object = &s.objects[usize::from(part.stripe.0)];
            let (osc, ask) = (self.osts.osc(object.ost), AdviseRequest { extent: part.object, ..ask(object.id) });
            async move { osc.import()?.ask::<_, ()>(Op::OstAdvise, &ask).await }
        });
        let (mut taken, mut no_room) = (false, false);
        for done in rt::sync::join_all(calls.collect()).await {
            match done {
                Ok(()) => taken = true,
                Err(FsError::NoSpace) => no_room = true,
                Err(e) => return Err(e),
            }
        }
        if no_room && !taken { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// A file that was made in a directory with advice gets it, in the background.
    pub(crate) fn inherit_advice(self: &Rc<Self>, cred: &Cred, inode: &Rc<Inode>) {
        let level = AttrFlags::advice(inode.attr().flags) as usize;
        let Some((advice, _)) = Advice::LEVELS.get(level).copied().filter(|(a, _)| *a != Advice::None) else { return };
        let (me, cred, inode) = (self.clone(), cred.clone(), inode.clone());
        self.sessions.rt().spawn(async move {
            if let Err(e) = me.advise_servers(&cred, &inode, (advice, true), Extent::ALL).await {
                tracing::info!(file = %inode.fid, "its directory's advice was not taken: {e}");
            }
        });
    }

    /// What servers know of a file's advice and `keeps` keeps of that, by ranges of the file: what one call advised is one row, summed over
    /// stripes.
    pub(crate) async fn advised_rows(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        keeps: fn(&AdvisedRange) -> bool,
    ) -> Result<Vec<AdvisedRange>, FsError> {
        loop {
            let Some(s) = self.meta.layout_of(inode).await? else { return Ok(Vec::new()) };
            let rows = self.rows_of(&s, keeps).await;
            if let Some(rows) = self.meta.unless_moved(inode, Some(s), rows).await? {
                return Ok(rows);
            }
        }
    }

    async fn rows_of(&self, s: &Striping, keeps: fn(&AdvisedRange) -> bool) -> Result<Vec<AdvisedRange>, FsError> {
        let calls = s.objects.iter().enumerate().map(|(stripe, object)| {
            let (osc, ask) = (self.osts.osc(object.ost), AdvisedRequest { object: object.id });
            async move {
                let reply: AdvisedReply = osc.import()?.ask(Op::OstAdvised, &ask).await?;
                Ok::<_, FsError>((StripeIndex(stripe as u16), reply.ranges))
            }
        });
        let mut rows: Vec<AdvisedRange> = Vec::new();
        for answer in rt::sync::join_all(calls.collect()).await {
            let (stripe, ranges) = answer?;
            for range in ranges.into_iter().filter(keeps) {
                add(&mut rows, AdvisedRange { extent: hull(s, stripe, range.extent)?, ..range }, round_bytes(s));
            }
        }
        rows.sort_by_key(|r| (r.extent.start, r.since));
        Ok(rows)
    }

    /// One of the xattrs above.
    pub(crate) async fn get_advice(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        name: &[u8],
    ) -> Result<Vec<u8>, FsError> {
        let asked = if name == SHOWN { NAMES[0] } else { name };
        if asked == NAMES[1] && cred.uid != 0 {
            return Err(FsError::NoData);
        }
        // The metadata server knows who may read it.
        let request = XattrRequest { cred: cred.clone(), fid: inode.fid, name: asked.into() };
        let told = self.meta.mdt_call(Op::MdtGetxattr, &request).await.and_then(|r| r.decode::<BytesReply>());
        match told {
            Ok(level) => return Ok(level.value.0),
            Err(FsError::NoData) if !is_dir(inode) => {}
            Err(FsError::NoData) if name == SHOWN => return Ok(b"none".to_vec()),
            Err(e) => return Err(e),
        }
        let rows = self.advised_rows(inode, |_| true).await?;
        let mut text = String::new();
        for row in &rows {
            let before = text.len();
            if name == SHOWN {
                line(&mut text, row);
            } else if row.refusal == 0 || row.ram_placed + row.fast_placed > 0 {
                range_line(&mut text, row);
            }
            if text.len() > VALUE_BYTES_MAX {
                text.truncate(before);
                break;
            }
        }
        if name != SHOWN && text.is_empty() { Err(FsError::NoData) } else { Ok(text.into_bytes()) }
    }

    /// Sets one of the xattrs above; `None` withdraws everything.
    pub(crate) async fn set_advice(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FsError> {
        if name == SHOWN || name == NAMES[1] && cred.uid != 0 {
            return Err(FsError::NotPermitted);
        }
        // Who may read a file may advise it.
        match self.get_advice(cred, inode, NAMES[0]).await {
            Ok(_) | Err(FsError::NoData) => {}
            Err(e) => return Err(e),
        }
        let (advice, extent) = value.map_or(Ok((Advice::None, Extent::ALL)), parse)?;
        self.advise_servers(cred, inode, (advice, true), extent).await
    }

    /// Whether an xattr of a file is advice that its OSTs keep, or of anything shows what they know.
    pub(crate) fn is_servers_advice(&self, inode: &Inode, name: &[u8]) -> bool {
        is_advice(name) && (name == SHOWN || !is_dir(inode))
    }
}

/// Bytes of a file that lie on all of its objects once.
fn round_bytes(s: &Striping) -> u64 {
    s.layout.geometry().stripe_size().saturating_mul(s.objects.len() as u64)
}

/// The bytes of the file from the first to the last that some bytes of an object are.
fn hull(s: &Striping, stripe: StripeIndex, object: Extent) -> Result<Extent, FsError> {
    let geometry = s.layout.geometry();
    // The first stripe of an object begins the file, too.
    let start = if object.start == 0 { 0 } else { geometry.file_offset(stripe, object.start)? };
    let end = match object.end {
        u64::MAX => u64::MAX,
        end => geometry.file_offset(stripe, end - 1)? + 1,
    };
    Ok(Extent::new(start.min(end), end))
}

/// Adds what one object knows to the rows of the file.
fn add(rows: &mut Vec<AdvisedRange>, new: AdvisedRange, near: u64) {
    let one = |r: &&mut AdvisedRange| {
        let said = |r: &AdvisedRange| (r.since, r.advice, r.is_outdone());
        let same = said(r) == said(&new) && r.owner == new.owner;
        let gap = r.extent.start.max(new.extent.start).saturating_sub(r.extent.end.min(new.extent.end));
        same && gap < near
    };
    let Some(row) = rows.iter_mut().find(one) else { return rows.push(new) };
    row.extent = row.extent.hull(&new.extent);
    row.ram_placed += new.ram_placed;
    row.fast_placed += new.fast_placed;
    row.ram_resident += new.ram_resident;
    row.fast_resident += new.fast_resident;
    row.hits += new.hits;
    row.to_fetch += new.to_fetch;
    row.fetched += new.fetched;
    row.error = row.error.max(new.error);
    row.refusal = row.refusal.max(new.refusal);
}

fn end_text(end: u64) -> String {
    if end == u64::MAX { String::new() } else { end.to_string() }
}

/// A row as it is set.
fn range_line(out: &mut String, r: &AdvisedRange) {
    if !out.is_empty() {
        out.push('\n');
    }
    let _ = match r.extent {
        Extent::ALL => write!(out, "{}", r.advice.name()),
        e => write!(out, "{} {}-{}", r.advice.name(), e.start, end_text(e.end)),
    };
}

/// A row for tools: `LEVEL START-END KEY=VALUE...`.
fn line(out: &mut String, r: &AdvisedRange) {
    let _ = write!(out, "{} {}-{}", r.advice.name(), r.extent.start, end_text(r.extent.end));
    let numbers = [
        ("uid", u64::from(r.owner.uid)),
        ("project", u64::from(r.owner.project)),
        ("since_ns", r.since.0.max(0) as u64),
        ("ram_placed", r.ram_placed),
        ("fast_placed", r.fast_placed),
        ("ram_resident", r.ram_resident),
        ("fast_resident", r.fast_resident),
        ("hits", r.hits),
        ("to_fetch", r.to_fetch),
        ("fetched", r.fetched),
        ("errno", u64::from(r.error)),
        ("refusal", u64::from(r.refusal)),
    ];
    numbers.iter().for_each(|(key, value)| _ = write!(out, " {key}={value}"));
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_level_and_may_have_a_range() {
        assert_eq!(parse(b"high\n"), Ok((Advice::High, Extent::ALL)));
        assert_eq!(parse(b"low 5-"), Ok((Advice::Low, Extent::from(5))));
        assert_eq!(parse(b"none 5-9"), Ok((Advice::None, Extent::new(5, 9))));
        for wrong in ["", "highest", "high 9-5", "high -5", "high 1-2 3", "high x-y", "high -1-5", "willread"] {
            assert_eq!(parse(wrong.as_bytes()), Err(FsError::Invalid), "{wrong}");
        }
        assert_eq!(parse(&[0xff]), Err(FsError::Invalid));
    }

    #[test]
    fn what_one_call_advised_on_several_stripes_is_one_row() {
        let part = |start, end, hits| AdvisedRange {
            extent: Extent::new(start, end),
            advice: Advice::High,
            hits,
            ..AdvisedRange::default()
        };
        let mut rows = Vec::new();
        add(&mut rows, part(0, 100, 1), 100);
        add(&mut rows, part(100, 200, 2), 100);
        add(&mut rows, part(1000, 1100, 4), 100);
        add(&mut rows, AdvisedRange { advice: Advice::Low, ..part(0, 100, 8) }, 100);
        let got: Vec<(Extent, u64)> = rows.iter().map(|r| (r.extent, r.hits)).collect();
        assert_eq!(got, [(Extent::new(0, 200), 3), (Extent::new(1000, 1100), 4), (Extent::new(0, 100), 8)]);
        let mut text = String::new();
        rows.iter().for_each(|r| range_line(&mut text, r));
        assert_eq!(text, "high 0-200\nhigh 1000-1100\nlow 0-100");
    }
}
