//! Golden files: the bytes of a format, written down once and compared ever after.
//!
//! `NAME.hex` holds the bytes as hexadecimal text, 32 to a line; text behind `#` is for people. Nothing here changes a
//! file that exists. A format that got something new: run with `STRIA_GOLDEN=add`, which writes the files that are
//! missing, look at them, commit them. A format that grew: rename its file to `NAME.1.hex` first (then `.2`, ...): the
//! old bytes must still be read, and the test sees to it.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A folder of golden files, all of which must be asked for.
pub struct Folder {
    path: PathBuf,
    asked: RefCell<BTreeSet<String>>,
}

impl Folder {
    /// `<root>/golden`.
    #[must_use]
    pub fn of(root: &str) -> Folder {
        Folder { path: Path::new(root).join("golden"), asked: RefCell::default() }
    }

    /// Compares `bytes` with the file of `name`.
    ///
    /// # Panics
    /// When they differ, saying where; when there is no file and none is to be added.
    pub fn check(&self, name: &str, bytes: &[u8]) {
        let file = self.path.join(format!("{name}.hex"));
        self.asked.borrow_mut().insert(format!("{name}.hex"));
        if !file.exists() {
            assert!(
                std::env::var("STRIA_GOLDEN").as_deref() == Ok("add"),
                "{} is missing: STRIA_GOLDEN=add writes it",
                file.display()
            );
            std::fs::create_dir_all(&self.path).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
            std::fs::write(&file, to_hex(bytes)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        }
        let want = self.read(&file);
        if let Some(at) = (0..want.len().max(bytes.len())).find(|i| want.get(*i) != bytes.get(*i)) {
            panic!(
                "{}: byte {at} differs ({} golden bytes, {} now). A format that is in use only grows, at its end; then \
                 rename the file to {name}.N.hex and add a new one\nnow:\n{}",
                file.display(),
                want.len(),
                bytes.len(),
                to_hex(bytes)
            );
        }
    }

    /// Bytes of earlier versions of `name`, oldest first.
    #[must_use]
    pub fn earlier(&self, name: &str) -> Vec<Vec<u8>> {
        let files = (1..).map(|n| format!("{name}.{n}.hex")).take_while(|f| self.path.join(f).exists());
        files
            .map(|f| {
                let bytes = self.read(&self.path.join(&f));
                self.asked.borrow_mut().insert(f);
                bytes
            })
            .collect()
    }

    /// Every file was asked for.
    ///
    /// # Panics
    /// When one was not: what it described is gone, or its name is wrong.
    pub fn finish(self) {
        let entries = std::fs::read_dir(&self.path).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
        let there: BTreeSet<String> = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        let asked = self.asked.into_inner();
        let left: Vec<&String> = there.difference(&asked).collect();
        assert!(left.is_empty(), "{}: golden files that nothing is compared with: {left:?}", self.path.display());
    }

    fn read(&self, file: &Path) -> Vec<u8> {
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        from_hex(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    }
}

fn to_hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(32) {
        for b in line {
            out += &format!("{b:02x}");
        }
        out.push('\n');
    }
    out
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text
        .lines()
        .flat_map(|l| l.split('#').next().unwrap_or_default().bytes())
        .filter(|b| !b.is_ascii_whitespace())
        .collect();
    let pairs = digits.chunks(2).map(|p| std::str::from_utf8(p).ok().filter(|p| p.len() == 2));
    pairs.map(|p| p.and_then(|p| u8::from_str_radix(p, 16).ok()).ok_or_else(|| "not hexadecimal".to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_differences_are_found() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Ok(bytes));
        assert_eq!(from_hex("00 ff # two bytes\n"), Ok(vec![0, 255]));
        assert!(from_hex("0").is_err() && from_hex("zz").is_err());
        let dir = std::env::temp_dir().join(format!("stria-golden-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("golden")).unwrap();
        std::fs::write(dir.join("golden/a.hex"), "0102").unwrap();
        std::fs::write(dir.join("golden/a.1.hex"), "01").unwrap();
        let folder = || Folder::of(dir.to_str().unwrap());
        let good = folder();
        good.check("a", &[1, 2]);
        assert_eq!(good.earlier("a"), [vec![1]]);
        good.finish();
        for wrong in [&[1, 3][..], &[1], &[1, 2, 3]] {
            assert!(std::panic::catch_unwind(|| folder().check("a", wrong)).is_err());
        }
        assert!(std::panic::catch_unwind(|| folder().finish()).is_err(), "nothing was asked for");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
