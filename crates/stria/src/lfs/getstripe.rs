//! `getstripe`: layouts as text.
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use layout::text::{self, Field};
use layout::{Layout, LayoutSpec};
use types::Fid;

use super::getopt::{Parsed, getopt};
use super::xattr;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: getstripe [-c] [-S] [-i] [-L] [-p] [-g] [-F] [-d] [-D] [-r] [-R] [-v] [-q] PATH...
  -c count  -S size  -i index of the first OST  -L pattern  -p pool  -g generation  -F FID: only these
  -d        the directory itself, not what is in it    -D  the directory's default
  -r        also below directories                     -R  as set, without defaults filled in
  -v        more                                       -q  only the objects, without the path";

const LONG: &[(&str, char)] = &[
    ("stripe-count", 'c'),
    ("stripe-size", 'S'),
    ("stripe-index", 'i'),
    ("stripe-start", 'i'),
    ("layout", 'L'),
    ("pool", 'p'),
    ("generation", 'g'),
    ("fid", 'F'),
    ("directory", 'd'),
    ("default", 'D'),
    ("recursive", 'r'),
    ("raw", 'R'),
    ("verbose", 'v'),
    ("quiet", 'q'),
    ("help", 'h'),
];

/// Letters of single values: field, label of files, label of directories.
const FIELDS: &[(char, Field, &str)] = &[
    ('c', Field::StripeCount, "stripe_count:  "),
    ('S', Field::StripeSize, "stripe_size:   "),
    ('L', Field::Pattern, "pattern:       "),
    ('g', Field::Generation, "layout_gen:    "),
    ('i', Field::StripeIndex, "stripe_offset: "),
    ('p', Field::Pool, "pool:          "),
];

/// Runs the verb.
///
/// # Errors
/// What is wrong with the options or a path.
pub fn getstripe(arguments: &[OsString]) -> Outcome {
    let parsed = getopt("getstripe", arguments, "cSiLpgFdDrRvqh", LONG)?;
    if parsed.has('h') {
        say!("{USAGE}");
        return Ok(());
    }
    if parsed.operands.is_empty() {
        return Err(Failure::usage(format!("getstripe: name a file or a directory\n{USAGE}")));
    }
    for path in &parsed.operands {
        let path = Path::new(path);
        let meta = fs::metadata(path).map_err(|e| Failure::io("getstripe:", path, &e))?;
        crate::out::print(format_args!("{}", show(path, meta.is_dir(), &parsed)?));
        if meta.is_dir() && !parsed.has('d') && !parsed.has('D') {
            below(path, &parsed)?;
        }
    }
    Ok(())
}

/// The entries of a directory; all that is below them with `-r`.
fn below(dir: &Path, parsed: &Parsed) -> Outcome {
    let io = |e: std::io::Error| Failure::io("getstripe: reading", dir, &e);
    let mut entries = fs::read_dir(dir).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(io)?;
        if kind.is_dir() || kind.is_file() {
            crate::out::print(format_args!("{}", show(&entry.path(), kind.is_dir(), parsed)?));
        }
        if kind.is_dir() && parsed.has('r') {
            below(&entry.path(), parsed)?;
        }
    }
    Ok(())
}

fn show(path: &Path, is_dir: bool, parsed: &Parsed) -> Result<String, Failure> {
    let bytes = if is_dir { xattr::get_lov(path)? } else { xattr::get_stored_lov(path)? };
    let name = path.display().to_string();
    let unreadable = |e: layout::xattr::XattrError| {
        Failure::with_errno(format!("getstripe: {name}: its layout cannot be read: {e}"), libc::EBADMSG)
    };
    if is_dir {
        let spec = bytes.map(|b| layout::xattr::decode_spec(&b)).transpose().map_err(unreadable)?;
        return Ok(directory(&name, spec.as_ref(), parsed));
    }
    match bytes {
        None => Ok(format!("{name} has no stripe info\n")),
        Some(b) => {
            let (fid, layout) = layout::xattr::decode_layout(&b).map_err(unreadable)?;
            Ok(file(&name, fid, &layout, parsed))
        }
    }
}

