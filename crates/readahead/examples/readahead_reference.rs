//! Prints this room's reference page: `cargo run -q -p stria-readahead --example readahead_reference > docs/reference/readahead.md`.
fn main() {
    print!("{}", readahead::reference_markdown());
}
