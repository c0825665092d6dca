//! Changes that go on alone ([`crate::goes_on`]): their program was killed, the kernel in front was told that the call was interrupted, and
//! nobody tells it what became of it. What it believes of names and attributes rests on locks of this client, which no change of ours calls
//! back; so it is told here as it is of changes by others. It also asks for names while they change, for it holds the locks of its directories
//! no longer: no answer from before is remembered.
use std::rc::Rc;

use types::Fid;

use super::Meta;
use crate::inode::Inode;

/// What a change may leave a kernel with that is not so any more ([`Meta::kernel_missed`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Missed {
    /// Directories of which it changes names; zero: none.
    pub dirs: [Fid; 2],
    /// Whose attributes it changes, besides those of the directories and of inodes that lose names; zero: none.
    pub inode: Fid,
    /// It changes the bytes of that inode, too.
    pub bytes: bool,
}

impl Missed {
    /// Of a change of names in a directory.
    #[must_use]
    pub fn names(dir: Fid) -> Missed {
        Missed { dirs: [dir, Fid::ZERO], ..Missed::default() }
    }
    /// Of a change of attributes.
    #[must_use]
    pub fn attributes(inode: Fid) -> Missed {
        Missed { inode, ..Missed::default() }
    }
    /// Of a change of bytes.
    #[must_use]
    pub fn bytes(inode: Fid) -> Missed {
        Missed { inode, bytes: true, ..Missed::default() }
    }
}

impl Meta {
    /// A change has ended, well or not, after its kernel was told that it was interrupted: the kernel asks again for all that it may have
    /// changed. What goes at once is what this client remembers of the directories' names.
    ///
    /// Cancel: a part may be done.
    pub async fn kernel_missed(self: &Rc<Self>, missed: Missed) {
        let dirs: Vec<Rc<Inode>> = missed.dirs.iter().filter_map(|dir| self.known_inode(*dir)).collect();
        let mut listings = Vec::new();
        for dir in &dirs {
            dir.forget_children();
            if dir.front.misses_names() {
                listings.push(dir.fid);
            }
        }
        let mut names = Vec::new();
        if !missed.dirs[0].is_zero() {
            names.extend(self.dentries.borrow().keys().filter(|(dir, _)| missed.dirs.contains(dir)).cloned());
            names.iter().for_each(|(dir, name)| _ = self.unlearn_name(*dir, name));
            self.common.kernel.cache().drop_names().await;
        }
        for dir in listings {
            self.common.kernel.drop_listing(dir).await;
        }
        for inode in dirs.iter().cloned().chain(self.known_inode(missed.inode)) {
            inode.front.stops_believing();
            inode.front.forget_attributes().await;
        }
        if missed.bytes
            && let Some(inode) = self.known_inode(missed.inode)
        {
            inode.front.drop_kernel_pages().await;
        }
    }
    /// How often names of a directory changed without the kernel that asked for it being told.
    pub(super) fn names_missed(&self, dir: Fid) -> Option<u64> {
        self.known_inode(dir).map(|d| d.front.names_missed())
    }
    /// A change of ours was answered that concerns an inode. As long as any goes on alone it may be that one.
    pub(crate) fn may_be_missed(&self, inode: &Inode) {
        if self.sessions.alone().count() > 0 {
            let front = inode.front.clone();
            front.stops_believing();
            self.rt.spawn(async move { front.forget_attributes().await });
        }
    }
}
