//! Reads and writes by io_submit(2), as Linux's FUSE sends them (`fuse_direct_IO`): in the background, past the page cache.
use std::rc::Rc;

use fuse::abi::{WriteOut, opcode};
use rt::sync::join_all;
use zerocopy::IntoBytes;

use crate::conn::{Caller, parse};
use crate::file::{File, write_in};
use crate::kernel::Kernel;

impl Kernel {
    /// read(2) at an offset, or by io_submit(2).
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn read_as(
        self: &Rc<Self>,
        asynchronous: bool,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        len: u64,
    ) -> Result<Vec<u8>, i32> {
        match asynchronous {
            true => self.read_async(caller, file, offset, len).await,
            false => self.read(caller, file, offset, len).await,
        }
    }

    /// read(2) by io_submit(2), to its end.
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn read_async(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        len: u64,
    ) -> Result<Vec<u8>, i32> {
        self.conn.pause().await;
        if !file.is_direct() {
            return self.read_cached(caller, file, offset, len).await;
        }
        let _submits = caller.submits();
        self.read_past_cache(caller, file, (offset, len), true).await
    }

    /// write(2), or by io_submit(2).
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn write_as(
        self: &Rc<Self>,
        asynchronous: bool,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        data: &[u8],
    ) -> Result<u64, i32> {
        match asynchronous {
            true => self.write_async(caller, file, offset, Ok(data)).await,
            false => self.write(caller, file, offset, data).await,
        }
    }

    /// write(2) by io_submit(2), to its end: pages are dropped when it was sent, not when it was answered, and what does not make the file
    /// longer keeps the inode's lock no longer either. One that would, and fails, sets the size that this kernel believes in
    /// (`fuse_do_truncate`). `data`: or so many bytes from where no memory is.
    ///
    /// # Errors
    /// What the daemon answers; EFAULT.
    pub async fn write_async(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        data: Result<&[u8], u64>,
    ) -> Result<u64, i32> {
        self.conn.pause().await;
        let _submits = caller.submits();
        let inode = &file.inode;
        let len = data.map_or_else(|len| len, |data| data.len() as u64);
        let mut guard = Some(self.write_lock(file, offset, len).await);
        let offset = if file.flags & libc::O_APPEND as u32 != 0 { inode.size.get() } else { offset };
        let extends = offset + len > inode.size.get();
        self.write_and_wait(inode, offset, offset + len).await;
        self.invalidate(inode, offset, offset + len).await;
        let sent = data.map_err(|_| libc::EFAULT).map(|data| self.submit(caller, file, offset, data));
        if sent.is_ok() {
            self.invalidate(inode, offset, offset + len).await;
        }
        inode.expire();
        if !extends {
            guard.take();
        }
        let done = match sent {
            Ok(answers) => answers.await,
            Err(e) => Err(e),
        };
        self.conn.pause().await;
        if done.is_ok() {
            inode.version.set(self.next_version());
        }
        if extends {
            inode.version.set(self.next_version());
            inode.expire();
            match done {
                Ok(()) => inode.size.set(inode.size.get().max(offset + len)),
                Err(_) => drop(self.set_size(caller, inode, Some(file), inode.size.get()).await),
            }
        }
        drop(guard);
        done.map(|()| len)
    }

    /// Sends what is written in the background, all of it; the end of all answers. A part that is not written whole fails.
    fn submit(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        data: &[u8],
    ) -> impl Future<Output = Result<(), i32>> + use<> {
        let most = self.conn.agreed.get().max_write.max(1);
        let mut answers = Vec::new();
        for (i, part) in data.chunks(most as usize).enumerate() {
            let arg = write_in(caller, file, offset + i as u64 * most, part);
            let size = part.len() as u32;
            let answer = self.conn.in_line(opcode::WRITE, file.inode.nodeid, &[arg.as_bytes(), part]);
            answers.push(async move {
                let out = parse::<WriteOut>(&answer.await?)?;
                if out.size == size { Ok(()) } else { Err(libc::EIO) }
            });
        }
        async move { join_all(answers).await.into_iter().collect() }
    }
}
