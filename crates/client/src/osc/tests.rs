//! Which OSTs and objects a client knows.
use std::cell::Cell;

use types::{FsError, OstIndex};

use super::*;
use crate::parts::{Parts, fid, layout_of, map_of};

#[test]
fn an_object_is_known_as_long_as_its_file_is() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 2);
        let inode = parts.meta.inode(fid(1));
        parts.osts.take_layout(&inode, &layout_of(fid(1), &[1, 0]), &[]).unwrap();
        let striping = inode.striping().unwrap();
        assert_eq!(striping.objects.iter().map(|o| (o.ost, o.stripe.get())).collect::<Vec<_>>(), [(1, 0), (0, 1)]);
        parts.osts.take_layout(&inode, &layout_of(fid(1), &[1, 0]), &[]).unwrap();
        assert!(Rc::ptr_eq(&striping, &inode.striping().unwrap()), "it was known");
        drop(striping);
        parts.osts.prune();
        assert_eq!(parts.osts.object_count(), 2);
        drop(inode);
        parts.meta.keep_house();
        assert_eq!(parts.osts.object_count(), 0);
    });
}

#[test]
fn a_layout_with_an_unknown_ost_is_refused_until_the_map_has_it() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 1);
        let (inode, layout) = (parts.meta.inode(fid(1)), layout_of(fid(1), &[0, 2]));
        assert_eq!(parts.osts.take_layout(&inode, &layout, &[]), Err(FsError::NoTarget));
        assert!(inode.striping().is_none());
        parts.osts.take_map(map_of(3));
        assert_eq!(parts.osts.take_layout(&inode, &layout, &[]), Ok(()));
        assert_eq!(inode.striping().unwrap().objects[1].ost, 2);
    });
}

#[test]
fn an_ost_is_used_while_both_the_map_and_the_administrator_have_it_in_service() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 2);
        let osc = parts.osts.osc(1);
        assert_eq!(
            (osc.index(), osc.import().map(|i| i.target().to_string())),
            (OstIndex(1), Ok("stria-OST0001".into()))
        );
        osc.set_active(false);
        assert_eq!(osc.import().map(|_| ()), Err(FsError::Io));
        let mut map = map_of(2);
        map.osts[1].active = false;
        parts.osts.take_map(map);
        osc.set_active(true);
        assert!(!osc.is_active(), "the map says no");
        parts.osts.take_map(map_of(2));
        assert!(osc.is_active() && osc.import_if_any().is_some());
        assert_eq!(parts.osts.all().len(), 2, "it is the same one");
    });
}

#[test]
fn settings_are_told_at_once_and_with_every_map_that_the_server_sends() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let (parts, told) = (Parts::new(&rt, 0), Rc::new(Cell::new(0)));
        let count = told.clone();
        parts.osts.on_settings(Rc::new(move |settings| count.set(count.get() + 1 + 10 * settings.len())));
        assert_eq!(told.get(), 1);
        let map = ConfigReply { settings: vec![Setting::default()], ..map_of(0) };
        parts.osts.map_came(map);
        assert_eq!((told.get(), parts.osts.map().settings.len()), (12, 1));
    });
}
