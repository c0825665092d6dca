//! Prints `docs/reference/datapath.md`.
fn main() {
    print!("{}", datapath::conformance::reference_markdown());
}
