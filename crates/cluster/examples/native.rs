//! How long a cached read of 4 KiB takes natively and with pread(2) through FUSE, on a mount that is there, in one run:
//! `native FILE [READS]`. FILE is made when it is missing. Opened for reading and writing, so that the kernel keeps no pages.
use std::error::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

/// Nanoseconds of one read, best of five rounds.
fn measure(reads: u64, mut read: impl FnMut(&mut [u8], u64)) -> u128 {
    let mut bytes = [0u8; BLOCK];
    let round = |read: &mut dyn FnMut(&mut [u8], u64), bytes: &mut [u8]| {
        let began = Instant::now();
        for i in 0..reads {
            read(bytes, i % BLOCKS * BLOCK as u64);
        }
        began.elapsed().as_nanos() / u128::from(reads.max(1))
    };
    (0..5).map(|_| round(&mut read, &mut bytes)).min().unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("native FILE [READS]")?;
    let reads: u64 = words.next().map_or(Ok(20_000), |w| w.parse())?;
    let file = native::File::open(Path::new(&path), libc::O_RDWR | libc::O_CREAT, 0o644)?;
    file.pwrite(&vec![7; BLOCK * BLOCKS as usize], 0)?;
    if !file.is_native() {
        return Err("no native path there".into());
    }
    let natively = measure(reads, |bytes, at| {
        assert_eq!(file.pread(bytes, at).ok(), Some(BLOCK), "a native read");
    });
    let kernel = measure(reads, |bytes, at| {
        // SAFETY: the buffer is as long as the call is told.
        let n = unsafe { libc::pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), at as i64) };
        assert_eq!(n, BLOCK as isize, "a read through the kernel");
    });
    println!("cached pread of {BLOCK} bytes: native {natively} ns, through FUSE {kernel} ns");
    Ok(())
}
