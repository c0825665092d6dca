//! OST pools on a running cluster: made, filled, used by files and directories of two mounts, kept over kills of the metadata server.
//! Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use support::{Cluster, can_mount, good, own_fsname, refused, text};

fn ost_of(path: &Path) -> u16 {
    good(&["getstripe", "-i", text(path)]).trim().parse().unwrap()
}

fn xattr(path: &Path, name: &std::ffi::CStr) -> Vec<u8> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = vec![0u8; 4096];
    // SAFETY: NUL-terminated strings and a buffer of the said length.
    let n = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(n).unwrap());
    value
}

fn errno_of<T>(done: std::io::Result<T>) -> i32 {
    done.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

#[test]
fn a_pool_is_kept_and_its_files_lie_on_its_osts_on_every_mount() {
    if !can_mount() {
        return;
    }
    let fs_name = own_fsname();
    let (pool, other) = (format!("{fs_name}.flash"), format!("{fs_name}.a23456789012345"));
    let mut c = Cluster::named(3, &fs_name);
    let (a, b) = (c.mount("a", &[]), c.mount("b", &[]));
    assert_eq!(good(&["pool_list", &fs_name]), format!("Pools from {fs_name}:\n"));
    assert_eq!(good(&["pool_new", &pool]), format!("Pool {pool} created\n"));
    good(&["pool_new", &other]);
    let said = good(&["pool_add", &pool, "OST[0-1]"]);
    assert_eq!(
        said,
        format!("OST {fs_name}-OST0000_UUID added to pool {pool}\nOST {fs_name}-OST0001_UUID added to pool {pool}\n")
    );
    assert_eq!(good(&["pool_list", text(&b)]), format!("Pools from {fs_name}:\n{other}\n{pool}\n"));
    let members = format!("Pool: {pool}\n{fs_name}-OST0000_UUID\n{fs_name}-OST0001_UUID\n");
    assert_eq!(good(&["pool_list", &pool]), members);
    refusals(&fs_name, &a);
    fs::create_dir_all(a.join("d")).unwrap();
    good(&["setstripe", "-p", "flash", text(&a.join("d"))]);
    fs::create_dir_all(b.join("d/below")).unwrap();
    for i in 0..12 {
        let (in_d, below) = (b.join(format!("d/{i}")), b.join(format!("d/below/{i}")));
        fs::write(&in_d, b"x").unwrap();
        fs::write(&below, b"x").unwrap();
        assert!(ost_of(&in_d) < 2, "{}", in_d.display());
    }
    assert_eq!(good(&["getstripe", "-p", text(&b.join("d/3"))]).trim(), "flash");
    let bytes = xattr(&b.join("d/3"), c"lustre.lov");
    assert_eq!(bytes[..4], 0x0BD3_0BD0u32.to_le_bytes());
    assert_eq!(&bytes[32..48], b"flash\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(
        good(&["find", text(&a.join("d")), "-maxdepth", "1", "-type", "f", "--pool", "flash"]).lines().count(),
        12
    );
    for line in
        [vec!["migrate", "-o", "2", text(&b.join("d/3"))], vec!["setstripe", "-o", "0,2", text(&b.join("d/other"))]]
    {
        let (code, said) = refused(&line);
        let why = format!("OST 2 is not in pool 'flash', which has 0-1; new files of {}", b.join("d").display());
        assert!(code == libc::EINVAL && said.contains(&why) && said.contains("-p none"), "{line:?}: {code} {said}");
    }
    assert!(!b.join("d/other").exists());
    good(&["migrate", "-o", "2", "-p", "none", text(&b.join("d/3"))]);
    assert_eq!(ost_of(&b.join("d/3")), 2);
    good(&["migrate", "-p", "flash", text(&b.join("d/3"))]);
    let wide = a.join("wide");
    good(&["setstripe", "-p", &pool, "-c", "-1", text(&wide)]);
    assert_eq!(good(&["getstripe", "-c", text(&wide)]).trim(), "2");
    let shown = good(&["df", "-p", "flash", text(&a)]);
    assert!(
        shown.contains("OST0000") && shown.contains("OST0001") && !shown.contains("OST0002") && !shown.contains("MDT"),
        "{shown}"
    );
    let loose = a.join("loose");
    good(&["setstripe", "-i", "2", text(&loose)]);
    fs::write(&loose, vec![7; 300_000]).unwrap();
    good(&["migrate", "-p", "flash", text(&loose)]);
    assert!(ost_of(&b.join("loose")) < 2 && fs::read(b.join("loose")).unwrap() == vec![7; 300_000]);
    c.mds.as_mut().unwrap().kill();
    c.start_mds();
    assert_eq!(good(&["pool_list", &pool]), members);
    fs::write(b.join("d/after"), b"x").unwrap();
    assert!(ost_of(&a.join("d/after")) < 2);
    out_of_use(&fs_name, &a, &b);
    c.stop();
    good(&["fsck", "--dir", &c.path("c")]);
}

/// Names and members that cannot be.
fn refusals(fs_name: &str, a: &Path) {
    let (pool, other) = (format!("{fs_name}.flash"), format!("{fs_name}.a23456789012345"));
    let missing = format!("{fs_name}.none-such");
    let strange = format!("{fs_name}-OST0007");
    for (line, errno, why) in [
        (vec!["pool_new", &pool], libc::EEXIST, "pool flash already exists"),
        (vec!["pool_new", &format!("{fs_name}.a/b")], libc::EINVAL, "contains '/'"),
        (vec!["pool_new", &format!("{other}6")], libc::ENAMETOOLONG, "16 characters"),
        (vec!["pool_new", &format!("{fs_name}.größe")], libc::EINVAL, "use letters"),
        (vec!["pool_new", "flash"], libc::EINVAL, "write FSNAME.POOL"),
        (vec!["pool_new", "nosuchfs.flash"], libc::ENODEV, "no file system 'nosuchfs'"),
        (vec!["pool_add", &missing, "0"], libc::ENOENT, "none-such does not exist"),
        (vec!["pool_add", &pool, &strange], libc::ENOENT, "OST 7 is not part"),
        (vec!["pool_add", &pool, "OST0001", "2"], libc::EEXIST, "OST 1 is already in pool flash"),
        (vec!["pool_add", &pool], libc::EINVAL, "name the OSTs"),
        (vec!["pool_remove", &pool, "2"], libc::ENOENT, "OST 2 is not in pool flash"),
        (vec!["pool_destroy", &pool], libc::ENOTEMPTY, "has 2 OSTs"),
        (vec!["pool_list", &missing], libc::ENOENT, "'none-such' does not exist"),
        (vec!["setstripe", "-p", "none-such", text(a)], libc::EINVAL, "'none-such' does not exist"),
        (vec!["setstripe", "-p", &other, text(a)], libc::EINVAL, "has no OSTs"),
        (vec!["setstripe", "-p", "flash", "-i", "2", text(a)], libc::EINVAL, "OST 2 is not in pool 'flash'"),
        (vec!["df", "-p", "none-such", text(a)], libc::EINVAL, "'none-such' does not exist"),
    ] {
        let (code, said) = refused(&line);
        assert!(code == errno && said.contains(why), "{line:?}: {code} {said}");
    }
}

/// Pools that are empty, closed, and gone.
fn out_of_use(fs_name: &str, a: &Path, b: &Path) {
    let pool = format!("{fs_name}.flash");
    let limit = format!("osp.{fs_name}-OST000[01]-osc-MDT0000.max_create_count");
    good(&["set_param", "--at", text(a), &format!("{limit}=0")]);
    assert_eq!(errno_of(fs::write(b.join("d/closed"), b"x")), libc::EIO, "no OST of the pool takes files");
    fs::write(b.join("elsewhere"), b"x").unwrap();
    assert_eq!(ost_of(&b.join("elsewhere")), 2);
    assert!(good(&["df", text(a)]).contains("[OST:0] N"));
    good(&["set_param", "--at", text(a), &format!("{limit}=1024")]);
    fs::write(b.join("d/open"), b"x").unwrap();
    assert!(good(&["pool_remove", &pool, "0-1"]).contains("OST0000_UUID removed from pool"));
    assert_eq!(errno_of(fs::write(b.join("d/empty"), b"x")), libc::EINVAL, "a pool without OSTs");
    assert_eq!(fs::read(a.join("d/open")).unwrap(), b"x", "files stay as they are");
    good(&["pool_destroy", &pool]);
    fs::write(b.join("d/gone"), b"x").unwrap();
    assert_eq!(good(&["getstripe", "-p", text(&b.join("d/gone"))]).trim(), "", "nothing is known of that pool");
    assert_eq!(good(&["getstripe", "-p", text(&b.join("d/open"))]).trim(), "flash");
}

#[test]
fn what_was_said_of_a_pool_holds_whenever_the_metadata_server_is_killed() {
    if !can_mount() {
        return;
    }
    let fs_name = own_fsname();
    let mut c = Cluster::named(2, &fs_name);
    c.mount("a", &[]);
    for round in 0..6 {
        let name = format!("{fs_name}.p{round}");
        std::thread::scope(|s| {
            let changes = s.spawn(|| {
                good(&["pool_new", &name]);
                good(&["pool_add", &name, "0-1"]);
                good(&["pool_remove", &name, "OST0000"]);
            });
            for _ in 0..4 {
                c.mds.as_mut().unwrap().kill();
                c.start_mds();
            }
            changes.join().unwrap();
        });
        assert_eq!(good(&["pool_list", &name]), format!("Pool: {name}\n{fs_name}-OST0001_UUID\n"));
    }
    assert_eq!(good(&["pool_list", &fs_name]).lines().count(), 7);
    c.stop();
    good(&["fsck", "--dir", &c.path("c")]);
}
