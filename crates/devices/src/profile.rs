//! The table of devices by name, and the keys that change one.
//!
//! Decides what a device is, for the emulated OST (`store.profile`, `store.profile_keys`) and the simulator (`disk.*`) alike.
//! Parameters of `paper001` are those of the calibrated hardware model of paper 001 and must not be bent to fit a result.

use crate::array::{Array, DISKS_MAX, Level};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

/// Nanoseconds in a millisecond, as a float.
const MS: f64 = 1e6;
const US: f64 = 1e3;

/// Parameters of a medium. Times in nanoseconds, rates in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceProfile {
    /// Name in configuration.
    pub name: &'static str,
    /// Commands the device works on at once.
    pub slots: u32,
    /// Streaming read rate.
    pub read_rate: f64,
    /// Streaming write rate.
    pub write_rate: f64,
    /// Fixed cost of a request that continues the one before it, and its spread (uniform, +-).
    pub contiguous_ns: (f64, f64),
    /// Fixed cost of any other read, without distance and rotation.
    pub jump_read_ns: f64,
    /// Fixed cost of any other write, without distance and rotation.
    pub jump_write_ns: f64,
    /// Seek over the whole medium beyond the fixed cost; grows with the square root of the distance. 0: no heads.
    pub full_stroke_ns: f64,
    /// A head that goes on a short way behind what it read or wrote last lets that pass instead of seeking, which takes the
    /// time of reading it. No device of the table does; world `cache` of the simulator has one that does.
    pub passes_gaps: bool,
    /// Time of a revolution; a jump waits for a uniform part of it. 0: nothing turns.
    pub revolution_ns: f64,
    /// Bytes of the medium.
    pub capacity: u64,
    /// Write-back cache in bytes; 0: none.
    pub cache_bytes: u64,
    /// Rate at which the write-back cache takes bytes.
    pub cache_rate: f64,
    /// Full-stripe width of a parity array; a write that covers a part of one pays `partial_stripe_ns`. 0: no array.
    pub stripe_bytes: u64,
    /// Cost of each partially written stripe: old data and parity are read before they are written.
    pub partial_stripe_ns: f64,
    /// Several disks, each as the rest of this says; none: one.
    pub array: Option<Array>,
}

/// Calibrated on paper 001: 500 MB/s (1 MiB in 2.097 ms), 2.0 ms for every non-contiguous request instead of the
/// 20 +- 6 us of a contiguous one, whatever the distance. (The paper prints 450 MB/s and 10 ms, which give +130 %
/// at 12 GB/s instead of its own figures.)
const PAPER001: DeviceProfile = DeviceProfile {
    name: "paper001",
    slots: 1,
    read_rate: 500e6,
    write_rate: 500e6,
    contiguous_ns: (20.0 * US, 6.0 * US),
    jump_read_ns: 2.0 * MS,
    jump_write_ns: 2.0 * MS,
    full_stroke_ns: 0.0,
    passes_gaps: false,
    revolution_ns: 0.0,
    capacity: 1 << 50,
    cache_bytes: 0,
    cache_rate: 0.0,
    stripe_bytes: 0,
    partial_stripe_ns: 0.0,
    array: None,
};

/// A 7200 rpm SATA disk: 150 MB/s in the middle of the platter, 0.8 ms track to track, 16 ms over the whole stroke
/// (square-root law), 8.33 ms a revolution.
const HDD: DeviceProfile = DeviceProfile {
    name: "hdd",
    read_rate: 150e6,
    write_rate: 150e6,
    jump_read_ns: 0.8 * MS,
    jump_write_ns: 0.8 * MS,
    full_stroke_ns: 15.2 * MS,
    revolution_ns: 8.333 * MS,
    capacity: 8 << 40,
    ..PAPER001
};

