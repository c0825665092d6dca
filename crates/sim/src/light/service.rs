//! What OSTs do with a request that has left the dispatch window: caches are looked up, disks and fast devices work, what was
//! read or written is kept; and what is fetched because of advice while nobody waits.
use super::config::Operation;
use super::ost::{Blocks, Ost, Request};
use super::tiers::{COPY, FETCH};
use super::world::{Event, FAST, World, number, object};
use cache::PageAccess;
use devices::Access;
use types::{Extent, RequestId};

impl World<'_> {
    pub(super) fn on_submit(&mut self, now: u64, o: u32, req: u32) {
        let write = self.operation == Operation::Write;
        let Request { flow: f, rpc, .. } = *self.osts[o as usize].pipeline.job(RequestId(req));
        let (extent, blocks, of_node) =
            (self.extent(f, rpc), self.blocks(f, rpc), self.is_of_node(&self.flows[f as usize]));
        let Ost { pipeline, store, alloc, cache, hash, tiers, .. } = &mut self.osts[o as usize];
        let request = pipeline.job_mut(RequestId(req));
        let flow = &mut self.flows[f as usize];
        let object = object(flow);
        let mut copies = 0;
        hash.event(now - self.begin, 2, flow.client, number(of_node, rpc, extent));
        let (mut pieces, mut timer) = (0, None);
        let mut submit = |lba, len| {
            pieces += 1;
            timer = timer.or(store.submit(now, req, Access { lba, len, write }));
        };
        // What has copies comes from the fast device, the rest from the disk.
        let mut read = |part: Extent| {
            let (part, reads) = tiers.as_mut().map_or((part, 0), |t| t.read(now, req, object, part));
            copies += reads;
            if !part.is_empty() {
                flow.map.lookup(part.start, part.len(), &mut submit);
            }
        };
        match cache {
            _ if write => {
                alloc.write(&mut flow.map, extent.start, extent.len(), &mut submit);
                tiers.iter_mut().for_each(|t| t.on_write(object, extent));
            }
            None => read(extent),
            Some(cache) => request.missed = blocks.look_up(cache, extent, read),
        }
        pieces += copies;
        (request.pieces, request.submitted) = (pieces, now);
        let all_cached = cache.is_some() && !write && request.missed == 0;
        assert!(pieces > 0 || all_cached, "a request reached a place that was never written");
        if let Some(at) = timer {
            self.queue.at(o, at, Event::Timer { ost: o });
        }
        if all_cached {
            return self.send_bulk(now, o, req);
        }
        self.pump_disk(now, o);
    }

    #[inline]
    pub(super) fn pump_disk(&mut self, now: u64, o: u32) {
        let Ost { store, tiers, .. } = &mut self.osts[o as usize];
        while let Some((slot, done_at)) = store.start_next(now) {
            self.queue.at(o, done_at, Event::Disk { ost: o, slot });
        }
        let Some(tiers) = tiers else { return };
        while let Some((slot, done_at)) = tiers.device.start_next(now) {
            self.queue.at(o, done_at, Event::Disk { ost: o, slot: slot | FAST });
        }
    }

    pub(super) fn on_disk(&mut self, now: u64, o: u32, slot: u32) {
        let mut done = core::mem::take(&mut self.scratch);
        let Ost { pipeline, store, hash, tiers, .. } = &mut self.osts[o as usize];
        let (mut fetched, mut copied) = (0, Vec::new());
        let owner = |owner| {
            match owner {
                FETCH => fetched += 1,
                COPY..FETCH => copied.push(owner),
                _ => {}
            }
            if owner >= COPY {
                return;
            }
            let request = pipeline.job_mut(RequestId(owner));
            request.pieces -= 1;
            if request.pieces == 0 {
                done.push(owner);
            }
        };
        match tiers {
            Some(tiers) if slot & FAST != 0 => tiers.device.finish(slot & !FAST, owner),
            _ => store.finish(slot, owner),
        }
        if let Some(tiers) = tiers {
            copied.into_iter().for_each(|copy| tiers.on_copied(copy));
        }
        hash.event(now - self.begin, 4, slot, done.len() as u32);
        self.pump_disk(now, o);
        (0..fetched).for_each(|_| self.on_fetched(now, o));
        for req in done.drain(..) {
            self.keep(now, o, req);
            if self.operation == Operation::Write {
                self.complete(now, o, req);
            } else {
                self.send_bulk(now, o, req);
            }
        }
        self.scratch = done;
        if self.osts[o as usize].tiers.is_some() {
            // What was read may leave copies.
            self.pump_disk(now, o);
        }
    }

    /// The OST's cache takes in what the store has read or written.
    #[inline]
    fn keep(&mut self, now: u64, o: u32, req: u32) {
        if self.osts[o as usize].cache.is_none() && self.osts[o as usize].tiers.is_none() {
            return;
        }
        let request = *self.osts[o as usize].pipeline.job(RequestId(req));
        let (extent, blocks) = (self.extent(request.flow, request.rpc), self.blocks(request.flow, request.rpc));
        let object = object(&self.flows[request.flow as usize]);
        let Ost { cache, tiers, epoch, .. } = &mut self.osts[o as usize];
        let mut blocks = blocks;
        if let Some(tiers) = tiers {
            if self.operation == Operation::Read {
                tiers.on_read(now, object, extent);
            }
            blocks = blocks.advised(tiers.class_in_memory(object, extent.start));
        }
        let Some(cache) = cache else { return };
        if request.epoch == *epoch {
            blocks.keep(cache, extent, request.missed, now - request.submitted);
        }
    }

    /// Clients advise their files, and OSTs begin to fetch them.
    pub(super) fn advise(&mut self) {
        let (now, config) = (self.begin, self.config);
        let Some(tiering) = &config.tiering else { return };
        for f in 0..self.flows.len() {
            let flow = &self.flows[f];
            if flow.urgent || flow.client >= tiering.advisers {
                continue;
            }
            let bytes = u64::from(config.rpcs_per_flow(flow.stripe)) * config.transfer_bytes;
            let (o, object) = (flow.ost - self.first_ost, object(flow));
            if let Some(tiers) = &mut self.osts[o as usize].tiers {
                tiers.advise(now, object, f as u32, bytes, tiering.level);
            }
        }
        (0..self.osts.len() as u32).for_each(|o| self.fetch(now, o));
    }

    /// Reads advised bytes from the disk while no request waits for it.
    pub(super) fn fetch(&mut self, now: u64, o: u32) {
        let Ost { pipeline, store, tiers: Some(tiers), hash, .. } = &mut self.osts[o as usize] else { return };
        if pipeline.queued() > 0 || pipeline.in_service() > 0 {
            return;
        }
        let Some((f, extent)) = tiers.next_turn() else { return };
        let (mut reads, mut timer) = (0, None);
        hash.event(now - self.begin, 6, self.flows[f as usize].client, (extent.start >> 9) as u32);
        self.flows[f as usize].map.lookup(extent.start, extent.len(), |lba, len| {
            reads += 1;
            timer = timer.or(store.submit(now, FETCH, Access { lba, len, write: false }));
        });
        tiers.on_turn(reads);
        if let Some(at) = timer {
            self.queue.at(o, at, Event::Timer { ost: o });
        }
        self.pump_disk(now, o);
    }

    /// A read of advised bytes is complete.
    fn on_fetched(&mut self, now: u64, o: u32) {
        let Ost { tiers: Some(tiers), cache, .. } = &mut self.osts[o as usize] else { return };
        if let (Some((object, extent, true)), Some(cache)) = (tiers.on_fetched(now), cache) {
            let blocks = Blocks::new(self.config, object.0.oid - 1, PageAccess::fine(0).ahead());
            blocks.advised(tiers.class_in_memory(object, extent.start)).keep(cache, extent, 0, 0);
        }
        self.pump_disk(now, o);
        self.fetch(now, o);
    }
}