fn file(name: &str, fid: Fid, layout: &Layout, parsed: &Parsed) -> String {
    let asked: Vec<_> = FIELDS.iter().filter(|(l, ..)| parsed.has(*l)).collect();
    if parsed.has('F') && asked.is_empty() {
        return format!("{fid}\n");
    }
    match asked[..] {
        [] if parsed.has('q') => text::objects(layout) + "\n",
        [] => text::file(name, fid, layout, parsed.has('v')),
        [(_, field, _)] if !parsed.has('v') => text::file_field(layout, *field) + "\n",
        _ => labelled(name, "lmm_", &asked, |f| text::file_field(layout, f)),
    }
}

fn directory(name: &str, spec: Option<&LayoutSpec>, parsed: &Parsed) -> String {
    let asked: Vec<_> = FIELDS.iter().filter(|(l, ..)| parsed.has(*l)).collect();
    if spec.is_none() && parsed.has('R') && asked.is_empty() {
        return format!("{name} has no stripe info\n");
    }
    let spec = spec.cloned().unwrap_or_default();
    match asked[..] {
        [] if parsed.has('q') => text::directory("", &spec, &LayoutSpec::default()).trim_start().to_string(),
        [] => text::directory(name, &spec, &LayoutSpec::default()),
        [(_, field, _)] if !parsed.has('v') => text::spec_field(&spec, *field) + "\n",
        _ => labelled(name, "", &asked, |f| text::spec_field(&spec, f)),
    }
}

fn labelled(name: &str, prefix: &str, asked: &[&(char, Field, &str)], value: impl Fn(Field) -> String) -> String {
    let lines = asked.iter().map(|(_, field, label)| format!("{prefix}{label}{}\n", value(*field)));
    format!("{name}\n{}\n", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::{Pattern, StripeObject, StripeSize};
    use types::{ObjectId, OstIndex};

    fn options(arguments: &[&str]) -> Parsed {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        getopt("getstripe", &arguments, "cSiLpgFdDrRvqh", LONG).unwrap()
    }
    fn two() -> Layout {
        let object = |ost, oid| StripeObject { ost: OstIndex(ost), object: ObjectId::new(OstIndex(ost), oid) };
        Layout::new(StripeSize::DEFAULT, Pattern::Raid0, None, vec![object(1, 2), object(2, 7)]).unwrap()
    }
    const FID: Fid = Fid { seq: 0x2_0000_0401, oid: 5, ver: 0 };

    #[test]
    fn a_single_value_stands_alone_and_several_have_labels() {
        assert_eq!(file("/m/f", FID, &two(), &options(&["-c"])), "2\n");
        assert_eq!(file("/m/f", FID, &two(), &options(&["-S"])), "4194304\n");
        assert_eq!(file("/m/f", FID, &two(), &options(&["-i"])), "1\n");
        assert_eq!(file("/m/f", FID, &two(), &options(&["-F"])), "[0x200000401:0x5:0x0]\n");
        assert_eq!(
            file("/m/f", FID, &two(), &options(&["-c", "-S"])),
            "/m/f\nlmm_stripe_count:  2\nlmm_stripe_size:   4194304\n\n"
        );
        assert!(file("/m/f", FID, &two(), &options(&["-q"])).starts_with("\tobdidx\t\t objid"));
    }

    #[test]
    fn a_directory_shows_its_default_and_raw_only_what_was_set() {
        let spec = LayoutSpec::from_raw(1 << 20, -1, -1).unwrap();
        assert_eq!(
            directory("/m/d", Some(&spec), &options(&["-d"])),
            "/m/d\nstripe_count:  -1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n"
        );
        assert_eq!(directory("/m/d", Some(&spec), &options(&["-c"])), "-1\n");
        assert_eq!(directory("/m/d", None, &options(&["-S"])), "4194304\n");
        assert_eq!(directory("/m/d", None, &options(&["-R"])), "/m/d has no stripe info\n");
        assert_eq!(
            directory("/m/d", Some(&spec), &options(&["-c", "-i"])),
            "/m/d\nstripe_count:  -1\nstripe_offset: -1\n\n"
        );
    }

    #[test]
    fn a_missing_path_and_a_path_elsewhere_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let e = getstripe(&[missing.into()]).unwrap_err();
        assert_eq!(e.code(), libc::ENOENT as u8);
        assert!(getstripe(&[]).unwrap_err().to_string().contains("name a file"));
    }
}
