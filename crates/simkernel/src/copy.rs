//! copy_file_range(2), as Linux's FUSE carries it out: the source is written back first, then the target; the daemon copies;
//! then whole pages of the target are dropped, stored to or not.
use std::rc::Rc;

use fuse::abi::{CopyFileRangeIn, WriteOut, opcode};
use zerocopy::IntoBytes;

use crate::conn::{Caller, parse};
use crate::file::File;
use crate::kernel::Kernel;
use crate::pages::PAGE;

impl Kernel {
    /// Copies up to `len` bytes from one file to another; gives how many. What lies behind the end that this kernel knows
    /// of the source is not copied.
    ///
    /// # Errors
    /// What COPY_FILE_RANGE answers.
    pub async fn copy_range(
        self: &Rc<Self>,
        caller: &Caller,
        (from, from_at): (&Rc<File>, u64),
        (to, to_at): (&Rc<File>, u64),
        len: u64,
    ) -> Result<u64, i32> {
        self.conn.pause().await;
        let len = len.min(from.inode.size.get().saturating_sub(from_at));
        if len == 0 {
            return Ok(0);
        }
        {
            let _guard = from.inode.lock.exclusive().await;
            self.write_and_wait(&from.inode, from_at, from_at + len).await;
            self.sync_writes(&from.inode).await;
        }
        let inode = &to.inode;
        let _guard = inode.lock.exclusive().await;
        self.write_and_wait(inode, to_at, to_at + len).await;
        self.sync_writes(inode).await;
        let grows = to_at + len > inode.size.get();
        inode.unstable.set(inode.unstable.get() || grows);
        let arg = CopyFileRangeIn {
            fh_in: from.fh,
            off_in: from_at,
            nodeid_out: inode.nodeid,
            fh_out: to.fh,
            off_out: to_at,
            len,
            flags: 0,
        };
        let answer = self.conn.request(caller, opcode::COPY_FILE_RANGE, from.inode.nodeid, &[arg.as_bytes()]).await;
        let copied = answer.and_then(|a| parse::<WriteOut>(&a)).map(|out| u64::from(out.size));
        if let Ok(copied) = copied {
            if copied > len {
                self.conn.fault(format!("COPY_FILE_RANGE of {len} bytes answered with {copied}"));
            }
            let (first, end) = (to_at / PAGE * PAGE, (to_at + copied).next_multiple_of(PAGE));
            self.drop_range(inode, first, end).await;
            inode.version.set(self.next_version());
            inode.size.set(inode.size.get().max(to_at + copied));
            inode.expire();
        }
        if grows {
            inode.unstable.set(false);
        }
        copied
    }
}
