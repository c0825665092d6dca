//! read(2), write(2) and their relatives: sizes, alignments, holes, the end of the file.

use crate::check::{eq, fails, pattern, same, yes};
use crate::sys::*;

suite! { "rw";
    what_was_written_is_read(d) {
        put(&d.join("a"), b"hello")?;
        same("content", &get(&d.join("a"))?, b"hello")?;
    }
    sizes_around_pages_and_stripes_survive(d) {
        for n in [1, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 131_072, 1_048_575, 1_048_576, 1_048_577, 5_000_011] {
            let data = pattern(n as u64, n);
            put(&d.join("a"), &data)?;
            eq("size", stat(&d.join("a"))?.st_size, n as i64)?;
            same("content", &get(&d.join("a"))?, &data)?;
        }
    }
    one_large_write_is_complete(d) {
        let data = pattern(3, 24 << 20);
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &data)?;
        same("content", &get(&d.join("a"))?, &data)?;
    }
    every_offset_and_length_within_two_pages(d) {
        let fd = rw(&d.join("a"))?;
        let mut model = vec![0u8; 0];
        let mut rng = types::Rng::new(5);
        for i in 0..400u64 {
            let off = rng.below(9000) as usize;
            let len = 1 + rng.below(300) as usize;
            let data = pattern(i, len);
            if model.len() < off + len {
                model.resize(off + len, 0);
            }
            model[off..off + len].copy_from_slice(&data);
            eq("written", pwrite(&fd, &data, off as i64)?, len as i64)?;
            let at = rng.below(model.len() as u64) as usize;
            let n = 1 + rng.below(5000) as usize;
            same("part", &pread(&fd, n, at as i64)?, &model[at..model.len().min(at + n)])?;
        }
        same("content", &get(&d.join("a"))?, &model)?;
    }
    byte_by_byte_writes_add_up(d) {
        let fd = rw(&d.join("a"))?;
        let data = pattern(8, 3000);
        for b in &data {
            write(&fd, &[*b])?;
        }
        same("content", &get(&d.join("a"))?, &data)?;
    }
    unaligned_buffers_are_fine(d) {
        let fd = rw(&d.join("a"))?;
        let data = pattern(8, 20_000);
        for shift in [0usize, 1, 3, 16, 31, 511, 4095] {
            let mut out = vec![0u8; shift + 10_000];
            out[shift..].copy_from_slice(&data[..10_000]);
            pwrite(&fd, &out[shift..], shift as i64)?;
            let mut back = vec![0u8; shift + 10_000];
            eq("read", pread_into(&fd, &mut back[shift..], shift as i64)?, 10_000)?;
            same("content", &back[shift..], &data[..10_000])?;
        }
    }
    read_moves_the_position_and_pread_does_not(d) {
        put(&d.join("a"), b"abcdef")?;
        let fd = open(&d.join("a"), O_RDONLY, 0)?;
        same("pread", &pread(&fd, 2, 4)?, b"ef")?;
        same("read", &read(&fd, 2)?, b"ab")?;
        eq("position", lseek(&fd, 0, SEEK_CUR)?, 2)?;
    }
    pwrite_does_not_move_the_position(d) {
        let fd = rw(&d.join("a"))?;
        pwrite(&fd, b"xyz", 10)?;
        eq("position", lseek(&fd, 0, SEEK_CUR)?, 0)?;
    }
    pwrite_with_o_append_appends(d) {
        put(&d.join("a"), b"12345")?;
        let fd = open(&d.join("a"), O_RDWR | O_APPEND, 0)?;
        pwrite(&fd, b"67", 0)?;
        same("content", &get(&d.join("a"))?, b"1234567")?;
    }
    a_read_at_or_past_the_end_gives_nothing(d) {
        put(&d.join("a"), b"abc")?;
        let fd = open(&d.join("a"), O_RDONLY, 0)?;
        same("at the end", &pread(&fd, 10, 3)?, b"")?;
        same("past the end", &pread(&fd, 10, 1 << 30)?, b"")?;
        same("over the end", &pread(&fd, 10, 2)?, b"c")?;
    }
    an_empty_file_reads_as_nothing(d) {
        put(&d.join("a"), b"")?;
        same("content", &get(&d.join("a"))?, b"")?;
    }
    zero_bytes_may_be_read_and_written(d) {
        let fd = rw(&d.join("a"))?;
        eq("written", write(&fd, b"")?, 0)?;
        eq("pwritten", pwrite(&fd, b"", 100)?, 0)?;
        eq("read", read_into(&fd, &mut [])?, 0)?;
        eq("size", fstat(&fd)?.st_size, 0)?;
    }
    a_write_past_the_end_leaves_a_hole_of_zeros(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, b"abc")?;
        pwrite(&fd, b"xyz", 200_000)?;
        let all = get(&d.join("a"))?;
        eq("size", all.len(), 200_003)?;
        same("head", &all[..3], b"abc")?;
        yes("the hole is zeros", all[3..200_000].iter().all(|b| *b == 0))?;
        same("tail", &all[200_000..], b"xyz")?;
    }
    a_sparse_file_takes_little_space(d) {
        let fd = rw(&d.join("a"))?;
        pwrite(&fd, b"x", 1 << 30)?;
        fsync(&fd)?;
        let st = fstat(&fd)?;
        eq("size", st.st_size, (1 << 30) + 1)?;
        yes("few blocks", st.st_blocks < 4096)?;
    }
    blocks_cover_what_was_written(d) {
        let fd = rw(&d.join("a"))?;
        write_all(&fd, &pattern(1, 1 << 20))?;
        fsync(&fd)?;
        let st = fstat(&fd)?;
        yes("512-byte blocks cover it", st.st_blocks >= 2048)?;
        yes("and not many times over", st.st_blocks <= 8192)?;
    }
    holes_between_far_writes_read_as_zeros(d) {
        let fd = rw(&d.join("a"))?;
        for i in 0..8i64 {
            pwrite(&fd, &pattern(i as u64, 100), i * 3_000_000 + 17)?;
        }
        for i in 0..8i64 {
            same("data", &pread(&fd, 100, i * 3_000_000 + 17)?, &pattern(i as u64, 100))?;
            if i < 7 {
                same("hole", &pread(&fd, 5000, i * 3_000_000 + 200_000)?, &[0; 5000])?;
            }
        }
    }
    offsets_beyond_4_gib_are_kept_apart(d) {
        let fd = rw(&d.join("a"))?;
        for (i, off) in [0i64, 1 << 31, (1 << 32) - 3, 1 << 32, (5 << 32) + 7].into_iter().enumerate() {
            pwrite(&fd, &[b'a' + i as u8; 3], off)?;
        }
        same("first", &pread(&fd, 3, 0)?, b"aaa")?;
        same("across 4 GiB", &pread(&fd, 6, (1 << 32) - 3)?, b"cccddd")?;
        eq("size", fstat(&fd)?.st_size, (5 << 32) + 10)?;
    }
    a_negative_offset_is_einval(d) {
        let fd = rw(&d.join("a"))?;
        fails(EINVAL, pread(&fd, 1, -1))?;
        fails(EINVAL, pwrite(&fd, b"x", -1))?;
    }
    a_write_past_the_largest_offset_is_efbig(d) {
        let fd = rw(&d.join("a"))?;
        crate::check::fails_any(&[EFBIG, EINVAL], pwrite(&fd, b"xx", i64::MAX))?;
        eq("size", fstat(&fd)?.st_size, 0)?;
    }
    a_write_past_the_size_limit_is_efbig(d) {
        crate::run::in_child(|| {
            // SAFETY: plain calls in a process of its own.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                libc::setrlimit(libc::RLIMIT_FSIZE, &rlimit { rlim_cur: 10_000, rlim_max: 10_000 });
            }
            let fd = rw(&d.join("a"))?;
            eq("up to the limit", pwrite(&fd, &[1; 8000], 5000)?, 5000)?;
            fails(EFBIG, pwrite(&fd, b"x", 10_000))?;
            fails(EFBIG, ftruncate(&fd, 10_001))?;
            eq("size", fstat(&fd)?.st_size, 10_000)
        })?;
    }
    vectors_are_written_and_read_in_order(d) {
        use std::os::fd::AsRawFd;
        let fd = rw(&d.join("a"))?;
        let parts: Vec<Vec<u8>> = (0..20u64).map(|i| pattern(i, 1000 + i as usize * 7)).collect();
        let iov: Vec<iovec> = parts.iter().map(|p| iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() }).collect();
        let want = parts.concat();
        // SAFETY: the vectors live through the calls.
        let n = unsafe { libc::pwritev(fd.as_raw_fd(), iov.as_ptr(), 20, 333) };
        eq("written", n as usize, want.len())?;
        let mut back: Vec<Vec<u8>> = parts.iter().map(|p| vec![0; p.len()]).collect();
        let iov: Vec<iovec> = back.iter_mut().map(|p| iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() }).collect();
        // SAFETY: the vectors live through the calls.
        let n = unsafe { libc::preadv(fd.as_raw_fd(), iov.as_ptr(), 20, 333) };
        eq("read", n as usize, want.len())?;
        same("content", &back.concat(), &want)?;
    }
    overwriting_keeps_the_rest(d) {
        let mut data = pattern(1, 300_000);
        put(&d.join("a"), &data)?;
        let fd = open(&d.join("a"), O_WRONLY, 0)?;
        for off in [0usize, 4090, 65_530, 131_072, 299_990] {
            pwrite(&fd, b"0123456789", off as i64)?;
            data[off..off + 10].copy_from_slice(b"0123456789");
        }
        same("content", &get(&d.join("a"))?, &data)?;
    }
    a_write_by_one_descriptor_is_read_by_another_at_once(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        for i in 0..200u32 {
            pwrite(&x, &i.to_le_bytes(), 0)?;
            same("seen", &pread(&y, 4, 0)?, &i.to_le_bytes())?;
        }
    }
    size_is_right_while_a_file_grows(d) {
        let (x, y) = (rw(&d.join("a"))?, rw(&d.join("a"))?);
        for i in 1..100i64 {
            write_all(&x, &pattern(i as u64, 777))?;
            eq("fstat", fstat(&y)?.st_size, i * 777)?;
            eq("stat", stat(&d.join("a"))?.st_size, i * 777)?;
        }
    }
    writes_in_one_process_are_read_in_another(d) {
        put(&d.join("a"), &[0; 8192])?;
        let fd = rw(&d.join("a"))?;
        pwrite(&fd, b"parent", 0)?;
        crate::run::in_child(|| {
            let mine = rw(&d.join("a"))?;
            same("parent's", &pread(&mine, 6, 0)?, b"parent")?;
            pwrite(&mine, b"child", 5000)?;
            Ok(())
        })?;
        same("child's", &pread(&fd, 5, 5000)?, b"child")?;
    }
    unlinked_and_written_still_reads(d) {
        let fd = rw(&d.join("a"))?;
        unlink(&d.join("a"))?;
        let data = pattern(4, 3 << 20);
        write_all(&fd, &data)?;
        same("content", &pread(&fd, data.len(), 0)?, &data)?;
    }
    parallel_writers_of_disjoint_parts_all_land(d) {
        put(&d.join("a"), b"")?;
        let mut children = Vec::new();
        for i in 0..4u64 {
            let f = d.join("a");
            children.push(crate::run::spawn(move || {
                let fd = open(&f, O_WRONLY, 0)?;
                for k in 0..16u64 {
                    let n = k * 4 + i;
                    pwrite(&fd, &pattern(n, 50_001), n as i64 * 50_001)?;
                }
                Ok(())
            })?);
        }
        for child in children {
            child.join()?;
        }
        let all = get(&d.join("a"))?;
        eq("size", all.len(), 64 * 50_001)?;
        for n in 0..64u64 {
            same("a part", &all[n as usize * 50_001..][..50_001], &pattern(n, 50_001))?;
        }
    }
    a_single_write_is_not_torn_for_a_reader_with_the_same_descriptor(d) {
        let fd = rw(&d.join("a"))?;
        pwrite(&fd, &[0; 4096], 0)?;
        let writer = crate::run::spawn({
            let f = d.join("a");
            move || {
                let fd = rw(&f)?;
                for i in 0..200u8 {
                    pwrite(&fd, &[i; 4096], 0)?;
                }
                Ok(())
            }
        })?;
        for _ in 0..200 {
            eq("length of a page read during writes", pread(&fd, 4096, 0)?.len(), 4096)?;
        }
        writer.join()?;
        same("last", &pread(&fd, 4096, 0)?, &[199; 4096])?;
    }
    reading_into_a_bad_address_is_efault(d) {
        use std::os::fd::AsRawFd;
        put(&d.join("a"), &[1; 100])?;
        let fd = rw(&d.join("a"))?;
        // SAFETY: the kernel refuses the address; nothing is accessed.
        let n = unsafe { libc::syscall(libc::SYS_pread64, fd.as_raw_fd(), 8usize, 100usize, 0i64) };
        eq("result", (n, std::io::Error::last_os_error().raw_os_error()), (-1, Some(EFAULT)))?;
        // SAFETY: as above.
        let n = unsafe { libc::syscall(libc::SYS_pwrite64, fd.as_raw_fd(), 8usize, 100usize, 0i64) };
        eq("result", (n, std::io::Error::last_os_error().raw_os_error()), (-1, Some(EFAULT)))?;
        same("content", &get(&d.join("a"))?, &[1; 100])?;
    }
    splice_and_sendfile_carry_the_bytes(d) {
        use std::os::fd::AsRawFd;
        let data = pattern(6, 100_000);
        put(&d.join("a"), &data)?;
        let (from, to) = (open(&d.join("a"), O_RDONLY, 0)?, rw(&d.join("b"))?);
        let mut left = data.len();
        while left > 0 {
            // SAFETY: descriptors are ours.
            let n = unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), std::ptr::null_mut(), left) };
            yes("sendfile moves on", n > 0)?;
            left -= n as usize;
        }
        same("copy", &get(&d.join("b"))?, &data)?;
    }
}