/// Ten such disks as RAID 8+2 with 128 KiB chunks (1 MiB full stripe) behind a controller whose 512 MiB of cache
/// give writes three quarters: streams at 8 x 110 MB/s (parity and controller take a quarter), absorbs at 1.6 GB/s. A command costs 0.4 ms
/// (parity, copy to the partner controller); an isolated partial stripe a revolution, of which sorting hides half.
const RAID: DeviceProfile = DeviceProfile {
    name: "raid",
    read_rate: 880e6,
    write_rate: 880e6,
    contiguous_ns: (400.0 * US, 20.0 * US),
    jump_read_ns: 0.8 * MS,
    jump_write_ns: 0.8 * MS,
    full_stroke_ns: 15.2 * MS,
    revolution_ns: 8.333 * MS,
    capacity: 64 << 40,
    cache_bytes: 384 << 20,
    cache_rate: 1.6e9,
    stripe_bytes: 1 << 20,
    partial_stripe_ns: 4.2 * MS,
    ..PAPER001
};

/// A SATA SSD: the bus carries 530 MB/s, 32 commands at once, 90 us to read a page, 60 us to accept one.
const SSD: DeviceProfile = DeviceProfile {
    name: "ssd",
    slots: 32,
    read_rate: 530e6,
    write_rate: 490e6,
    contiguous_ns: (60.0 * US, 5.0 * US),
    jump_read_ns: 90.0 * US,
    jump_write_ns: 60.0 * US,
    capacity: 4 << 40,
    ..PAPER001
};

/// An NVMe SSD on four PCIe 3 lanes: 3.2 GB/s read, 2.4 GB/s written, 128 commands at once, 85 us and 22 us.
const NVME: DeviceProfile = DeviceProfile {
    name: "nvme",
    slots: 128,
    read_rate: 3.2e9,
    write_rate: 2.4e9,
    contiguous_ns: (20.0 * US, 3.0 * US),
    jump_read_ns: 85.0 * US,
    jump_write_ns: 22.0 * US,
    capacity: 8 << 40,
    ..PAPER001
};

/// The IDE-era disk of paper 000's testbed: 9 ms to any other place, 60 MB/s.
const DISK9MS: DeviceProfile = DeviceProfile {
    name: "disk9ms",
    read_rate: 60e6,
    write_rate: 60e6,
    contiguous_ns: (20.0 * US, 0.0),
    jump_read_ns: 9.0 * MS,
    jump_write_ns: 9.0 * MS,
    ..PAPER001
};

/// Five disks of profile `hdd` without a controller's cache, as Linux md makes an array: four data chunks of 64 KiB and parity.
const RAID5: DeviceProfile = DeviceProfile {
    name: "raid5",
    slots: 5,
    array: Some(Array { level: Level::Raid5, disks: 5, chunk_bytes: 64 << 10 }),
    ..HDD
};

/// Ten such disks: eight data chunks of 128 KiB and two of parity, 1 MiB a stripe.
const RAID6: DeviceProfile = DeviceProfile {
    name: "raid6",
    slots: 10,
    array: Some(Array { level: Level::Raid6, disks: 10, chunk_bytes: 128 << 10 }),
    ..HDD
};

/// Eight such disks, four mirrored pairs with chunks of 64 KiB.
const RAID10: DeviceProfile = DeviceProfile {
    name: "raid10",
    slots: 8,
    array: Some(Array { level: Level::Raid10, disks: 8, chunk_bytes: 64 << 10 }),
    ..HDD
};

const PROFILES: [DeviceProfile; 9] = [PAPER001, HDD, RAID, SSD, NVME, DISK9MS, RAID5, RAID6, RAID10];

/// The names of the table.
#[must_use]
pub fn profile_names() -> Vec<&'static str> {
    PROFILES.iter().map(|p| p.name).collect()
}

/// Keys that change a profile: name, least, most, unit and meaning.
pub const KEYS: [(&str, f64, f64, &str); 5] = [
    ("seek_ms", 0.0, 10_000.0, "milliseconds of a request that does not continue the last one, whatever the distance"),
    ("mb_per_s", 0.001, 1e6, "MB/s (10^6) at which it streams"),
    ("request_us", 0.0, 1e7, "microseconds of a request that continues the last one, beside its bytes"),
    (
        "disks",
        3.0,
        DISKS_MAX as f64,
        "disks of an array, parity and mirrors included; the other keys say what each disk is",
    ),
    ("chunk_kb", 4.0, 65_536.0, "KiB that lie on one disk of an array in a row, a multiple of 4"),
];

