//! Reads and writes that come past a kernel in front of this client: it keeps of these files what it was told, and has to
//! hear of every change before the change is answered; and stores to its mappings come back before anything is read.
//!
//! It is the place of a program that asks, which holds no lock of a kernel: so it may wait for drops (`front`).
use std::rc::Rc;

use frames::Bulk;
use types::FsError;

use crate::client::Client;
use crate::open_file::OpenFile;

/// A change of a file of which the kernel hears, whatever becomes of who made it.
struct Hears {
    client: Rc<Client>,
    file: Rc<OpenFile>,
    has_heard: bool,
}
impl Drop for Hears {
    fn drop(&mut self) {
        if !self.has_heard {
            let (client, file) = (self.client.clone(), self.file.clone());
            self.client.rt().spawn(async move { client.kernel_hears(&file, 0).await });
        }
    }
}

impl Client {
    /// [`crate::Data::read`] for a program that asks past the kernel.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// As [`crate::Data::read`].
    pub async fn read_aside(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, len: usize) -> Result<Bulk, FsError> {
        if file.inode().front.may_have_stores() {
            file.inode().front.drop_kernel_pages().await;
        }
        let accessed = file.inode.atime.get();
        let read = self.data.read(file, offset, len).await;
        if file.inode.atime.get() != accessed {
            self.common.kernel.attributes_changed(file.fid()).await;
        }
        read
    }

    /// [`crate::Data::write_part`] for a program that asks past the kernel; gives how many bytes were written. When it is done,
    /// nothing that a kernel of this client keeps of the file is older.
    ///
    /// Cancel: a part may be done, of which the kernel hears.
    ///
    /// # Errors
    /// As [`crate::Data::write_part`].
    pub async fn write_aside(self: &Rc<Self>, file: &Rc<OpenFile>, offset: u64, data: &[u8]) -> Result<u64, FsError> {
        if !file.writes() {
            return Err(FsError::BadHandle);
        }
        let kills = !file.cred().keeps_set_ids();
        if self.has_privileges(file, kills) {
            self.drop_privileges(file, file.cred(), kills).await?;
        }
        // A write that failed, or was dropped, may have changed a part.
        let mut hears = Hears { client: self.clone(), file: file.clone(), has_heard: false };
        let written = self.data.write_part(file, offset, data, None).await;
        let end = written.as_ref().ok().filter(|w| w.len > 0).map_or(0, |w| w.at + w.len);
        self.kernel_hears(file, end).await;
        hears.has_heard = true;
        written.map(|w| w.len)
    }

    /// The bytes of a file changed past the kernel; it is `end` bytes long at least.
    ///
    /// A mapping never asks for a size: behind the one that the kernel believes in a fault is SIGBUS, and a store is not written back. So
    /// where the file may be mapped the kernel is told before the write is answered.
    async fn kernel_hears(&self, file: &OpenFile, end: u64) {
        let (front, kernel) = (&file.inode.front, &self.common.kernel);
        if front.may_have_pages() {
            front.drop_kernel_pages().await;
        }
        let told = kernel.cache().told();
        // A drop costs more than the write, and one is enough until a kernel is told something again.
        if told.is_none() || told != front.told_nothing_since.get() {
            kernel.attributes_changed(file.fid()).await;
            front.told_nothing_since.set(told);
            front.reaches.set(0);
        }
        if end > front.reaches.get() && front.may_be_mapped() {
            let reads = front.reads_begun();
            kernel.cache().lengthen(file.fid(), end).await;
            if told.is_some() && told == front.told_nothing_since.get() && reads == front.reads_begun() {
                front.reaches.set(front.reaches.get().max(end));
            }
        }
    }

    /// [`crate::Data::fsync`] for a program that asks past the kernel: what it stored to mappings is synced, too.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// As [`crate::Data::fsync`].
    pub async fn fsync_aside(self: &Rc<Self>, file: &Rc<OpenFile>, data_only: bool) -> Result<(), FsError> {
        if file.inode().front.may_have_stores() {
            file.inode().front.drop_kernel_pages().await;
        }
        self.data.fsync(file, data_only).await
    }
}
