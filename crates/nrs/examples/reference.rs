//! Prints the room's reference page: `cargo run -q -p stria-nrs --example reference > docs/reference/nrs.md`.
fn main() {
    print!("{}", nrs::reference_markdown());
}