impl DeviceProfile {
    /// The profile called `name`.
    ///
    /// # Errors
    /// A sentence listing the names.
    pub fn named(name: &str) -> Result<DeviceProfile, String> {
        PROFILES
            .iter()
            .find(|p| p.name == name)
            .copied()
            .ok_or_else(|| format!("'{name}' is not a device profile; there are: {}", profile_names().join(", ")))
    }

    /// Changes the device by one of [`KEYS`].
    ///
    /// # Errors
    /// A sentence naming key, value and what would be right; nothing has changed then.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let Some((_, least, most, meaning)) = KEYS.into_iter().find(|k| k.0 == key) else {
            let names: Vec<&str> = KEYS.iter().map(|k| k.0).collect();
            return Err(format!("'{key}' is not a key of a device; there are: {}", names.join(", ")));
        };
        let value = text.parse::<f64>().ok().filter(|x| (least..=most).contains(x));
        let value =
            value.ok_or_else(|| format!("{key} = '{text}' is not a number from {least} to {most}: {meaning}"))?;
        match key {
            "seek_ms" => {
                (self.jump_read_ns, self.jump_write_ns) = (value * MS, value * MS);
                (self.full_stroke_ns, self.revolution_ns) = (0.0, 0.0);
            }
            "mb_per_s" => (self.read_rate, self.write_rate) = (value * 1e6, value * 1e6),
            "disks" | "chunk_kb" => return self.set_array(key, text, value),
            _ => self.contiguous_ns = (value * US, 0.0),
        }
        Ok(())
    }

    fn set_array(&mut self, key: &str, text: &str, value: f64) -> Result<(), String> {
        let Some(mut array) = self.array else {
            return Err(format!("{key} = '{text}': '{}' is no array of disks; raid5, raid6 and raid10 are", self.name));
        };
        let unit = if key == "disks" { 1.0 } else { 4.0 };
        if value % unit != 0.0 {
            return Err(format!("{key} = '{text}' is not a multiple of {unit}"));
        }
        match key {
            "disks" => array.disks = value as u32,
            _ => array.chunk_bytes = value as u64 * 1024,
        }
        array.check().map_err(|why| format!("{key} = '{text}': {why}"))?;
        (self.array, self.slots) = (Some(array), array.disks);
        Ok(())
    }

    /// Bytes a second at which it streams at most, reading or writing: of an array all disks that hold different data, and in
    /// reads of mirrors all.
    #[must_use]
    pub fn stream_rate_max(&self) -> f64 {
        let disks = self.array.map_or(1, |a| if a.level == Level::Raid10 { a.disks } else { a.data_disks() });
        self.read_rate.max(self.write_rate) * f64::from(disks)
    }

    /// The profile called `name`, changed by `keys`: KEY=VALUE, parted by blanks.
    ///
    /// # Errors
    /// A sentence naming what is refused.
    pub fn parse(name: &str, keys: &str) -> Result<DeviceProfile, String> {
        let mut profile = DeviceProfile::named(name)?;
        for pair in keys.split_whitespace() {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("'{pair}' is not KEY=VALUE"))?;
            profile.set(key, value)?;
        }
        Ok(profile)
    }

    /// The keys that make it of the profile of its name: name and value, for [`DeviceProfile::set`].
    #[must_use]
    pub fn changes(&self) -> Vec<(&'static str, String)> {
        let Ok(own) = DeviceProfile::named(self.name) else { return Vec::new() };
        let mut keys = Vec::new();
        if self.jump_read_ns != own.jump_read_ns || self.revolution_ns != own.revolution_ns {
            keys.push(("seek_ms", (self.jump_read_ns / MS).to_string()));
        }
        if self.read_rate != own.read_rate {
            keys.push(("mb_per_s", (self.read_rate / 1e6).to_string()));
        }
        if self.contiguous_ns != own.contiguous_ns {
            keys.push(("request_us", (self.contiguous_ns.0 / US).to_string()));
        }
        if let (Some(array), Some(of)) = (self.array, own.array) {
            if array.disks != of.disks {
                keys.push(("disks", array.disks.to_string()));
            }
            if array.chunk_bytes != of.chunk_bytes {
                keys.push(("chunk_kb", (array.chunk_bytes / 1024).to_string()));
            }
        }
        keys
    }

    /// Whether it has heads that a request elsewhere has to move: one, or those of an array.
    #[must_use]
    pub fn seeks(&self) -> bool {
        (self.slots == 1 || self.array.is_some()) && self.jump_read_ns.max(self.jump_write_ns) > self.contiguous_ns.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_a_device_and_refuse_what_is_none() {
        let p = DeviceProfile::parse("hdd", "seek_ms=8.5 mb_per_s=180 request_us=100").unwrap();
        assert_eq!((p.jump_read_ns, p.jump_write_ns, p.revolution_ns, p.full_stroke_ns), (8.5e6, 8.5e6, 0.0, 0.0));
        assert_eq!((p.read_rate, p.write_rate, p.contiguous_ns), (180e6, 180e6, (1e5, 0.0)));
        for (name, keys, why) in [
            (
                "tape",
                "",
                "'tape' is not a device profile; there are: paper001, hdd, raid, ssd, nvme, disk9ms, raid5, raid6, raid10",
            ),
            (
                "hdd",
                "rpm=7200",
                "'rpm' is not a key of a device; there are: seek_ms, mb_per_s, request_us, disks, chunk_kb",
            ),
            ("hdd", "seek_ms", "'seek_ms' is not KEY=VALUE"),
            ("hdd", "seek_ms=-1", "seek_ms = '-1' is not a number from 0 to 10000"),
            ("hdd", "mb_per_s=0", "mb_per_s = '0' is not a number from 0.001 to 1000000"),
            ("hdd", "mb_per_s=nan", "mb_per_s = 'nan' is not a number"),
            ("hdd", "disks=5", "disks = '5': 'hdd' is no array of disks; raid5, raid6 and raid10 are"),
            ("raid6", "disks=3", "disks = '3': a RAID 6 has 4 disks and more"),
            ("raid10", "disks=5", "disks = '5': a RAID 10 has an even number of disks"),
            ("raid5", "disks=2", "disks = '2' is not a number from 3 to 64"),
            ("raid5", "disks=4.5", "disks = '4.5' is not a multiple of 1"),
            ("raid5", "chunk_kb=66", "chunk_kb = '66' is not a multiple of 4"),
        ] {
            let refused = DeviceProfile::parse(name, keys).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
    }

    #[test]
    fn a_changed_device_tells_the_keys_that_make_it() {
        let p = DeviceProfile::parse("raid6", "disks=6 chunk_kb=512 mb_per_s=180").unwrap();
        let told: Vec<String> = p.changes().iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(told, ["mb_per_s=180", "disks=6", "chunk_kb=512"]);
        assert_eq!((DeviceProfile::parse("raid6", &told.join(" ")), p.stream_rate_max()), (Ok(p), 4.0 * 180e6));
        for keys in ["", "seek_ms=8.5", "mb_per_s=180.25 request_us=0", "seek_ms=0 mb_per_s=0.5 request_us=33"] {
            for name in profile_names() {
                let p = DeviceProfile::parse(name, keys).unwrap();
                let told: Vec<String> = p.changes().iter().map(|(key, value)| format!("{key}={value}")).collect();
                assert_eq!(DeviceProfile::parse(name, &told.join(" ")), Ok(p), "{name} {keys}");
            }
        }
    }

    #[test]
    fn only_what_has_one_head_seeks() {
        let seeking: Vec<&str> = PROFILES.iter().filter(|p| p.seeks()).map(|p| p.name).collect();
        assert_eq!(seeking, ["paper001", "hdd", "raid", "disk9ms", "raid5", "raid6", "raid10"]);
        assert!(!DeviceProfile::parse("paper001", "seek_ms=0").unwrap().seeks());
    }
}
