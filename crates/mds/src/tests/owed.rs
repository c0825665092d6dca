//! What OSTs are owed, where they are slow to take it or refuse some of it.
use types::{Fid, ObjectId, OstIndex};
use wire::Op as Rpc;
use wire::connect::{ConfigReply, OstEntry, RegisterRequest};
use wire::mdt::SetBits;

use super::harness::{Fs, entry};

const ROOT: Fid = Fid::ROOT;

fn object_of(fs: &Fs, file: Fid) -> ObjectId {
    layout::xattr::decode_layout(&fs.getxattr(file, "lustre.lov").unwrap()).unwrap().1.objects()[0].object
}

/// New files, with an object each.
fn files(fs: &Fs, n: usize) -> Vec<(String, Fid, ObjectId)> {
    let one = |i| {
        let name = format!("f{i}");
        let f = fs.create(ROOT, &name).unwrap();
        (name, f, object_of(fs, f))
    };
    (0..n).map(one).collect()
}

#[test]
fn what_an_ost_was_asked_when_it_died_is_asked_at_its_new_address() {
    let fs = Fs::new();
    let files = files(&fs, 4);
    fs.sync();
    fs.osts.silent.set(true);
    for (name, _, _) in &files {
        fs.unlink(ROOT, name).unwrap();
    }
    fs.sync();
    fs.world.settle();
    fs.osts.silent.set(false);
    for ost in 0..2 {
        let moved = RegisterRequest {
            entry: OstEntry { nid: "local:y".into(), ..entry(ost) },
            cluster: 77,
            ..RegisterRequest::default()
        };
        let _: ConfigReply = fs.call(Rpc::Register, &moved).unwrap();
    }
    fs.pass(2);
    let destroyed = fs.osts.destroyed.borrow();
    assert!(files.iter().all(|(_, _, o)| destroyed.contains(o)), "{destroyed:?}");
}

#[test]
fn a_damaged_object_keeps_an_ost_from_no_other_and_is_destroyed_when_that_is_possible() {
    let fs = Fs::new();
    let files = files(&fs, 40);
    let bad = files[17].2;
    let own = files.iter().find(|(_, _, o)| o.0.seq == ObjectId::seq_of(OstIndex(0)) && *o != bad).unwrap();
    fs.sync();
    fs.osts.damaged.borrow_mut().push(bad);
    for (name, _, _) in files.iter().filter(|f| f != &own) {
        fs.unlink(ROOT, name).unwrap();
    }
    fs.setattr(own.1, SetBits::UID, |q| q.uid = 7).unwrap();
    fs.sync();
    fs.pass(5);
    let times = |o: ObjectId| fs.osts.destroyed.borrow().iter().filter(|d| **d == o).count();
    for (_, _, o) in files.iter().filter(|f| f != &own) {
        assert_eq!(times(*o), usize::from(*o != bad), "{o}");
    }
    assert!(fs.osts.owned.borrow().iter().any(|o| o.object == own.2 && o.uid == 7));
    fs.osts.damaged.borrow_mut().clear();
    fs.pass(620);
    assert_eq!(times(bad), 1);
}

#[test]
fn what_an_ost_hears_about_a_damaged_object_comes_in_order() {
    let fs = Fs::new();
    let (_, f, object) = files(&fs, 1).remove(0);
    fs.osts.damaged.borrow_mut().push(object);
    for uid in 1..4 {
        fs.setattr(f, SetBits::UID, |q| q.uid = uid).unwrap();
        fs.sync();
        fs.pass(2);
    }
    fs.osts.damaged.borrow_mut().clear();
    fs.pass(620);
    let told: Vec<u32> = fs.osts.owned.borrow().iter().filter(|o| o.object == object).map(|o| o.uid).collect();
    assert_eq!(told, [1, 2, 3]);
}
