//! Byte units and the size syntax that users type.
use alloc::{format, string::String};

/// Bytes in a page: the unit of caches, checksums at rest and RPC sizes.
pub const PAGE_BYTES: usize = 4096;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 12;
/// 2^10 bytes.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;
/// 2^40 bytes.
pub const TIB: u64 = 1 << 40;

/// Parses `4096`, `64K`, `4M`, `4MiB`, `1.5G`, `2T`, `1P`, `1E` (base 2, case-insensitive) into bytes.
///
/// # Errors
/// A sentence that names the value and what would be right.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let t = text.trim();
    let bad = || {
        format!(
            "'{text}' is not a size: write a number with an optional suffix K, M, G, T, P or E (base 2), like 64K or 4M"
        )
    };
    let digits = t.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(t.len());
    let (number, suffix) = t.split_at(digits);
    let mut suffix = suffix.trim();
    for tail in ["iB", "ib", "IB", "B", "b"] {
        if let Some(s) = suffix.strip_suffix(tail) {
            suffix = s;
            break;
        }
    }
    let shift = match suffix {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        "p" | "P" => 50,
        "e" | "E" => 60,
        _ => return Err(bad()),
    };
    let too_big = || format!("'{text}' is too large: sizes end below 16E");
    if let Ok(n) = number.parse::<u64>() {
        return n.checked_mul(1 << shift).ok_or_else(too_big);
    }
    let f: f64 = number.parse().map_err(|_| bad())?;
    let bytes = f * (1u64 << shift) as f64;
    if bytes >= 18_446_744_073_709_551_616.0 {
        return Err(too_big());
    }
    // Where 0 means none, a part of one must not become that.
    if bytes > 0.0 && bytes < 1.0 {
        return Err(format!("'{text}' is less than one"));
    }
    Ok(bytes as u64)
}

/// `1536` -> `1.5K`, `4194304` -> `4.0M`: at most one decimal, base 2, as `df -h` prints.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    if bytes < 1024 {
        return format!("{bytes}");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if value < 9.95 { format!("{value:.1}{}", UNITS[unit]) } else { format!("{value:.0}{}", UNITS[unit]) }
}
