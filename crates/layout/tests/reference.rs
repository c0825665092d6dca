//! The committed reference page is what the registry says.
#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/layout.md");
    let page = std::fs::read_to_string(path).expect("docs/reference/layout.md is part of the repository");
    let command = "cargo run -q -p stria-layout --example layout_reference > docs/reference/layout.md";
    assert!(
        page == layout::reference_markdown(),
        "docs/reference/layout.md is not what the registry says; run: {command}"
    );
}
