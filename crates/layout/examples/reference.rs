//! Prints this room's reference page: `cargo run -q -p stria-layout --example reference > docs/reference/layout.md`.
fn main() {
    print!("{}", layout::reference_markdown());
}
