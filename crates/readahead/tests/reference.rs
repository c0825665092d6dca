//! The committed reference page is what the registry says.
#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/readahead.md");
    let page = std::fs::read_to_string(path).expect("docs/reference/readahead.md is part of the repository");
    let command = "cargo run -q -p stria-readahead --example readahead_reference > docs/reference/readahead.md";
    assert!(
        page == readahead::reference_markdown(),
        "docs/reference/readahead.md is not what the registry says; run: {command}"
    );
}
