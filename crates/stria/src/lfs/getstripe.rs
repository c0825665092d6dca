//! `getstripe`: layouts as text.
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use layout::text::{self, Field};
use layout::{Layout, LayoutSpec};
use types::Fid;

use super::getopt::{Absent, Grammar, Parsed};
use super::walk::{Failures, is_gone, list};
use super::xattr;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: getstripe [-c] [-S] [-i] [-L] [-p] [-g] [-F] [-m] [-I] [-N] [--component-count] [-O OST]
                 [-d] [-D] [-r] [-R] [-v] [-q] [-y] PATH...
  -c count  -S size  -i index of the first OST  -L pattern  -p pool  -g generation  -F FID  -m metadata target: only these
  -I component, --component-count, --component-flags: 0, for layouts have no components    -N mirrors: 1
  -O OST    only files with an object on this OST: an index, or a name like stria-OST0001_UUID
  -d        the directory itself, not what is in it    -D  the directory's default
  -r        also below directories                     -R  as set, without defaults filled in
  -v        more                                       -q  only the objects
  -y        as YAML, which setstripe --yaml reads";

const COMPONENTS: Absent = Absent {
    letters: "Ez",
    names: &[
        "component-end",
        "comp-end",
        "component-start",
        "comp-start",
        "extension-size",
        "ext-size",
        "mirror-index",
        "mirror-id",
    ],
    why: "layouts have neither components nor mirrors: leave it out",
};

const GRAMMAR: Grammar = Grammar {
    verb: "getstripe",
    short: "cSiLpgFmI::NO:dDrRvqyCfnh",
    long: &[
        ("stripe-count", 'c'),
        ("count", 'c'),
        ("stripe-size", 'S'),
        ("size", 'S'),
        ("stripe-index", 'i'),
        ("index", 'i'),
        ("offset", 'i'),
        ("stripe-start", 'i'),
        ("layout", 'L'),
        ("pool", 'p'),
        ("generation", 'g'),
        ("fid", 'F'),
        ("mdt", 'm'),
        ("mdt-index", 'm'),
        ("component-id", 'I'),
        ("comp-id", 'I'),
        ("component-count", 'C'),
        ("comp-count", 'C'),
        ("component-flags", 'f'),
        ("comp-flags", 'f'),
        ("mirror-count", 'N'),
        ("ost", 'O'),
        ("obd", 'O'),
        ("directory", 'd'),
        ("default", 'D'),
        ("recursive", 'r'),
        ("raw", 'R'),
        ("verbose", 'v'),
        ("quiet", 'q'),
        ("yaml", 'y'),
        ("no-follow", 'n'),
        ("help", 'h'),
    ],
    absent: &[COMPONENTS],
};

