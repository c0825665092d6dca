//! The committed reference page is what the suite finds.
#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/datapath.md");
    let page = std::fs::read_to_string(path).expect("docs/reference/datapath.md is part of the repository");
    let command = "cargo run -q -p stria-datapath --example datapath_reference > docs/reference/datapath.md";
    assert!(
        page == datapath::conformance::reference_markdown(),
        "docs/reference/datapath.md is not what the suite finds; run: {command}"
    );
}
