//! Processes that stay: a cluster in one process or in many, single servers, mounts.
mod announce;
mod children;
mod dir;
mod fast;
mod growth;
mod keys;
mod medium;
mod mounts;
mod notify;
mod private;
mod records;
mod running;
mod servers;
mod settings;
mod stop;
mod stores;
mod up;

pub use announce::{ANNOUNCE, Daemon};
pub use children::{Children, Down, Host};
pub use dir::ClusterDir;
pub use mounts::{mount, umount};
pub use running::Lives;
pub use servers::{mds, mkfs, oss};
pub use settings::{check_options, load, load_in};
pub use stop::{in_use, stop};
pub use stores::Osts;
pub use up::up;

pub(crate) use announce::is_awaited;
pub(crate) use keys::{find as find_key, place as keys_dir};
pub(crate) use private::{make_secret, read_secret, write_secret};
pub(crate) use servers::on_shard;
pub(crate) use settings::refuse_inside;
pub(crate) use stores::is_free;
pub(crate) use up::{settings_arguments, start_children};
