//! Permanent settings: kept with the cluster map, told to clients and servers, applied to this target.
//!
//! Whoever sets one has set the values of now; this makes them last. OSTs are told with every session, clients when they
//! join (the map carries them), when they come back, and when a setting is made.
use std::rc::Rc;

use types::{ClientId, Duration, FsError};
use wire::Op;
use wire::connect::{Lasting, Param, ParamsReply, ParamsRequest, Setting};

use crate::mds::Mds;
use crate::osts::OstPort;

/// How long a client may take to answer that it knows the settings.
const TELL_WITHIN: Duration = Duration::from_secs(10);

impl Mds {
    /// Keeps or forgets a setting. What is answered is on stable storage.
    ///
    /// # Errors
    /// `Invalid`: it has no pattern or no value; `NoSpace`: there are too many; `Io`: it cannot be stored.
    pub(crate) async fn keep_setting(self: &Rc<Self>, q: &ParamsRequest) -> Result<ParamsReply, FsError> {
        let value = match q.lasting {
            Lasting::Remove => None,
            _ => Some(&q.value.as_ref().ok_or(FsError::Invalid)?[..]),
        };
        if q.pattern.is_empty() || std::str::from_utf8(&q.pattern).is_err() {
            return Err(FsError::Invalid);
        }
        let changed = self.map.keep_setting(&q.pattern, value)?;
        let mut params = Vec::new();
        if changed {
            self.save_map().await?;
            let value = value.unwrap_or_default().into();
            params.push(Param { path: q.pattern.clone(), value, writable: true });
            self.tell_clients();
        } else {
            self.map_is_kept().await?;
        }
        Ok(ParamsReply { params, ..ParamsReply::default() })
    }

    /// Sends a client the cluster map with its settings, in the background.
    pub(crate) fn tell_settings(self: &Rc<Self>, client: ClientId) {
        let Some(export) = self.export(client).filter(|e| e.is_connected()) else { return };
        let map = self.told_map();
        self.rt.spawn(async move {
            // Who is away is told when it comes back; who only visits has nothing to set.
            if let Err(e) = export.callback(Op::Config, &map, TELL_WITHIN).await {
                tracing::debug!(%client, "settings: {e}");
            }
        });
    }

    /// Sets what the permanent settings say of this target.
    pub(crate) async fn apply_settings(self: &Rc<Self>) {
        for s in self.map.settings() {
            let Setting { pattern, value } = s;
            let shown = pattern.clone();
            let q = ParamsRequest { pattern, value: Some(value), ..ParamsRequest::default() };
            match self.params(&q).await {
                Ok(reply) if reply.error.is_empty() => {}
                Ok(reply) => {
                    tracing::warn!("permanent setting: {}", String::from_utf8_lossy(&reply.error));
                }
                // It speaks of others.
                Err(FsError::NotFound) => {}
                Err(e) => tracing::warn!("permanent setting {shown:?}: {e}"),
            }
        }
    }

    /// Tells an OST that opened a session what the permanent settings say.
    pub(crate) async fn tell_ost_settings(&self, port: &dyn OstPort) -> Result<(), FsError> {
        for Setting { pattern, value } in self.told_map().settings {
            let shown = pattern.clone();
            let q = ParamsRequest { pattern, value: Some(value), ..ParamsRequest::default() };
            let body = port.call(Op::Params, wire::encode(&q)).await?;
            let reply: ParamsReply = wire::decode(&body).map_err(FsError::from)?;
            if !reply.error.is_empty() {
                tracing::warn!("permanent setting {shown:?}: {}", String::from_utf8_lossy(&reply.error));
            }
        }
        Ok(())
    }
}
