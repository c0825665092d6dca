//! Files of a host's disk as nodes and embedded databases use them.
use std::io;
use std::rc::Rc;

use frames::Bulk;
use rt::{BlockingFile, DiskFile, LocalFuture, World};
use types::Duration;

use crate::disk::{Access, Disk, DiskRef, FileId};
use crate::host::ProcessWorld;

/// How long operations take.
#[derive(Clone, Copy)]
pub(crate) struct DiskTimes {
    pub min_ns: u64,
    pub max_ns: u64,
    pub sync_ns: u64,
    pub bytes_per_s: u64,
}

impl DiskTimes {
    /// Nanoseconds of an operation of `bytes`; `draw` is uniform below its argument.
    pub fn of(&self, access: Access, bytes: u64, draw: impl FnOnce(u64) -> u64) -> u64 {
        let seek = self.min_ns + draw(self.max_ns.saturating_sub(self.min_ns).max(1));
        let sync = if access == Access::Sync { self.sync_ns } else { 0 };
        let move_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s.max(1));
        seek + sync + move_ns as u64
    }
}

/// A file for data: operations take time and overlap.
pub(crate) struct DataFile {
    pub world: ProcessWorld,
    pub disk: DiskRef,
    pub file: FileId,
    /// One reference while it is open.
    pub open: Rc<()>,
}

/// A write that is on its way. Whoever waits for it may go, as tasks of a group do that ends: then some of it is on the disk at once,
/// for nothing of it may come later.
struct OnItsWay {
    disk: DiskRef,
    id: u64,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.disk.lock().settle_one(self.id);
    }
}

impl DataFile {
    fn process(&self) -> u64 {
        self.world.process.id
    }
    fn pause(&self, access: Access, bytes: u64) -> LocalFuture<()> {
        let ns = self.world.disk_time(access, bytes);
        self.world.sleep_until(self.world.now() + Duration::from_nanos(ns))
    }
    fn later<T: 'static>(
        &self,
        access: Access,
        bytes: u64,
        work: impl FnOnce(&mut Disk) -> io::Result<T> + 'static,
    ) -> LocalFuture<io::Result<T>> {
        let (pause, disk) = (self.pause(access, bytes), self.disk.clone());
        Box::pin(async move {
            pause.await;
            work(&mut disk.lock())
        })
    }
}

/// What a read of a data file brings, flipped bits included.
fn read_into(disk: &mut Disk, process: u64, file: FileId, offset: u64, into: &mut Bulk) -> io::Result<usize> {
    disk.begin(process, Access::Read)?;
    let rots = disk.rot > 0;
    let image = disk.image(process, file)?;
    let n = if rots {
        let mut bytes = vec![0; into.len()];
        let n = image.read(offset, &mut bytes);
        disk.decay(&mut bytes[..n]);
        into.copy_in(0, &bytes[..n]);
        n
    } else {
        image.each(offset, into.len() as u64, |at, bytes| into.copy_in(at, bytes))
    };
    disk.work.disk_bytes += n as u64;
    Ok(n)
}

impl DiskFile for DataFile {
    fn read_at(&self, offset: u64, mut into: Bulk) -> LocalFuture<(io::Result<usize>, Bulk)> {
        let (pause, disk) = (self.pause(Access::Read, into.len() as u64), self.disk.clone());
        let (process, file) = (self.process(), self.file);
        Box::pin(async move {
            pause.await;
            let mut disk = disk.lock();
            let read = read_into(&mut disk, process, file, offset, &mut into);
            drop(disk);
            (read, into)
        })
    }
    fn write_at(&self, offset: u64, from: Bulk) -> LocalFuture<io::Result<()>> {
        let bytes = from.len() as u64;
        let id = self.disk.lock().submit(self.file, offset, from.to_vec());
        let process = self.process();
        let on_its_way = OnItsWay { disk: self.disk.clone(), id };
        let landed = self.later(Access::Write, bytes, move |disk| disk.land(process, id));
        Box::pin(async move {
            let _on_its_way = on_its_way;
            landed.await
        })
    }
    fn sync(&self) -> LocalFuture<io::Result<()>> {
        let (process, file) = (self.process(), self.file);
        self.later(Access::Sync, 0, move |disk| disk.sync(process, file))
    }
    fn allocate(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        let (process, file) = (self.process(), self.file);
        self.later(Access::Write, 0, move |disk| {
            disk.begin(process, Access::Write)?;
            disk.allocate(process, file, offset, len)
        })
    }
    fn punch(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        let (process, file) = (self.process(), self.file);
        self.later(Access::Write, 0, move |disk| {
            disk.begin(process, Access::Write)?;
            disk.punch(process, file, offset, len)
        })
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().image(self.process(), self.file)?.len())
    }
    fn allocated(&self) -> io::Result<u64> {
        self.disk.lock().allocated(self.process(), self.file)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.lock().set_len(self.process(), self.file, len)
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        let disk = self.disk.lock();
        Ok((disk.free(), disk.capacity))
    }
    fn watch(&self) -> rt::IsOpen {
        let open = Rc::downgrade(&self.open);
        Box::new(move || open.strong_count() > 0)
    }
}

/// A file for an embedded store: operations are done at once, and what they take is added up for whoever offloaded
/// the work.
pub(crate) struct StoreFile {
    pub disk: DiskRef,
    pub process: u64,
    pub file: FileId,
    pub times: DiskTimes,
}

impl StoreFile {
    fn charge(&self, disk: &mut Disk, access: Access, bytes: u64) {
        // Half the spread: no randomness is drawn where a database decides the order of calls.
        let ns = self.times.of(access, bytes, |n| n / 2);
        // What was asked for before in the same work has waited for a disk that stands still.
        disk.accrued_ns = disk.accrued_ns.max(disk.stalled_ns()) + ns * disk.slow;
    }
}

impl BlockingFile for StoreFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut disk = self.disk.lock();
        self.charge(&mut disk, Access::Read, into.len() as u64);
        disk.begin(self.process, Access::Read)?;
        let n = disk.image(self.process, self.file)?.read(offset, into);
        disk.work.disk_bytes += n as u64;
        if n == into.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.lock();
        self.charge(&mut disk, Access::Write, from.len() as u64);
        disk.begin(self.process, Access::Write)?;
        disk.write(self.process, self.file, offset, from)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().image(self.process, self.file)?.len())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.begin(self.process, Access::Write)?;
        disk.set_len(self.process, self.file, len)
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.begin(self.process, Access::Write)?;
        disk.reserve(self.process, self.file, offset, len)
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        let disk = self.disk.lock();
        Ok((disk.free(), disk.capacity))
    }
    fn sync(&self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        self.charge(&mut disk, Access::Sync, 0);
        disk.sync(self.process, self.file)
    }
    fn forget_cached(&self) -> io::Result<()> {
        self.sync()?;
        self.disk.lock().image(self.process, self.file)?.forget_cached();
        Ok(())
    }
}
