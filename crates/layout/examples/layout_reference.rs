//! Prints this room's reference page: `cargo run -q -p stria-layout --example layout_reference > docs/reference/layout.md`.
fn main() {
    print!("{}", layout::reference_markdown());
}
