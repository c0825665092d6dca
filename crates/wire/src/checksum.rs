//! crc32c of bytes, and of a whole from its parts.
use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// A crc32c value (Castagnoli, reflected, as iSCSI uses it).
pub type Crc = u32;

/// crc32c of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> Crc {
    crc32_iscsi(bytes)
}

/// crc32c of what `crc` covers followed by `bytes`.
#[must_use]
pub fn crc32c_append(crc: Crc, bytes: &[u8]) -> Crc {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// crc32c of two neighbours from theirs: `second` covers `second_len` bytes. Costs a few table look-ups for a whole
/// page and below a microsecond otherwise, so a transfer's checksum follows from its pages' for free.
#[must_use]
pub fn crc32c_join(first: Crc, second: Crc, second_len: usize) -> Crc {
    if second_len == PAGE {
        return shift_page(first) ^ second;
    }
    let mut shifted = first;
    for (k, matrix) in SHIFTS.iter().enumerate() {
        if second_len >> k & 1 == 1 {
            shifted = apply(matrix, shifted);
        }
    }
    shifted ^ second
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

/// What 32 bits of a crc register become.
type Matrix = [u32; 32];

/// The maps that move a register past 2^k zero bytes.
static SHIFTS: [Matrix; usize::BITS as usize] = shifts();
static PAGE_SHIFT_TABLE: [[u32; 256]; 4] = page_shift_table();

const fn shifts() -> [Matrix; usize::BITS as usize] {
    let mut all = [[0; 32]; usize::BITS as usize];
    let mut i = 0;
    while i < 32 {
        let mut c = 1u32 << i;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { (c >> 1) ^ 0x82F6_3B78 } else { c >> 1 };
            bit += 1;
        }
        all[0][i] = c;
        i += 1;
    }
    let mut k = 1;
    while k < all.len() {
        let mut i = 0;
        while i < 32 {
            all[k][i] = apply(&all[k - 1], all[k - 1][i]);
            i += 1;
        }
        k += 1;
    }
    all
}

const fn page_shift_table() -> [[u32; 256]; 4] {
    let matrix = shifts()[PAGE.trailing_zeros() as usize];
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

const fn apply(matrix: &Matrix, mut v: u32) -> u32 {
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
    fn it_is_the_checksum_of_the_standard() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&std::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46DD_794E);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn joined_checksums_equal_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..3 * PAGE + 77).map(|i| (i * 31 % 253) as u8).collect();
        for cut in (0..100).chain([PAGE, PAGE + 77, 2 * PAGE + 77, bytes.len() - 1, bytes.len()]) {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(crc32c_append(crc32c(a), b), crc32c(&bytes), "cut at {cut}");
            assert_eq!(crc32c_join(crc32c(a), crc32c(b), b.len()), crc32c(&bytes), "cut at {cut}");
        }
    }
}
