//! The committed reference page is what the registry says.
#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/nrs.md");
    let page = std::fs::read_to_string(path).expect("docs/reference/nrs.md is part of the repository");
    let command = "cargo run -q -p stria-nrs --example nrs_reference > docs/reference/nrs.md";
    assert!(page == nrs::reference_markdown(), "docs/reference/nrs.md is not what the registry says; run: {command}");
}
