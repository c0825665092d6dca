//! Prints the room's reference page: `cargo run -q -p stria-cache --example cache_reference > docs/reference/cache.md`.
fn main() {
    print!("{}", cache::reference_markdown());
}
