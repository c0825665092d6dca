//! Key files and descriptions of credentials: no bytes panic, none that are too short make a key, and a description that is taken is
//! the one that its reader would write.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::golden::Folder;
use formats::memory::Counting;
use ptlrpc::{ClusterKey, Limits};
use types::{ClientId, Fid, WallTime};
use wire::credential::{Credential, CredentialFlags, IdRange};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn described() -> Limits {
    let uids =
        vec![IdRange { client: 0, server: 100_000, count: 65_536 }, IdRange { client: 70_000, server: 1, count: 2 }];
    Limits::new(Credential {
        version: 1,
        cluster: 0x57a1,
        id: 9,
        name: "lab-1".into(),
        issued: WallTime(1_000),
        expires: WallTime(2_000),
        flags: CredentialFlags::READ_ONLY | CredentialFlags::SQUASH_ROOT,
        subtree: Fid::new(0x2_0000_0400, 7),
        path: "projects/a".into(),
        squash_uid: 65_534,
        squash_gid: 65_533,
        uids,
        gids: vec![IdRange { client: 0, server: 5, count: 1 }],
    })
    .unwrap()
}

fn text() -> String {
    let admin = ClusterKey::from_text(b"0123456789abcdef").unwrap();
    admin.credential_of(described()).unwrap().credential_text().unwrap()
}

/// What begins like this says the same of any input.
fn beginning(e: &str) -> String {
    e.chars().take(20).collect()
}

#[test]
fn no_key_text_panics_and_short_ones_are_refused() {
    let target = Target {
        name: "key",
        root: ROOT,
        seeds: vec![b"0123456789abcdef\n".to_vec(), b"   short  ".to_vec(), text().into_bytes()],
        words: &[b"\n", b" ", b"\0", b"stria-credential-1:", b"stria-client-1:", b":", b"00"],
        mend: None,
        memory: (16 << 10, 8),
    };
    target.run(|input| match ClusterKey::from_text(input) {
        Ok(key) => {
            assert!(input.trim_ascii().len() >= 16);
            let proof = key.proof("client", key.role(), [input, b"other"], input, ClientId(1)).unwrap();
            assert!(ClusterKey::matches(&proof, &proof) && !ClusterKey::matches(&proof, input));
            1
        }
        Err(e) => outcome_of(&beginning(&e)),
    });
}

#[test]
fn no_description_panics_and_what_is_taken_is_what_its_reader_writes() {
    let target = Target {
        name: "credential",
        root: ROOT,
        seeds: vec![described().bytes(), wire::encode(&Credential::default())],
        words: &[&[1, 0, 0, 0], &[255; 4], &[0; 8], &[12, 0, 0, 0]],
        mend: None,
        memory: (16 << 10, 16),
    };
    target.run(|input| match Limits::read(input) {
        Ok(limits) => {
            assert_eq!(limits.bytes(), input);
            let said = limits.said();
            for r in &said.uids {
                assert_eq!(limits.uid_in(r.client).and_then(|u| limits.uid_out(u)), Some(r.client));
                let last = r.client + (r.count - 1);
                assert_eq!(limits.uid_in(last).and_then(|u| limits.uid_out(u)), Some(last));
            }
            2
        }
        Err(e) => outcome_of(&beginning(&e)),
    });
}

#[test]
fn descriptions_and_files_of_credentials_are_as_they_were_written_down() {
    let golden = Folder::of(ROOT);
    golden.check("credential.description", &described().bytes());
    golden.check("credential.file", text().as_bytes());
    golden.finish();
}
