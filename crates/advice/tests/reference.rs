//! The committed reference page is what the registry says.
#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/advice.md");
    let page = std::fs::read_to_string(path).expect("docs/reference/advice.md is part of the repository");
    let command = "cargo run -q -p stria-advice --example advice_reference > docs/reference/advice.md";
    assert!(
        page == advice::reference_markdown(),
        "docs/reference/advice.md is not what the registry says; run: {command}"
    );
}
