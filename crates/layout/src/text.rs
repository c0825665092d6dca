//! The text that `getstripe` prints. Pure functions; labels and columns are those that scripts parse.
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use types::Fid;

use crate::layout_type::{Layout, Pattern, StripeSize};
use crate::spec::{LayoutSpec, PoolChoice};
use crate::xattr::{MAGIC_V1, MAGIC_V3};

/// One value of a layout, as `getstripe -c`, `-S`, `-i`, `-L`, `-p`, `-g` ask for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// `-c`.
    StripeCount,
    /// `-S`, in bytes.
    StripeSize,
    /// `-i`: the first OST.
    StripeIndex,
    /// `-L`.
    Pattern,
    /// `-p`; empty without a pool.
    Pool,
    /// `-g`.
    Generation,
}

/// The whole answer for a plain file: path, header, object table, blank line. `verbose` is `-v`.
#[must_use]
pub fn file(path: &str, fid: Fid, layout: &Layout, verbose: bool) -> String {
    format!("{path}\n{}{}\n", header(fid, layout, verbose), objects(layout))
}

/// The labelled lines of a file's layout.
fn header(fid: Fid, layout: &Layout, verbose: bool) -> String {
    let mut out = String::new();
    if verbose {
        let magic = if layout.pool().is_some() { MAGIC_V3 } else { MAGIC_V1 };
        out += &format!("lmm_magic:         0x{magic:08X}\n");
        out += &format!("lmm_seq:           {:#x}\n", fid.seq);
        out += &format!("lmm_object_id:     {:#x}\n", fid.oid);
        out += &format!("lmm_fid:           {fid}\n");
    }
    out += &format!("lmm_stripe_count:  {}\n", layout.stripe_count());
    out += &format!("lmm_stripe_size:   {}\n", layout.stripe_size().bytes());
    out += &format!("lmm_pattern:       {}\n", pattern(layout.pattern()));
    out += &format!("lmm_layout_gen:    {}\n", layout.generation());
    out += &format!("lmm_stripe_offset: {}\n", layout.first_ost().0);
    if let Some(pool) = layout.pool() {
        out += &format!("lmm_pool:          {pool}\n");
    }
    out
}

/// The object table with its heading: `obdidx`, `objid` in decimal and hexadecimal, `group` (the sequence).
#[must_use]
pub fn objects(layout: &Layout) -> String {
    let mut out = String::from("\tobdidx\t\t objid\t\t objid\t\t group\n");
    for o in layout.objects() {
        let fid = o.object.0;
        out += &format!("\t{:>6}\t{:>14}\t{:>#13x}\t{:>#14x}\n", o.ost.0, fid.oid, fid.oid, fid.seq);
    }
    out
}

/// A file's layout as YAML: the same labels, and its objects as a list.
#[must_use]
pub fn yaml(fid: Fid, layout: &Layout, verbose: bool) -> String {
    let mut out = header(fid, layout, verbose);
    out += "lmm_objects:\n";
    for (i, o) in layout.objects().iter().enumerate() {
        out += &format!("- {i}: {{ l_ost_idx: {}, l_fid: {} }}\n", o.ost.0, o.object.0);
    }
    out + "\n"
}

/// Labels and values of a directory's default.
fn directory_values(spec: &LayoutSpec, raw: bool) -> Vec<String> {
    let mut values = vec![
        format!("stripe_count:  {}", spec_field(spec, Field::StripeCount, raw)),
        format!("stripe_size:   {}", spec_field(spec, Field::StripeSize, raw)),
        format!("pattern:       {}", spec_field(spec, Field::Pattern, raw)),
        format!("stripe_offset: {}", spec_field(spec, Field::StripeIndex, raw)),
    ];
    if let PoolChoice::Named(pool) = spec.pool {
        values.push(format!("pool:          {pool}"));
    }
    values
}

/// The answer for a directory: path and its default in one line. `raw`: as set, without house defaults.
#[must_use]
pub fn directory(path: &str, spec: &LayoutSpec, raw: bool) -> String {
    format!("{path}\n{}\n", directory_values(spec, raw).join(" "))
}

/// A directory's default as YAML.
#[must_use]
pub fn directory_yaml(spec: &LayoutSpec, raw: bool) -> String {
    directory_values(spec, raw).join("\n") + "\n\n"
}

/// One value of a file's layout.
#[must_use]
pub fn file_field(layout: &Layout, field: Field) -> String {
    match field {
        Field::StripeCount => layout.stripe_count().to_string(),
        Field::StripeSize => layout.stripe_size().bytes().to_string(),
        Field::StripeIndex => layout.first_ost().0.to_string(),
        Field::Pattern => pattern(layout.pattern()).to_string(),
        Field::Pool => layout.pool().map(|p| p.to_string()).unwrap_or_default(),
        Field::Generation => layout.generation().to_string(),
    }
}

