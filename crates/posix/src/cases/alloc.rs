//! fallocate(2), lseek(2) over data and holes, copy_file_range(2).
use libc::{FALLOC_FL_KEEP_SIZE as KEEP, FALLOC_FL_PUNCH_HOLE as PUNCH, FALLOC_FL_ZERO_RANGE as ZERO};

use crate::check::{eq, fails, fails_any, pattern, same, supported, yes};
use crate::sys::*;

/// A file of 300,000 pattern bytes, and those bytes.
fn filled(d: &std::path::Path) -> Result<(std::os::fd::OwnedFd, Vec<u8>), String> {
    let fd = rw(&d.join("a"))?;
    let data = pattern(11, 300_000);
    write_all(&fd, &data)?;
    Ok((fd, data))
}

suite! { "alloc";
    fallocate_grows_with_zeros(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, b"abc")?;
        supported(fallocate(&fd, 0, 0, 100_000))?;
        let all = get(&d.join("a"))?;
        eq("size", all.len(), 100_000)?;
        same("head", &all[..3], b"abc")?;
        yes("zeros", all[3..].iter().all(|b| *b == 0))?;
    }
    fallocate_inside_changes_nothing(d) {
        let (fd, data) = filled(d)?;
        supported(fallocate(&fd, 0, 1000, 5000))?;
        same("content", &get(&d.join("a"))?, &data)?;
    }
    fallocate_keep_size_keeps_the_size(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, b"abc")?;
        supported(fallocate(&fd, KEEP, 0, 1 << 20))?;
        eq("size", fstat(&fd)?.st_size, 3)?;
        same("content", &get(&d.join("a"))?, b"abc")?;
    }
    fallocate_reserved_beyond_the_end_reads_as_zeros_later(d) {
        let fd = rw(&d.join("a"))?;
        supported(fallocate(&fd, KEEP, 0, 1 << 20))?;
        pwrite(&fd, b"x", 500_000)?;
        let all = get(&d.join("a"))?;
        yes("zeros", all[..500_000].iter().all(|b| *b == 0))?;
        eq("last", all[500_000], b'x')?;
    }
    fallocate_of_nothing_is_einval(d) {
        let fd = rw(&d.join("a"))?;
        fails(EINVAL, fallocate(&fd, 0, 0, 0))?;
        fails(EINVAL, fallocate(&fd, 0, -1, 10))?;
        fails(EINVAL, fallocate(&fd, 0, 0, -1))?;
    }
    fallocate_past_the_largest_offset_is_efbig(d) {
        let fd = rw(&d.join("a"))?;
        fails(EFBIG, fallocate(&fd, 0, i64::MAX - 10, 100))?;
    }
    fallocate_needs_a_writable_descriptor(d) {
        put(&d.join("a"), b"abc")?;
        let fd = open(&d.join("a"), O_RDONLY, 0)?;
        fails(EBADF, fallocate(&fd, 0, 0, 100))?;
    }
    fallocate_of_a_directory_is_refused(d) {
        let fd = open(d, O_RDONLY | O_DIRECTORY, 0)?;
        fails_any(&[EBADF, EISDIR, ENODEV], fallocate(&fd, 0, 0, 100))?;
    }
    punch_makes_zeros_and_keeps_the_size(d) {
        let (fd, mut data) = filled(d)?;
        for (off, len) in [(100usize, 50usize), (4096, 4096), (10_000, 100_000), (150_000, 1), (290_000, 10_000)] {
            supported(fallocate(&fd, PUNCH | KEEP, off as i64, len as i64))?;
            data[off..off + len].fill(0);
            same("content", &get(&d.join("a"))?, &data)?;
        }
        eq("size", fstat(&fd)?.st_size, 300_000)?;
    }
    punch_past_the_end_changes_nothing(d) {
        let (fd, mut data) = filled(d)?;
        supported(fallocate(&fd, PUNCH | KEEP, 400_000, 10_000))?;
        same("content", &get(&d.join("a"))?, &data)?;
        fallocate(&fd, PUNCH | KEEP, 299_000, 1 << 20)?;
        data[299_000..].fill(0);
        same("content", &get(&d.join("a"))?, &data)?;
    }
    punch_without_keep_size_is_refused(d) {
        let (fd, data) = filled(d)?;
        fails(EOPNOTSUPP, fallocate(&fd, PUNCH, 0, 4096))?;
        same("content", &get(&d.join("a"))?, &data)?;
    }
    punch_frees_space(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 4 << 20))?;
        fsync(&fd)?;
        let before = fstat(&fd)?.st_blocks;
        supported(fallocate(&fd, PUNCH | KEEP, 1 << 20, 2 << 20))?;
        fsync(&fd)?;
        let after = fstat(&fd)?.st_blocks;
        yes("blocks went down", after <= before - 2048)?;
    }
    punch_then_write_shows_the_write(d) {
        let (fd, mut data) = filled(d)?;
        supported(fallocate(&fd, PUNCH | KEEP, 0, 200_000))?;
        data[..200_000].fill(0);
        pwrite(&fd, b"hello", 70_000)?;
        data[70_000..70_005].copy_from_slice(b"hello");
        same("content", &get(&d.join("a"))?, &data)?;
    }
    zero_range_makes_zeros(d) {
        let (fd, mut data) = filled(d)?;
        for (off, len) in [(1usize, 3usize), (4096, 8192), (60_000, 100_001)] {
            supported(fallocate(&fd, ZERO, off as i64, len as i64))?;
            data[off..off + len].fill(0);
        }
        same("content", &get(&d.join("a"))?, &data)?;
    }
    zero_range_past_the_end_grows_unless_told_not_to(d) {
        let (fd, mut data) = filled(d)?;
        supported(fallocate(&fd, ZERO | KEEP, 290_000, 20_000))?;
        data[290_000..].fill(0);
        same("kept", &get(&d.join("a"))?, &data)?;
        fallocate(&fd, ZERO, 299_000, 2000)?;
        data.resize(301_000, 0);
        same("grown", &get(&d.join("a"))?, &data)?;
    }
    unknown_modes_are_refused(d) {
        let (fd, data) = filled(d)?;
        fails_any(&[EOPNOTSUPP, EINVAL], fallocate(&fd, 0x4000, 0, 4096))?;
        same("content", &get(&d.join("a"))?, &data)?;
    }
    collapse_and_insert_work_or_are_refused_whole(d) {
        let (fd, mut data) = filled(d)?;
        match fallocate(&fd, libc::FALLOC_FL_COLLAPSE_RANGE, 4096, 8192) {
            Ok(_) => { data.drain(4096..12_288); }
            Err(e) => yes("EOPNOTSUPP or EINVAL", [EOPNOTSUPP, EINVAL].contains(&e.errno))?,
        }
        same("content", &get(&d.join("a"))?, &data)?;
        match fallocate(&fd, libc::FALLOC_FL_INSERT_RANGE, 4096, 4096) {
            Ok(_) => { data.splice(4096..4096, [0; 4096]); }
            Err(e) => yes("EOPNOTSUPP or EINVAL", [EOPNOTSUPP, EINVAL].contains(&e.errno))?,
        }
        same("content", &get(&d.join("a"))?, &data)?;
    }
    fallocate_updates_mtime_when_it_changes_content(d) {
        let (fd, _) = filled(d)?;
        futimens(&fd, &[timespec { tv_sec: 1000, tv_nsec: 0 }; 2])?;
        supported(fallocate(&fd, PUNCH | KEEP, 0, 4096))?;
        yes("mtime moved", fstat(&fd)?.st_mtime > 1000)?;
    }
    seek_set_cur_end_work(d) {
        let (fd, _) = filled(d)?;
        eq("set", lseek(&fd, 10, SEEK_SET)?, 10)?;
        eq("cur", lseek(&fd, 5, SEEK_CUR)?, 15)?;
        eq("end", lseek(&fd, -1, SEEK_END)?, 299_999)?;
        eq("past the end", lseek(&fd, 1000, SEEK_END)?, 301_000)?;
        fails(EINVAL, lseek(&fd, -1, SEEK_SET))?;
        fails(EINVAL, lseek(&fd, -400_000, SEEK_END))?;
        fails(EINVAL, lseek(&fd, 0, 77))?;
        eq("unmoved", lseek(&fd, 0, SEEK_CUR)?, 301_000)?;
    }
    seek_end_follows_growth_by_others(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        for i in 1..20i64 {
            pwrite(&x, b"0123456789", (i - 1) * 10)?;
            eq("end", lseek(&y, 0, SEEK_END)?, i * 10)?;
        }
    }
    seek_data_and_hole_of_a_dense_file(d) {
        let (fd, _) = filled(d)?;
        eq("data", lseek(&fd, 0, SEEK_DATA)?, 0)?;
        eq("data inside", lseek(&fd, 12_345, SEEK_DATA)?, 12_345)?;
        eq("hole", lseek(&fd, 0, SEEK_HOLE)?, 300_000)?;
        eq("hole at the last byte", lseek(&fd, 299_999, SEEK_HOLE)?, 300_000)?;
    }
    seek_data_at_or_past_the_end_is_enxio(d) {
        let (fd, _) = filled(d)?;
        for off in [300_000, 300_001, 1 << 40] {
            fails(ENXIO, lseek(&fd, off, SEEK_DATA))?;
            fails(ENXIO, lseek(&fd, off, SEEK_HOLE))?;
        }
        fails(ENXIO, lseek(&fd, -1, SEEK_DATA))?;
    }
    seek_in_an_empty_file_is_enxio(d) {
        let fd = rw(&d.join("a"))?;
        fails(ENXIO, lseek(&fd, 0, SEEK_DATA))?;
        fails(ENXIO, lseek(&fd, 0, SEEK_HOLE))?;
    }
    seek_finds_data_after_a_hole(d) {
        let fd = rw(&d.join("a"))?;
        pwrite(&fd, &pattern(1, 65_536), 10 << 20)?;
        fsync(&fd)?;
        let data = lseek(&fd, 0, SEEK_DATA)?;
        // A file system may know no holes at all.
        yes("data begins in or before the data, never after", data <= 10 << 20)?;
        eq("hole after the data", lseek(&fd, 10 << 20, SEEK_HOLE)?, (10 << 20) + 65_536)?;
        let hole = lseek(&fd, 0, SEEK_HOLE)?;
        yes("the first hole is at 0 or at the end", hole == 0 || hole == (10 << 20) + 65_536)?;
    }
    seek_of_unflushed_data_finds_it(d) {
        let fd = rw(&d.join("a"))?;
        pwrite(&fd, b"x", 5 << 20)?;
        yes("never beyond", lseek(&fd, 0, SEEK_DATA)? <= 5 << 20)?;
        eq("there", lseek(&fd, 5 << 20, SEEK_DATA)?, 5 << 20)?;
        eq("hole at the end", lseek(&fd, 5 << 20, SEEK_HOLE)?, (5 << 20) + 1)?;
    }
    seek_walks_every_byte_of_data_of_a_sparse_file(d) {
        let fd = rw(&d.join("a"))?;
        let spots = [0i64, 3 << 20, (3 << 20) + 200_000, 9 << 20, 17 << 20];
        for (i, off) in spots.iter().enumerate() {
            pwrite(&fd, &pattern(i as u64 + 1, 70_000), *off)?;
        }
        ftruncate(&fd, 20 << 20)?;
        let mut at = 0;
        let mut found = vec![0u8; 20 << 20];
        while let Ok(data) = lseek(&fd, at, SEEK_DATA) {
            let hole = lseek(&fd, data, SEEK_HOLE)?;
            yes("a run of data is not empty", hole > data)?;
            let part = pread(&fd, (hole - data) as usize, data)?;
            found[data as usize..data as usize + part.len()].copy_from_slice(&part);
            at = hole;
        }
        same("content by its data runs", &found, &get(&d.join("a"))?)?;
    }
    seek_hole_after_punch(d) {
        let (fd, _) = filled(d)?;
        ftruncate(&fd, 4 << 20)?;
        pwrite(&fd, b"end", (4 << 20) - 3)?;
        supported(fallocate(&fd, PUNCH | KEEP, 0, 2 << 20))?;
        let data = lseek(&fd, 0, SEEK_DATA)?;
        yes("data begins no later than the last bytes", data <= (4 << 20) - 3)?;
        same("punched", &pread(&fd, 1000, 0)?, &[0; 1000])?;
    }
    seek_hole_does_not_change_the_file(d) {
        let (fd, data) = filled(d)?;
        lseek(&fd, 0, SEEK_HOLE)?;
        same("content", &get(&d.join("a"))?, &data)?;
    }
    copy_range_copies(d) {
        let (fd, data) = filled(d)?;
        let to = rw(&d.join("b"))?;
        let mut done = 0i64;
        while done < 300_000 {
            let n = copy_range(&fd, done, &to, done, 300_000 - done as usize)?;
            yes("moves on", n > 0)?;
            done += n;
        }
        same("copy", &get(&d.join("b"))?, &data)?;
    }
    copy_range_between_unaligned_offsets(d) {
        let (fd, data) = filled(d)?;
        let to = rw(&d.join("b"))?;
        write_all(&to, &[9; 1000])?;
        let n = copy_range(&fd, 12_345, &to, 77, 100_000)? as usize;
        yes("copies something", n > 0)?;
        let all = get(&d.join("b"))?;
        same("before", &all[..77], &[9; 77])?;
        same("copied", &all[77..77 + n], &data[12_345..12_345 + n])?;
    }
    copy_range_at_the_end_copies_what_there_is(d) {
        let (fd, data) = filled(d)?;
        let to = rw(&d.join("b"))?;
        eq("past the end", copy_range(&fd, 300_000, &to, 0, 100)?, 0)?;
        eq("over the end", copy_range(&fd, 299_990, &to, 0, 100)?, 10)?;
        same("copied", &get(&d.join("b"))?, &data[299_990..])?;
    }
    copy_range_within_a_file(d) {
        let (fd, mut data) = filled(d)?;
        let n = copy_range(&fd, 0, &fd, 200_000, 50_000)? as usize;
        let part = data[..n].to_vec();
        data[200_000..200_000 + n].copy_from_slice(&part);
        same("content", &get(&d.join("a"))?, &data)?;
    }
    copy_range_onto_itself_is_einval(d) {
        let (fd, data) = filled(d)?;
        fails(EINVAL, copy_range(&fd, 0, &fd, 100, 5000))?;
        same("content", &get(&d.join("a"))?, &data)?;
    }
    copy_range_needs_the_right_descriptors(d) {
        let (fd, _) = filled(d)?;
        let ro = open(&d.join("a"), O_RDONLY, 0)?;
        fails(EBADF, copy_range(&fd, 0, &ro, 0, 10))?;
        let append = open(&d.join("b"), O_RDWR | O_CREAT | O_APPEND, 0o644)?;
        fails(EBADF, copy_range(&fd, 0, &append, 0, 10))?;
        let dir = open(d, O_RDONLY | O_DIRECTORY, 0)?;
        fails(EISDIR, copy_range(&dir, 0, &fd, 0, 10))?;
    }
    copy_range_reads_unflushed_data_and_is_seen_at_once(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("b"))?);
        let other = rw(&d.join("b"))?;
        for i in 0..20u64 {
            let data = pattern(i, 5000);
            pwrite(&x, &data, 0)?;
            pread(&other, 5000, 0)?;
            eq("copied", copy_range(&x, 0, &y, 0, 5000)?, 5000)?;
            same("seen", &pread(&other, 5000, 0)?, &data)?;
        }
    }
    fadvise_is_accepted(d) {
        let (fd, data) = filled(d)?;
        for advice in 0..6 {
            fadvise(&fd, 0, 100_000, advice)?;
            same("content", &get(&d.join("a"))?, &data)?;
        }
        fails(EINVAL, fadvise(&fd, 0, 0, 99))?;
    }
}
