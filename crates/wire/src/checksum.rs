//! crc32c of bytes, and of a whole from its parts.

/// A crc32c value (Castagnoli, reflected, as iSCSI uses it).
pub type Crc = u32;

/// crc32c of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> Crc {
    ::crc32c::crc32c(bytes)
}

/// crc32c of what `crc` covers followed by `bytes`.
#[must_use]
pub fn crc32c_append(crc: Crc, bytes: &[u8]) -> Crc {
    ::crc32c::crc32c_append(crc, bytes)
}

/// crc32c of two neighbours from theirs: `second` covers `second_len` bytes. Costs a few table look-ups for a whole
/// page and about a microsecond for odd lengths, so a transfer's checksum follows from its pages' for free.
#[must_use]
pub fn crc32c_join(first: Crc, second: Crc, second_len: usize) -> Crc {
    if second_len == PAGE {
        return shift_page(first) ^ second;
    }
    ::crc32c::crc32c_combine(first, second, second_len)
}

const PAGE: usize = types::PAGE_BYTES;

/// `crc` moved past a page of zero bytes: one linear map over GF(2), tabulated by byte.
fn shift_page(crc: Crc) -> Crc {
    let t = &PAGE_SHIFT_TABLE;
    t[0][(crc & 0xff) as usize]
        ^ t[1][(crc >> 8 & 0xff) as usize]
        ^ t[2][(crc >> 16 & 0xff) as usize]
        ^ t[3][(crc >> 24) as usize]
}

static PAGE_SHIFT_TABLE: [[u32; 256]; 4] = page_shift_table();

const fn page_shift_table() -> [[u32; 256]; 4] {
    // matrix[i]: bit i of a crc register after one zero byte, squared log2(PAGE) times.
    let mut matrix = [0u32; 32];
    let mut i = 0;
    while i < 32 {
        let mut c = 1u32 << i;
        let mut k = 0;
        while k < 8 {
            c = if c & 1 == 1 { (c >> 1) ^ 0x82F6_3B78 } else { c >> 1 };
            k += 1;
        }
        matrix[i] = c;
        i += 1;
    }
    let mut s = 0;
    while s < PAGE.trailing_zeros() {
        let mut squared = [0u32; 32];
        let mut j = 0;
        while j < 32 {
            squared[j] = apply(&matrix, matrix[j]);
            j += 1;
        }
        matrix = squared;
        s += 1;
    }
    let mut table = [[0u32; 256]; 4];
    let mut b = 0;
    while b < 4 {
        let mut v = 0;
        while v < 256 {
            table[b][v] = apply(&matrix, (v as u32) << (8 * b));
            v += 1;
        }
        b += 1;
    }
    table
}

const fn apply(matrix: &[u32; 32], mut v: u32) -> u32 {
    let mut out = 0;
    let mut i = 0;
    while v != 0 {
        if v & 1 == 1 {
            out ^= matrix[i];
        }
        v >>= 1;
        i += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_checksums_equal_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..3 * PAGE + 77).map(|i| (i * 31 % 253) as u8).collect();
        for cut in [0, 1, 77, PAGE, 2 * PAGE + 77, bytes.len()] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(crc32c_join(crc32c(a), crc32c(b), b.len()), crc32c(&bytes), "cut at {cut}");
        }
    }
}