/// One value of a directory's default, house defaults filled in unless `raw`: -1 for all OSTs and for any OST.
#[must_use]
pub fn spec_field(spec: &LayoutSpec, field: Field, raw: bool) -> String {
    match field {
        Field::StripeCount => match spec.stripe_count.to_raw() {
            0 if !raw => "1".to_string(),
            n => n.to_string(),
        },
        Field::StripeSize => match spec.stripe_size {
            None if raw => "0".to_string(),
            size => size.unwrap_or(StripeSize::DEFAULT).bytes().to_string(),
        },
        Field::StripeIndex => spec.index.map_or_else(|| "-1".to_string(), |i| i.0.to_string()),
        Field::Pattern => pattern(if spec.overstripe { Pattern::Raid0Overstriped } else { Pattern::Raid0 }).to_string(),
        Field::Pool => match spec.pool {
            PoolChoice::Named(pool) => pool.to_string(),
            _ => String::new(),
        },
        Field::Generation => "0".to_string(),
    }
}

/// A pattern's name.
#[must_use]
pub fn pattern(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Raid0 => "raid0",
        Pattern::Raid0Overstriped => "raid0,overstriped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout_type::StripeObject;
    use crate::pool::PoolName;
    use std::vec::Vec;
    use types::{ObjectId, OstIndex};

    fn two(pool: Option<&str>) -> Layout {
        let objects: Vec<_> = [(0u16, 2u32), (1, 35717)]
            .map(|(ost, oid)| StripeObject { ost: OstIndex(ost), object: ObjectId::new(OstIndex(ost), oid) })
            .to_vec();
        let pool = pool.map(|p| PoolName::parse(p).unwrap());
        Layout::new(StripeSize::DEFAULT, Pattern::Raid0, pool, objects).unwrap()
    }

    #[test]
    fn a_plain_file_prints_the_labels_scripts_parse() {
        let text = file("/mnt/f", Fid::new(0x2_0000_0401, 5), &two(None), false);
        let expected = "/mnt/f\n\
            lmm_stripe_count:  2\n\
            lmm_stripe_size:   4194304\n\
            lmm_pattern:       raid0\n\
            lmm_layout_gen:    0\n\
            lmm_stripe_offset: 0\n\
            \tobdidx\t\t objid\t\t objid\t\t group\n\
            \t     0\t             2\t          0x2\t   0x240000401\n\
            \t     1\t         35717\t       0x8b85\t   0x280000401\n\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn verbose_adds_magic_and_fid_and_a_pool_has_its_line() {
        let text = file("/mnt/f", Fid::new(0x2_0000_0401, 5), &two(Some("flash")), true);
        let expected = "/mnt/f\n\
            lmm_magic:         0x0BD30BD0\n\
            lmm_seq:           0x200000401\n\
            lmm_object_id:     0x5\n\
            lmm_fid:           [0x200000401:0x5:0x0]\n\
            lmm_stripe_count:  2\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("lmm_stripe_offset: 0\nlmm_pool:          flash\n\tobdidx"), "{text}");
    }

    #[test]
    fn a_directory_prints_one_line() {
        let spec = LayoutSpec::default();
        assert_eq!(
            directory("/mnt/d", &spec, false),
            "/mnt/d\nstripe_count:  1 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n"
        );
        let mut all = LayoutSpec::from_raw(1 << 20, -1, 3).unwrap();
        all.pool = PoolChoice::parse("flash").unwrap();
        assert_eq!(
            directory("/mnt/d", &all, false),
            "/mnt/d\nstripe_count:  -1 stripe_size:   1048576 pattern:       raid0 stripe_offset: 3 pool:          flash\n"
        );
    }

    #[test]
    fn single_values_stand_alone() {
        let l = two(Some("flash"));
        let all =
            [Field::StripeCount, Field::StripeSize, Field::StripeIndex, Field::Pattern, Field::Pool, Field::Generation];
        assert_eq!(all.map(|f| file_field(&l, f)), ["2", "4194304", "0", "raid0", "flash", "0"]);
        assert_eq!(all.map(|f| spec_field(&LayoutSpec::default(), f, false)), ["1", "4194304", "-1", "raid0", "", "0"]);
        assert_eq!(all.map(|f| spec_field(&LayoutSpec::default(), f, true)), ["0", "0", "-1", "raid0", "", "0"]);
    }
}
