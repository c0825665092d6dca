//! The grammar of `stria ost`.
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Settings;

/// The verbs of `ost`.
#[derive(Subcommand, Debug)]
pub enum OstVerb {
    /// Add targets to a cluster, also while it runs: new files use them at once
    Add(OstAdd),
    /// Make a new store for a target whose own is lost, also while the cluster runs; what the lost one held is lost
    Replace(OstReplace),
    /// Take in the older copy of a target's store that the cluster refused; what was written since it was made is lost
    Accept(OstReplace),
    /// Empty a target: no new files there, and its files move to the others while programs use them
    Drain(OstDrain),
    /// Take an empty target out of the cluster for good; its index is not used again
    Remove(OstRemove),
    /// List the files that have objects on a target, with their paths
    Files(OstFiles),
}

/// Arguments of `ost add`.
#[derive(Args, Debug)]
pub struct OstAdd {
    /// Directory of the cluster on this machine; with --mds and --key it is made on a machine that has none
    #[arg(long)]
    pub dir: PathBuf,
    /// How many
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub count: u16,
    /// The index of the (first) target; default: the next one that no target ever had
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=65_534))]
    pub index: Option<u16>,
    /// Address of the metadata server, where that is on another machine
    #[arg(long, value_name = "ADDRESS")]
    pub mds: Option<String>,
    /// File with the administrator's key (keys/admin.key of the metadata server's directory), for a machine that has no DIR yet
    #[arg(long, value_name = "FILE", requires = "mds")]
    pub key: Option<PathBuf>,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Arguments of `ost replace` and `ost accept`.
#[derive(Args, Debug)]
pub struct OstReplace {
    /// Index or name of the target
    pub ost: String,
    /// Directory of the cluster on the machine of the target, whose place is DIR/ostN; to replace its store, that is empty or missing
    #[arg(long)]
    pub dir: PathBuf,
    /// Address of the metadata server, where that is on another machine
    #[arg(long, value_name = "ADDRESS")]
    pub mds: Option<String>,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// The cluster that a command is about.
#[derive(Args, Debug)]
pub struct OfCluster {
    /// A mount of the file system, or anything in it; default: the only one of this host
    #[arg(conflicts_with = "dir")]
    pub mount: Option<PathBuf>,
    /// Directory of a cluster that is mounted on this host
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Arguments of `ost drain`.
#[derive(Args, Debug)]
pub struct OstDrain {
    /// Index or name of the target
    pub ost: String,
    /// The cluster.
    #[command(flatten)]
    pub of: OfCluster,
    /// Move so many MiB a second at most
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rate: Option<u64>,
    /// Files get new objects there again; those that have moved stay where they are
    #[arg(long, conflicts_with_all = ["rate", "remove"])]
    pub cancel: bool,
    /// Take the target out of the cluster when it is empty
    #[arg(long)]
    pub remove: bool,
}

/// Arguments of `ost remove`.
#[derive(Args, Debug)]
pub struct OstRemove {
    /// Index or name of the target
    pub ost: String,
    /// The cluster.
    #[command(flatten)]
    pub of: OfCluster,
}

/// Arguments of `ost files`.
#[derive(Args, Debug)]
pub struct OstFiles {
    /// Index or name of the target
    pub ost: String,
    /// The cluster.
    #[command(flatten)]
    pub of: OfCluster,
    /// Names end with NUL bytes, and stand alone
    #[arg(short = '0', long)]
    pub null: bool,
    /// Only those that lost something there with a store that was replaced
    #[arg(long)]
    pub lost: bool,
}
