//! Prints this room's reference page: `cargo run -q -p stria-advice --example advice_reference > docs/reference/advice.md`.
fn main() {
    print!("{}", advice::reference_markdown());
}