/// What a single-value option shows: a value of the layout, or one that every plain file has.
#[derive(Clone, Copy)]
enum Shown {
    Of(Field),
    Fid,
    Fixed(&'static str),
}

/// Letters of single values, with their labels behind `lmm_`.
const FIELDS: &[(char, Shown, &str)] = &[
    ('c', Shown::Of(Field::StripeCount), "stripe_count:  "),
    ('S', Shown::Of(Field::StripeSize), "stripe_size:   "),
    ('L', Shown::Of(Field::Pattern), "pattern:       "),
    ('g', Shown::Of(Field::Generation), "layout_gen:    "),
    ('i', Shown::Of(Field::StripeIndex), "stripe_offset: "),
    ('p', Shown::Of(Field::Pool), "pool:          "),
    ('F', Shown::Fid, "fid:           "),
    // There is one metadata target.
    ('m', Shown::Fixed("0"), "mdt_index:     "),
    ('I', Shown::Fixed("0"), "comp_id:       "),
    ('C', Shown::Fixed("0"), "comp_count:    "),
    ('f', Shown::Fixed("0"), "comp_flags:    "),
    ('N', Shown::Fixed("1"), "mirror_count:  "),
];

/// Runs the verb.
///
/// # Errors
/// What is wrong with the options, or with a path; the others have their turn.
pub fn getstripe(arguments: &[OsString]) -> Outcome {
    let parsed = GRAMMAR.read(arguments)?;
    if parsed.has('h') {
        say!("{USAGE}");
        return Ok(());
    }
    if parsed.operands.is_empty() {
        return Err(Failure::usage(format!("getstripe: name a file or a directory\n{USAGE}")));
    }
    if let Some(id) = parsed.value('I') {
        return Err(Failure::with_errno(
            format!("getstripe: there is no component {id}, for layouts have no components: leave -I{id} out"),
            libc::ENOENT,
        ));
    }
    let ost = match parsed.value('O') {
        Some(text) => Some(super::one_ost(text).map_err(|e| Failure::usage(format!("getstripe: -O {text}: {e}")))?),
        None => None,
    };
    let view = View { parsed, ost };
    let mut failures = Failures::default();
    for path in view.parsed.operands.iter().map(Path::new) {
        let looked = if view.parsed.has('n') { fs::symlink_metadata(path) } else { fs::metadata(path) };
        match looked {
            Ok(meta) => view.path(path, &meta, &mut failures),
            Err(e) => failures.note(Err(Failure::io("getstripe:", path, &e))),
        }
    }
    failures.end("getstripe")
}

/// What is asked for.
struct View {
    parsed: Parsed,
    /// Only files with an object there.
    ost: Option<u16>,
}

impl View {
    /// A path that was named, and what is in it.
    fn path(&self, path: &Path, meta: &Metadata, failures: &mut Failures) {
        let goes_on = meta.is_dir() && !self.parsed.has('d') && !self.parsed.has('D');
        self.print_all(path, meta, goes_on, failures);
    }
    /// A path, and with `goes_on` what is in it. Of a directory whose default cannot be read that is told alone: it can mostly not be listed,
    /// either.
    fn print_all(&self, path: &Path, meta: &Metadata, goes_on: bool, failures: &mut Failures) {
        let printed = self.print(path, meta);
        let is_told = printed.is_err();
        failures.note(printed);
        if goes_on {
            let read = self.below(path, failures);
            failures.note(if is_told { Ok(()) } else { read });
        }
    }
    /// The entries of a directory; all that is below them with `-r`.
    fn below(&self, dir: &Path, failures: &mut Failures) -> Outcome {
        let mut entries = Vec::new();
        let read = list(dir, &mut entries);
        for path in entries {
            let meta = match fs::symlink_metadata(&path) {
                Ok(meta) => meta,
                Err(e) if is_gone(&e) => continue,
                Err(e) => {
                    failures.note(Err(Failure::io("getstripe:", &path, &e)));
                    continue;
                }
            };
            if meta.is_dir() || meta.is_file() {
                self.print_all(&path, &meta, meta.is_dir() && self.parsed.has('r'), failures);
            }
        }
        read.map_err(|e| Failure::io("getstripe: reading", dir, &e))
    }
    fn print(&self, path: &Path, meta: &Metadata) -> Outcome {
        crate::out::print(format_args!("{}", self.show(path, meta)?));
        Ok(())
    }

    fn show(&self, path: &Path, meta: &Metadata) -> Result<String, Failure> {
        let is_dir = meta.is_dir();
        let bytes = if is_dir { xattr::get_lov(path)? } else { xattr::get_stored_lov(path)? };
        let name = path.display().to_string();
        let unreadable = |e: layout::xattr::XattrError| {
            Failure::with_errno(format!("getstripe: {name}: its layout cannot be read: {e}"), libc::EBADMSG)
        };
        let fid = Fid::from_ino(meta.ino());
        if is_dir {
            let spec = bytes.map(|b| layout::xattr::decode_spec(&b)).transpose().map_err(unreadable)?;
            return Ok(if self.ost.is_none() { self.directory(&name, fid, spec.as_ref()) } else { String::new() });
        }
        match bytes {
            None if self.ost.is_some() => Ok(String::new()),
            None => Ok(format!("{name} has no stripe info\n")),
            Some(b) => {
                let (fid, layout) = layout::xattr::decode_layout(&b).map_err(unreadable)?;
                let wanted = self.ost.is_none_or(|ost| layout.objects().iter().any(|o| o.ost.0 == ost));
                Ok(if wanted { self.file(&name, fid, &layout) } else { String::new() })
            }
        }
    }

    fn asked(&self) -> Vec<&'static (char, Shown, &'static str)> {
        FIELDS.iter().filter(|(l, ..)| self.parsed.has(*l)).collect()
    }

    fn file(&self, name: &str, fid: Fid, layout: &Layout) -> String {
        let value = |s: Shown| match s {
            Shown::Of(field) => text::file_field(layout, field),
            Shown::Fid => fid.to_string(),
            Shown::Fixed(value) => value.into(),
        };
        let verbose = self.parsed.has('v');
        match self.asked()[..] {
            [] if self.parsed.has('y') => text::yaml(fid, layout, verbose),
            [] if self.parsed.has('q') => text::objects(layout) + "\n",
            [] => text::file(name, fid, layout, verbose),
            [(_, shown, _)] if !verbose => value(*shown) + "\n",
            ref asked => self.labelled(name, "lmm_", asked, value),
        }
    }

