//! Whether an OST's store is the one that the cluster saw last, or an older copy of it that was put in its place.
//!
//! A store draws a mark whenever it is opened, and keeps the marks of its openings. The cluster keeps the mark of the opening that it let
//! in last: a store that comes from that opening has it among its own, a copy of before does not, however often it is opened. A copy that was
//! taken since has it. That one is told by what the OST had on stable storage: the last object that it ever made, for no object is given out
//! before that, and the last transaction, of which the metadata server keeps now and then (every 10 s while there are new ones) what it was told.
use types::{OstIndex, Transno};
use wire::connect::{Opening, RefusedOst, RegisterRequest};

use crate::config_service::{ClusterMap, ConfigService, LostObjects, RegisterError};
use crate::ost_pools::MapError;

wire::message! {
    /// The opening of an OST's store that was let in last.
    KnownOpening {
        /// Which OST.
        ost: OstIndex,
        /// How often the store was opened by then.
        boot: u64,
        /// The mark of that opening; 0: none was let in that has one.
        mark: u64,
        /// A copy with this mark is let in, too: an administrator gave up what it lacks. 0: none is.
        accepted: u64,
    }
}

/// Whether a store with these openings, ascending, is the one that was opened as `known` or comes from it. Where its marks begin later, it was
/// opened by earlier programs before, or its marks were lost with damage.
fn descends(openings: &[Opening], known: &KnownOpening) -> bool {
    let begins_later = openings.first().is_none_or(|first| first.boot > known.boot);
    known.mark == 0 || begins_later || openings.iter().any(|o| o.boot == known.boot && o.mark == known.mark)
}

/// What an OST is known to have had on stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stable {
    /// Last object that may have been given out.
    pub object: u32,
    /// Last transaction.
    pub committed: Transno,
}

impl ClusterMap {
    /// The opening of an OST's store that was let in last.
    #[must_use]
    pub fn opening(&self, ost: OstIndex) -> Option<&KnownOpening> {
        self.openings.iter().find(|k| k.ost == ost)
    }
    /// Nothing is known of an OST's store, as of one that is new.
    pub(crate) fn forget_openings(&mut self, ost: OstIndex) {
        self.openings.retain(|k| k.ost != ost);
        self.refused.retain(|r| r.ost != ost);
    }
    fn set_opening(&mut self, known: KnownOpening) {
        match self.openings.binary_search_by_key(&known.ost, |k| k.ost) {
            Ok(i) => self.openings[i] = known,
            Err(i) => self.openings.insert(i, known),
        }
    }
    /// Objects of an OST behind `after`, up to `through`, are lost.
    pub(crate) fn lose(&mut self, ost: OstIndex, after: u32, through: u32) {
        let touches = |l: &LostObjects| l.ost == ost && l.after <= through && after <= l.through;
        let mut all = LostObjects { ost, through, after };
        for l in self.lost.iter().filter(|l| touches(l)) {
            all = LostObjects { ost, through: all.through.max(l.through), after: all.after.min(l.after) };
        }
        self.lost.retain(|l| !touches(l));
        let at = self.lost.partition_point(|l| (l.ost, l.after) < (ost, all.after));
        self.lost.insert(at, all);
    }
    /// The last object of an OST that is lost; 0: none is known to be.
    #[must_use]
    pub fn lost_through(&self, ost: OstIndex) -> u32 {
        self.lost.iter().filter(|l| l.ost == ost).map(|l| l.through).max().unwrap_or(0)
    }
    /// Whether an object of an OST is lost.
    #[must_use]
    pub fn is_lost(&self, ost: OstIndex, object: u32) -> bool {
        self.lost.iter().any(|l| l.ost == ost && l.after < object && object <= l.through)
    }
    fn known(&self, ost: OstIndex) -> KnownOpening {
        self.opening(ost).cloned().unwrap_or(KnownOpening { ost, ..KnownOpening::default() })
    }
    /// Why a store is not let in as that of an OST which had `had`: it is an older copy that nobody accepted. It has made objects up to
    /// `last_object`, and tells these openings, of which the last one is new.
    #[must_use]
    pub fn refusal(&self, ost: OstIndex, openings: &[Opening], last_object: u32, had: Stable) -> Option<RegisterError> {
        let (known, now) = (self.known(ost), openings.last()?);
        let has = Stable { object: last_object, committed: now.committed };
        let is_behind = has.object < had.object || has.committed < had.committed;
        let is_accepted = known.accepted != 0 && openings.iter().any(|o| o.mark == known.accepted);
        let (seen, theirs, mark) = (known.boot, now.boot, now.mark);
        ((is_behind || !descends(openings, &known)) && !is_accepted).then_some(RegisterError::Older {
            ost,
            seen,
            theirs,
            had,
            has,
            mark,
        })
    }
    /// Lets the store of an OST of the map in, which had `had`; whether that changed the map.
    ///
    /// # Errors
    /// It is an older copy.
    pub(crate) fn admit(&mut self, q: &RegisterRequest, had: Stable) -> Result<bool, RegisterError> {
        let ost = q.entry.ost;
        let Some(now) = q.openings.last().filter(|_| !types::planted!("older-copy-let-in")) else { return Ok(false) };
        if self.known(ost).mark == now.mark {
            // The same question again: objects may have been made since it was written.
            return Ok(false);
        }
        if let Some(older) = self.refusal(ost, &q.openings, q.last_object, had) {
            return Err(older);
        }
        if q.last_object < had.object {
            // It was accepted.
            self.lose(ost, q.last_object, had.object);
        }
        self.refused.retain(|r| r.ost != ost);
        self.set_opening(KnownOpening { ost, boot: now.boot, mark: now.mark, accepted: 0 });
        Ok(true)
    }
}

