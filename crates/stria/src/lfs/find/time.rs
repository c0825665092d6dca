//! Times as users write them, and as they are shown.
use super::stat::At;

const DAY: i64 = 86_400;

fn local(seconds: i64) -> libc::tm {
    // SAFETY: integers and a pointer, for which zeros are values.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: two structures on the stack; localtime_r is free of shared state.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
    tm
}

/// A time by strftime(3), in the local time zone.
pub fn show(seconds: i64, format: &std::ffi::CStr) -> String {
    let tm = local(seconds);
    let mut out = [0u8; 128];
    // SAFETY: a buffer of the said length, a NUL-terminated format and a structure that outlive the call.
    let n = unsafe { libc::strftime(out.as_mut_ptr().cast(), out.len(), format.as_ptr(), &raw const tm) };
    String::from_utf8_lossy(&out[..n]).into_owned()
}

/// Seconds since 1970, from the forms that `-newerXt` takes: `2024-01-31 13:05:07`, without seconds, without a time of
/// day or a date (today), or `@SECONDS`.
///
/// # Errors
/// A sentence.
pub fn parse(text: &str, now: i64) -> Result<At, String> {
    let wrong = || {
        "write a time like 2024-01-31, '2024-01-31 13:05', '2024-01-31 13:05:07', 13:05, or @SECONDS since 1970"
            .to_string()
    };
    if let Ok(seconds) = text.strip_prefix('@').unwrap_or(text).parse::<i64>() {
        return Ok((seconds, 0));
    }
    let (date, time) = match text.trim().split_once([' ', 'T']) {
        Some((date, time)) => (Some(date), Some(time.trim())),
        None if text.contains(':') => (None, Some(text.trim())),
        None => (Some(text.trim()), None),
    };
    let numbers = |text: &str, separator: char| -> Option<Vec<i32>> {
        text.split(separator).map(|n| n.parse::<u16>().ok().map(i32::from)).collect()
    };
    let mut tm = local(now);
    (tm.tm_hour, tm.tm_min, tm.tm_sec, tm.tm_isdst) = (0, 0, 0, -1);
    if let Some(date) = date {
        match numbers(date, '-').ok_or_else(wrong)?[..] {
            [year, month @ 1..=12, day @ 1..=31] => {
                (tm.tm_year, tm.tm_mon, tm.tm_mday) = (year - 1900, month - 1, day);
                let mut noon = tm;
                noon.tm_hour = 12;
                // SAFETY: a structure on the stack.
                unsafe { libc::mktime(&raw mut noon) };
                // The 31st of February would be a day of March.
                if noon.tm_mday != day {
                    return Err(format!("there is no day {day} in month {month} of {year}"));
                }
            }
            _ => return Err(wrong()),
        }
    }
    if let Some(time) = time {
        match numbers(time, ':').ok_or_else(wrong)?[..] {
            [hour @ 0..=23, minute @ 0..=59] => (tm.tm_hour, tm.tm_min) = (hour, minute),
            [hour @ 0..=23, minute @ 0..=59, second @ 0..=60] => {
                (tm.tm_hour, tm.tm_min, tm.tm_sec) = (hour, minute, second);
            }
            _ => return Err(wrong()),
        }
    }
    // SAFETY: a structure on the stack.
    Ok((unsafe { libc::mktime(&raw mut tm) }, 0))
}

/// An age as `-mtime` takes it: days, or numbers with units s m h d w y, several of which add up. Its seconds and the
/// smallest unit, which is the margin.
///
/// # Errors
/// A sentence.
pub fn parse_age(text: &str) -> Result<(i64, i64), String> {
    let wrong = || "write a number of days, or numbers with s m h d w y, like 90m or 1d12h".to_string();
    let (mut sum, mut smallest, mut number) = (0i64, i64::MAX, String::new());
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => DAY,
            'w' => 7 * DAY,
            'y' => 365 * DAY,
            _ => return Err(wrong()),
        };
        let n: i64 = number.parse().map_err(|_| wrong())?;
        sum = n.checked_mul(unit).and_then(|s| sum.checked_add(s)).ok_or_else(wrong)?;
        smallest = smallest.min(unit);
        number.clear();
    }
    if number.is_empty() {
        return if smallest == i64::MAX { Err(wrong()) } else { Ok((sum, smallest)) };
    }
    // A bare number counts days, behind units it has none.
    let n: i64 = number.parse().map_err(|_| wrong())?;
    match smallest {
        i64::MAX => Ok((n.checked_mul(DAY).ok_or_else(wrong)?, DAY)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_form() {
        let now = 1_700_000_000;
        let at = |text: &str| parse(text, now).unwrap().0;
        assert_eq!(at("@17"), 17);
        assert_eq!(show(at("2024-01-31 13:05:07"), c"%Y-%m-%d %H:%M:%S"), "2024-01-31 13:05:07");
        assert_eq!(at("2024-01-31T13:05") + 7, at("2024-01-31 13:05:07"));
        assert_eq!(show(at("2024-01-31"), c"%H:%M:%S"), "00:00:00");
        assert_eq!(show(at("2024-02-29 23:59:60"), c"%Y-%m-%d %H:%M:%S"), "2024-03-01 00:00:00");
        assert!(parse("2023-02-29", now).unwrap_err().contains("no day 29 in month 2 of 2023"));
        assert_eq!(show(at("13:05"), c"%Y-%m-%d %H:%M"), show(now, c"%Y-%m-%d 13:05"));
        for text in ["", "tomorrow", "2024-13-01", "2024-01-31 25:00", "2024-01-31 1:2:3:4", "2024-1-1 x"] {
            assert!(parse(text, now).unwrap_err().contains("write a time"), "{text}");
        }
    }

    #[test]
    fn ages_add_up_and_know_their_margin() {
        assert_eq!(parse_age("2"), Ok((172_800, 86_400)));
        assert_eq!(parse_age("8h20m"), Ok((30_000, 60)));
        assert_eq!(parse_age("1y"), Ok((31_536_000, 86_400 * 365)));
        for text in ["", "h", "2q", "1h5", "99999999999999999999d"] {
            assert!(parse_age(text).is_err(), "{text}");
        }
    }
}
