//! `lfs migrate`: a file gets other objects. Which file is copied to which, whose objects it gets (`data/migrate.rs`), and what users advised about
//! the old ones.
use std::rc::Rc;

use types::{Fid, FsError};
use wire::Bytes;
use wire::mdt::{Cred, OpenRequest};
use wire::ost::AdvisedRange;

use crate::client::Client;
use crate::data::{Migrate, Pace};
use crate::goes_on::goes_on;
use crate::inode::Inode;
use crate::open_file::{O_DIRECT, O_EXCL, O_NOATIME, OpenFile};

const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_TMPFILE: u32 = 0o20_200_000;

/// An open ends when this does.
struct Opened(Rc<Client>, Rc<OpenFile>);
impl Drop for Opened {
    fn drop(&mut self) {
        self.0.unwanted(&self.1);
    }
}

/// A nameless file goes when this does, with the objects that it has then.
struct Nameless(Rc<Client>, Rc<OpenFile>);
impl Drop for Nameless {
    fn drop(&mut self) {
        let (client, file) = (self.0.clone(), self.1.clone());
        // It has nothing to tell.
        file.dirty.set(false);
        self.0.rt().clone().spawn(async move {
            let _ = client.release(&file).await;
            // Nor does anybody know it.
            client.meta.may_be_unnamed(&file.inode);
        });
    }
}

impl Client {
    /// Gives a file other objects while everybody works with it. Bytes that were copied. `stopped` is asked now and then.
    ///
    /// Cancel: a part may be done, of the copy: the file has its old objects or its new ones.
    ///
    /// # Errors
    /// EBUSY when somebody else migrates it, changed it where that ends it, or servers did not answer in time; EACCES without the right to
    /// write to it; EINVAL for what is not a file; EINTR when it was stopped; ENODATA for a file without objects. Nothing has changed then.
    pub async fn migrate(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        how: &Migrate,
        stopped: &dyn Fn() -> bool,
    ) -> Result<u64, FsError> {
        let attr = self.getattr(cred, inode.fid, None).await?.attr;
        if attr.mode & 0o170_000 != 0o100_000 {
            return Err(FsError::Invalid);
        }
        if cred.uid != 0 {
            // The exchange asks the same; but who may not write shall not have anything copied, nor locks taken, either.
            drop(Opened(self.clone(), self.open(cred, inode.fid, O_WRONLY).await?));
        }
        // What servers refused does not count, for the new objects' servers either.
        let mut advised = self.advised_rows(inode, AdvisedRange::is_taken).await?;
        // What others outdid comes first, so that it is outdone again.
        advised.sort_by_key(|row| !row.is_outdone());
        // A copy counts for the file's owner; for root, who is not limited, until the exchange gives its objects to the file.
        let (uid, gid) = if cred.uid == 0 { (0, 0) } else { (attr.uid, attr.gid) };
        let own = Cred { uid, gid, caps: 3, ..Cred::default() };
        let from = Opened(self.clone(), self.open(&own, inode.fid, O_DIRECT | O_NOATIME).await?);
        let done = self.migrate_open(cred, &from.1, &own, how, stopped).await;
        drop(from);
        let bytes = done?;
        for row in advised {
            if let Err(e) = self.advise_as(inode, (row.owner, row.since), (row.advice, true), row.extent).await {
                tracing::info!(file = %inode.fid, "what was advised about it was not taken for its new objects: {e}");
            }
        }
        Ok(bytes)
    }

    async fn migrate_open(
        self: &Rc<Self>,
        cred: &Cred,
        from: &Rc<OpenFile>,
        own: &Cred,
        how: &Migrate,
        stopped: &dyn Fn() -> bool,
    ) -> Result<u64, FsError> {
        let nameless = |parent| OpenRequest {
            cred: own.clone(),
            parent,
            flags: O_TMPFILE | O_RDWR | O_EXCL | O_DIRECT,
            mode: 0o600,
            layout: Bytes::from(&how.layout[..]),
            ..OpenRequest::default()
        };
        // What its directory gives to new files counts for what the wish leaves open.
        let dir = from.inode.names.borrow().iter().next().map_or(Fid::ROOT, |(dir, _)| *dir);
        let (me, here, root) = (self.clone(), nameless(dir), nameless(Fid::ROOT));
        let made = async move {
            let made = match me.meta.open_with(here).await {
                Err(FsError::NotFound | FsError::Stale) if dir != Fid::ROOT => me.meta.open_with(root).await,
                made => made,
            };
            made.map(|(file, _)| Nameless(me, file))
        };
        let to = goes_on(self.sessions.alone(), made).await?;
        let pace = Pace::new(&self.data, how.bytes_per_s, stopped);
        self.data.migrate((from, &to.1), how, cred, &pace).await
    }
}
