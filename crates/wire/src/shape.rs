//! What the specification says of types: collected from their declarations, so that `docs/spec/wire.md` is never another's.
use std::collections::BTreeMap;

/// A value or bit of a number, as its declaration has it: name, number, meaning.
pub type Named = (&'static str, u64, &'static str);

/// A field as its declaration has it: name, type, meaning.
pub type Field = (&'static str, fn(&mut Shapes) -> String, &'static str);

/// A type with a description of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// What it is.
    pub meaning: String,
    /// What it consists of.
    pub rows: Rows,
}

/// What a [`Shape`] consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rows {
    /// A length and these, in order: name, type, meaning.
    Fields(Vec<[String; 3]>),
    /// A byte that is one of these.
    Values(Vec<(String, u64, String)>),
    /// A number with some of these bits.
    Bits(Vec<(String, u64, String)>),
}

/// The types that were met so far, by module and name.
#[derive(Clone, Default, Debug)]
pub struct Shapes(BTreeMap<String, Shape>);

impl Shapes {
    /// A struct of a message; answers what the page calls it.
    pub fn part(&mut self, module: &str, name: &str, meaning: &str, fields: &[Field]) -> String {
        let place = place(module, name);
        if !self.0.contains_key(&place) {
            let blank = Shape { meaning: plain(meaning), rows: Rows::Fields(Vec::new()) };
            self.0.insert(place.clone(), blank.clone());
            let row = |(name, shape, meaning): &Field| [(*name).to_string(), shape(self), plain(meaning)];
            let rows = Rows::Fields(fields.iter().map(row).collect());
            self.0.insert(place.clone(), Shape { rows, ..blank });
        }
        format!("`{place}`")
    }
    /// A byte with named values; answers what the page calls it.
    pub fn byte<N: Into<String>>(
        &mut self,
        module: &str,
        name: &str,
        meaning: &str,
        values: impl IntoIterator<Item = (N, u64, &'static str)>,
    ) -> String {
        let place = place(module, name);
        self.0.insert(place.clone(), Shape { meaning: plain(meaning), rows: Rows::Values(named(values)) });
        format!("`{place}`")
    }
    /// Named bits of a number that some field has.
    pub(crate) fn bits(&mut self, bits: &Bits) {
        let shape = Shape { meaning: plain(bits.meaning), rows: Rows::Bits(named(bits.values.iter().copied())) };
        self.0.insert(place(bits.module, bits.name), shape);
    }
    /// By module and name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Shape)> {
        self.0.iter().map(|(place, shape)| (&**place, shape))
    }
}

fn named<N: Into<String>>(values: impl IntoIterator<Item = (N, u64, &'static str)>) -> Vec<(String, u64, String)> {
    values.into_iter().map(|(name, value, meaning)| (name.into(), value, plain(meaning))).collect()
}

/// `ost.SyncRequest`: the last part of the module's path, and the name; golden files have the same.
fn place(module: &str, name: &str) -> String {
    format!("{}.{name}", module.rsplit("::").next().unwrap_or(module))
}

/// A comment of a declaration as the page has it: without links and paths of the language.
#[must_use]
pub fn plain(comment: &str) -> String {
    let text = comment.trim().replace("[`", "`").replace("`]", "`");
    ["crate::", "types::"].iter().fold(text, |text, path| text.replace(path, "")).replace("::", ".")
}

/// A number's bits, named.
#[derive(Clone, Copy, Debug)]
pub struct Bits {
    /// Where they are declared.
    pub module: &'static str,
    /// What they are called together.
    pub name: &'static str,
    /// What they are.
    pub meaning: &'static str,
    /// Each of them.
    pub values: &'static [Named],
}

/// Declares bits of a number that is a field of some message.
macro_rules! bits {
    ($(#[doc = $doc:literal])+ $name:ident: $ty:ty { $($(#[doc = $vdoc:literal])+ $bit:ident = $value:literal,)* }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl $name {
            $($(#[doc = $vdoc])+ pub const $bit: $ty = $value;)*
            /// What the specification says of them.
            pub const BITS: $crate::shape::Bits = $crate::shape::Bits {
                module: module_path!(),
                name: stringify!($name),
                meaning: concat!($($doc),+),
                values: &[$((stringify!($bit), $value, concat!($($vdoc),+)),)*],
            };
        }
    };
}
pub(crate) use bits;

/// Declares a set of bits as a type of its own.
macro_rules! flags {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $bit:ident = $value:literal,)* }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct $name(pub u16);
        impl $name {
            $($(#[doc = $vdoc])+ pub const $bit: $name = $name($value);)*
            /// What the specification says of them.
            pub const BITS: $crate::shape::Bits = $crate::shape::Bits {
                module: module_path!(),
                name: stringify!($name),
                meaning: concat!($($doc),+),
                values: &[$((stringify!($bit), $value, concat!($($vdoc),+)),)*],
            };

            /// Whether all bits of `other` are set.
            #[must_use]
            pub const fn has(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }
            /// With the bits of `other` set.
            #[must_use]
            pub const fn with(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }
    };
}
pub(crate) use flags;
