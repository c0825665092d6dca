//! The committed reference page is what the registry says.
#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cache.md");
    let page = std::fs::read_to_string(path).expect("docs/reference/cache.md is part of the repository");
    let command = "cargo run -q -p stria-cache --example cache_reference > docs/reference/cache.md";
    assert!(
        page == cache::reference_markdown(),
        "docs/reference/cache.md is not what the registry says; run: {command}"
    );
}