    fn directory(&self, name: &str, fid: Fid, spec: Option<&LayoutSpec>) -> String {
        let raw = self.parsed.has('R');
        let spec = spec.cloned().unwrap_or_default();
        let value = |s: Shown| match s {
            Shown::Of(field) => text::spec_field(&spec, field, raw),
            Shown::Fid => fid.to_string(),
            Shown::Fixed(value) => value.into(),
        };
        match self.asked()[..] {
            [] if self.parsed.has('y') => text::directory_yaml(&spec, raw),
            [] if self.parsed.has('q') => text::directory("", &spec, raw).trim_start().to_string(),
            [] => text::directory(name, &spec, raw),
            [(_, shown, _)] if !self.parsed.has('v') => value(*shown) + "\n",
            ref asked => self.labelled(name, "", asked, value),
        }
    }

    fn labelled(
        &self,
        name: &str,
        prefix: &str,
        asked: &[&(char, Shown, &str)],
        value: impl Fn(Shown) -> String,
    ) -> String {
        let lines = asked.iter().map(|(_, shown, label)| format!("{prefix}{label}{}\n", value(*shown)));
        let head = if self.parsed.has('y') { String::new() } else { format!("{name}\n") };
        head + &lines.collect::<String>() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::{Pattern, StripeObject, StripeSize};
    use types::{ObjectId, OstIndex};

    fn view(arguments: &[&str]) -> View {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        View { parsed: GRAMMAR.read(&arguments).unwrap(), ost: None }
    }
    fn two() -> Layout {
        let object = |ost, oid| StripeObject { ost: OstIndex(ost), object: ObjectId::new(OstIndex(ost), oid) };
        Layout::new(StripeSize::DEFAULT, Pattern::Raid0, None, vec![object(1, 2), object(2, 7)]).unwrap()
    }
    const FID: Fid = Fid { seq: 0x2_0000_0401, oid: 5, ver: 0 };

    #[test]
    fn a_single_value_stands_alone_and_several_have_labels() {
        let file = |options: &[&str]| view(options).file("/m/f", FID, &two());
        let alone = ["-c", "-S", "-i", "-F", "-m", "-I", "--component-count", "--comp-flags", "-N", "-p", "-g"];
        let values = alone.map(|o| file(&[o]).trim_end().to_string());
        assert_eq!(values, ["2", "4194304", "1", "[0x200000401:0x5:0x0]", "0", "0", "0", "0", "1", "", "0"]);
        assert_eq!(
            file(&["-c", "-S", "-F"]),
            "/m/f\nlmm_stripe_count:  2\nlmm_stripe_size:   4194304\nlmm_fid:           [0x200000401:0x5:0x0]\n\n"
        );
        assert!(file(&["-q"]).starts_with("\tobdidx\t\t objid"));
        assert!(
            file(&["-y"]).starts_with("lmm_stripe_count:  2\n") && file(&["-y"]).contains("lmm_objects:\n- 0: { l_ost")
        );
    }

    #[test]
    fn a_directory_shows_its_default_and_raw_only_what_was_set() {
        let spec = LayoutSpec::from_raw(1 << 20, -1, -1).unwrap();
        let dir = |spec: Option<&LayoutSpec>, options: &[&str]| view(options).directory("/m/d", FID, spec);
        assert_eq!(
            dir(Some(&spec), &["-d"]),
            "/m/d\nstripe_count:  -1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n"
        );
        assert_eq!(dir(Some(&spec), &["-c"]), "-1\n");
        assert_eq!(dir(None, &["-S"]), "4194304\n");
        assert_eq!(dir(None, &["-S", "-R"]), "0\n");
        assert_eq!(
            dir(None, &["-R"]),
            "/m/d\nstripe_count:  0 stripe_size:   0 pattern:       raid0 stripe_offset: -1\n"
        );
        assert_eq!(dir(Some(&spec), &["-c", "-i"]), "/m/d\nstripe_count:  -1\nstripe_offset: -1\n\n");
        assert_eq!(dir(Some(&spec), &["-F"]), "[0x200000401:0x5:0x0]\n");
    }

    #[test]
    fn a_missing_path_and_what_is_not_there_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let e = getstripe(&[missing.into()]).unwrap_err();
        assert_eq!(e.code(), libc::ENOENT as u8);
        assert!(getstripe(&[]).unwrap_err().to_string().contains("name a file"));
        let said = |option: &str| getstripe(&[option.into(), "f".into()]).unwrap_err().to_string();
        assert!(said("-I2").contains("no component 2"));
        assert!(said("-E1M").contains("neither components nor mirrors"));
        assert!(said("-Osome").contains("-O some: 'some' is not an OST"));
    }
}
