//! Lock modes and which of them may be held together.
//!
//! Source: the six modes of the VMS distributed lock manager, which the field's file systems share, plus GROUP.
use core::fmt;

/// How a lock may be used. Values are the ones of the field's wire protocols (one bit each).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum LockMode {
    /// Exclusive: nobody else holds anything but NL.
    Ex = 1,
    /// Protected write: the only writer; others may hold CR.
    Pw = 2,
    /// Protected read: others may read too, nobody writes.
    Pr = 4,
    /// Concurrent write: others may write too, nobody reads protected.
    Cw = 8,
    /// Concurrent read: conflicts with EX only (and with GROUP).
    Cr = 16,
    /// Null: conflicts with nothing; a placeholder.
    #[default]
    Nl = 32,
    /// Group: shared by all holders of the same group id, whatever they do; conflicts with all else but NL.
    Group = 64,
}

const EX: u8 = LockMode::Ex as u8;
const PW: u8 = LockMode::Pw as u8;
const PR: u8 = LockMode::Pr as u8;
const CW: u8 = LockMode::Cw as u8;
const CR: u8 = LockMode::Cr as u8;
const GROUP: u8 = LockMode::Group as u8;

impl LockMode {
    /// Every mode, strongest first, in the order of [`LockMode::index`].
    pub const ALL: [LockMode; 7] =
        [LockMode::Ex, LockMode::Pw, LockMode::Pr, LockMode::Cw, LockMode::Cr, LockMode::Nl, LockMode::Group];

    /// The set of modes that another holder must not have, as OR of mode values.
    /// GROUP is listed against itself: whether two group locks agree is decided by their group ids.
    #[must_use]
    pub const fn conflicts(self) -> u8 {
        match self {
            LockMode::Ex => EX | PW | PR | CW | CR | GROUP,
            LockMode::Pw => EX | PW | PR | CW | GROUP,
            LockMode::Pr => EX | PW | CW | GROUP,
            LockMode::Cw => EX | PW | PR | GROUP,
            LockMode::Cr => EX | GROUP,
            LockMode::Nl => 0,
            LockMode::Group => EX | PW | PR | CW | CR | GROUP,
        }
    }

    /// Whether two holders may have `self` and `other` on the same bytes or bits (group ids not looked at).
    #[must_use]
    pub const fn compatible(self, other: LockMode) -> bool {
        self.conflicts() & other as u8 == 0
    }

    /// Whether a holder of `self` may do everything that `needed` allows: it shuts out at least the same modes.
    /// GROUP covers every mode but itself only for the one who asks with the same group id.
    #[must_use]
    pub const fn covers(self, needed: LockMode) -> bool {
        if matches!(self, LockMode::Group) || matches!(needed, LockMode::Group) {
            return matches!((self, needed), (LockMode::Group, LockMode::Group));
        }
        match needed {
            LockMode::Nl => true,
            LockMode::Cr => !matches!(self, LockMode::Nl),
            LockMode::Cw => matches!(self, LockMode::Cw | LockMode::Pw | LockMode::Ex),
            LockMode::Pr => matches!(self, LockMode::Pr | LockMode::Pw | LockMode::Ex),
            LockMode::Pw => matches!(self, LockMode::Pw | LockMode::Ex),
            LockMode::Ex => matches!(self, LockMode::Ex),
            LockMode::Group => false,
        }
    }

    /// Whether the holder may change what the lock covers.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, LockMode::Ex | LockMode::Pw | LockMode::Cw | LockMode::Group)
    }

    /// Position in [`LockMode::ALL`], 0..7.
    #[must_use]
    pub const fn index(self) -> usize {
        (self as u8).trailing_zeros() as usize
    }

    /// The mode of a wire value; `None` when it is not exactly one mode.
    #[must_use]
    pub const fn from_value(value: u8) -> Option<LockMode> {
        if value.count_ones() == 1 && value <= GROUP { Some(Self::ALL[value.trailing_zeros() as usize]) } else { None }
    }

    /// The modes of a set, strongest first.
    pub fn each(set: u8) -> impl Iterator<Item = LockMode> {
        Self::ALL.into_iter().filter(move |m| *m as u8 & set != 0)
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["EX", "PW", "PR", "CW", "CR", "NL", "GROUP"][self.index()])
    }
}

#[cfg(test)]
mod tests {
    use super::LockMode::{self, *};

    #[test]
    fn compatibility_is_the_published_matrix_and_symmetric() {
        // Rows and columns: EX PW PR CW CR NL GROUP.
        let matrix = ["0000010", "0000110", "0010110", "0001110", "0111110", "1111111", "0000010"];
        for (i, a) in LockMode::ALL.into_iter().enumerate() {
            for (j, b) in LockMode::ALL.into_iter().enumerate() {
                assert_eq!(a.compatible(b), matrix[i].as_bytes()[j] == b'1', "{a} against {b}");
                assert_eq!(a.compatible(b), b.compatible(a));
            }
        }
    }

    #[test]
    fn a_covering_mode_shuts_out_all_that_the_covered_one_does() {
        for a in LockMode::ALL {
            for b in LockMode::ALL {
                if a.covers(b) {
                    assert_eq!(b.conflicts() & !a.conflicts(), 0, "{a} covers {b}");
                }
            }
        }
        assert!(Pw.covers(Pr) && Ex.covers(Pw) && Pw.covers(Cw) && !Pr.covers(Cw) && !Cw.covers(Pr));
        assert!(Group.covers(Group) && !Group.covers(Pw));
    }

    #[test]
    fn values_that_are_not_one_mode_are_refused() {
        assert_eq!(LockMode::from_value(2), Some(Pw));
        for bad in [0, 3, 128, 255] {
            assert_eq!(LockMode::from_value(bad), None);
        }
    }
}
