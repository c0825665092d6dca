//! How long cached reads of 4 KiB and 1 MiB take natively and with pread(2) through FUSE, on a mount that is there, in one run:
//! `native FILE [READS]`. FILE is made when it is missing. Opened for reading and writing, so that the kernel keeps no pages.
use std::error::Error;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

const BLOCK: usize = 4096;
const LARGE: usize = 1 << 20;
const BLOCKS: u64 = (LARGE / BLOCK) as u64;

/// Nanoseconds of one call, best of five rounds.
fn measure(calls: u64, mut call: impl FnMut(u64)) -> u128 {
    let mut round = || {
        let began = Instant::now();
        (0..calls).for_each(&mut call);
        began.elapsed().as_nanos() / u128::from(calls.max(1))
    };
    (0..5).map(|_| round()).min().unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("native FILE [READS]")?;
    let reads: u64 = words.next().map_or(Ok(20_000), |w| w.parse())?;
    let large = reads / 100 + 1;
    let file = native::File::open(Path::new(&path), libc::O_RDWR | libc::O_CREAT, 0o644)?;
    let (mut bytes, other) = (vec![7; LARGE], vec![8; LARGE]);
    file.pwrite(&bytes, 0)?;
    if !file.is_native() {
        return Err("no native path there".into());
    }
    let at = |i: u64| i % BLOCKS * BLOCK as u64;
    let native = |bytes: &mut [u8], at| assert_eq!(file.pread(bytes, at).ok(), Some(bytes.len()), "a native read");
    let kernel = |bytes: &mut [u8], at: u64| {
        // SAFETY: the buffer is as long as the call is told.
        let n = unsafe { libc::pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), at as i64) };
        assert_eq!(n, bytes.len() as isize, "a read through the kernel");
    };
    let small = [
        measure(reads, |i| native(&mut bytes[..BLOCK], at(i))),
        measure(reads, |i| kernel(&mut bytes[..BLOCK], at(i))),
        measure(reads, |i| assert!(file.pwrite(&other[..BLOCK], at(i)).is_ok(), "a native write")),
    ];
    println!("4 KiB, ns: native {}, through FUSE {}, native write {}", small[0], small[1], small[2]);
    let large = [
        measure(large, |_| native(&mut bytes, 0)),
        measure(large, |_| assert_eq!(file.pread_with(LARGE, 0, |lent| lent.len()).ok(), Some(LARGE), "a native read")),
        measure(large, |_| kernel(&mut bytes, 0)),
        measure(large, |_| black_box(&mut bytes).copy_from_slice(black_box(&other))),
    ];
    let [native, lent, kernel, copy] = large.map(|ns| ns / 1000);
    println!("1 MiB, us: native {native}, lent in place {lent}, through FUSE {kernel}, memcpy {copy}");
    Ok(())
}
