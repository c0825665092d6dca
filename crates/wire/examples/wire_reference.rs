//! Prints the generated half of `docs/spec/wire.md`; `cargo xtask pages --write` puts it there.
fn main() {
    print!("{}", wire::spec::messages());
}
