//! Prints the room's reference page: `cargo run -q -p stria-nrs --example nrs_reference > docs/reference/nrs.md`.
fn main() {
    print!("{}", nrs::reference_markdown());
}
