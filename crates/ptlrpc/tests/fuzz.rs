//! Key files: no text panics, and none that is too short makes a key.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use ptlrpc::ClusterKey;
use types::ClientId;

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn no_key_text_panics_and_short_ones_are_refused() {
    let target = Target {
        name: "key",
        root: ROOT,
        seeds: vec![b"0123456789abcdef\n".to_vec(), b"   short  ".to_vec()],
        words: &[b"\n", b" ", b"\0"],
        mend: None,
        memory: (4 << 10, 1),
    };
    target.run(|input| match ClusterKey::from_text(input) {
        Ok(key) => {
            assert!(input.trim_ascii().len() >= 16);
            let proof = key.proof("client", key.role(), [input, b"other"], input, ClientId(1)).unwrap();
            assert!(ClusterKey::matches(&proof, &proof) && !ClusterKey::matches(&proof, input));
            1
        }
        Err(e) => outcome_of(&e[..20]),
    });
}
