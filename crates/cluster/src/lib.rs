//! The roles of a cluster, started inside a running shard: metadata server, object storage targets, mounted client.
//!
//! One process may run any of them, or all on one shard; who runs what is the command line's business.
mod roles;

pub use roles::{
    MdsRole, MountRole, MountSpec, OssRole, RoleError, format_mdt, format_ost, join, open_ost, register_ost, start_mds,
    start_mds_on, start_mount, start_oss,
};