impl ConfigService {
    /// Whether the opening of an OST's store with this mark was let in; 0: it has none.
    pub(crate) fn is_admitted(&self, ost: OstIndex, mark: u64) -> bool {
        let map = self.map.borrow();
        let known = map.opening(ost).map_or(0, |k| k.mark);
        mark == 0 || known == 0 || known == mark || types::planted!("older-copy-let-in")
    }
    /// An OST is not let in; whether that is news.
    pub(crate) fn refuse(&self, refused: RefusedOst) -> bool {
        let mut map = self.map.borrow_mut();
        if map.refused.contains(&refused) {
            return false;
        }
        map.refused.retain(|r| r.ost != refused.ost);
        let at = map.refused.partition_point(|r| r.ost < refused.ost);
        map.refused.insert(at, refused);
        drop(map);
        self.told_otherwise();
        true
    }
    /// The right store of an OST is served; whether another one was refused.
    pub(crate) fn pardon(&self, ost: OstIndex) -> bool {
        let mut map = self.map.borrow_mut();
        let before = map.refused.len();
        map.refused.retain(|r| r.ost != ost);
        let news = map.refused.len() < before;
        drop(map);
        if news {
            self.told_otherwise();
        }
        news
    }
    /// The copy that was refused last is let in when it comes again.
    ///
    /// # Errors
    /// None was refused.
    pub(crate) fn accept_older(&self, osts: &[OstIndex]) -> Result<(), MapError> {
        let [ost] = *osts else { return Err(MapError::Nothing) };
        if !self.has_ost(ost) {
            return Err(MapError::NoOst(ost));
        }
        let mut map = self.map.borrow_mut();
        let refused = map.refused.iter().find(|r| r.ost == ost).map(|r| r.mark);
        let accepted = refused.ok_or(MapError::NotRefused(ost))?;
        let known = map.opening(ost).cloned().unwrap_or(KnownOpening { ost, ..KnownOpening::default() });
        map.set_opening(KnownOpening { accepted, ..known });
        map.epoch += 1;
        Ok(())
    }
}
