//! The roles of a cluster, started inside a running shard: metadata server, object storage targets, mounted client.
//!
//! One process may run any of them, or all on one shard; OSTs may have shards of their own (`shards`). Who runs what is the
//! command line's business.
mod dirs;
mod mdt;
mod shards;

pub use dirs::{MountRole, MountSpec, OST_FILES, devices_of, format_ost, format_ost_store, open_ost, start_mount};
pub use mdt::{MdtError, accept_mdt, empty_mdt, format_mdt, open_mdt, start_mds, start_standby_mds};
pub use roles::{
    MdsRole, OssRole, OstStore, RoleError, TuneOst, ask_mds, join, make_oss, make_oss_of, register_ost, start_mds_on,
    start_oss,
};
pub use shards::{MakeOss, OssNode, OssPlace};
