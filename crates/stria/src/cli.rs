//! The command line's grammar.
mod ost;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use ost::{OfCluster, OstAdd, OstDrain, OstFiles, OstRemove, OstReplace, OstVerb};

/// A parallel file system in user space
#[derive(Parser, Debug)]
#[command(name = "stria", version, propagate_version = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Start a cluster in a directory, making what is missing, and mount it
    Up(Up),
    /// Start a real cluster, mount it twice, do real work on it and show how fast it was
    Demo(Demo),
    /// Make the stores of a new cluster in a directory
    Mkfs(Mkfs),
    /// Run the metadata server of a cluster directory
    Mds(Mds),
    /// Run object storage targets of a cluster directory
    Oss(Oss),
    /// Add, empty, remove and look at object storage targets while programs run
    #[command(subcommand)]
    Ost(OstVerb),
    /// Give single client hosts credentials with limits, list them, and take them back
    #[command(subcommand)]
    Credential(CredentialVerb),
    /// Mount a cluster
    Mount(Mount),
    /// Unmount a mount, and stop a cluster that 'up' started for it
    Umount(Umount),
    /// Stop a cluster by its directory, whatever the state of its mounts
    Stop(Stop),
    /// Write everything to stable storage that programs of this host wrote: what sync(2) does not do on FUSE mounts
    Sync(Sync),
    /// Let restarted servers go on without the clients that they wait for
    #[command(name = "abort-recovery")]
    AbortRecovery(AbortRecovery),
    /// Show mounts and the state of their clusters
    Status(Status),
    /// Show which server does what, and which jobs and clients use it, now
    Top(Top),
    /// Serve a web page that shows the cluster live, and where an administrator may switch policies
    Web(Web),
    /// Check the metadata of a stopped cluster against its objects
    Fsck(Fsck),
    /// Read all data and records of a running cluster against their checksums, beside its work
    Scrub(Scrub),
    /// Back a metadata store up, put a backup back, move it to another engine
    #[command(subcommand)]
    Mdt(MdtVerb),
    /// Kill, stop and starve a cluster of its own under checked work, and say what was lost
    Torture(Torture),
    /// Measure what many clients get together
    Bench(bench::cli::Bench),
    /// Measure what one layer alone can do
    #[command(subcommand)]
    Survey(bench::survey::cli::Survey),
    /// Tell where the time of slow requests went: of a file, of a job, or of one request
    Why(Why),
    /// Take home what servers did with requests, show it, write it for other programs
    #[command(subcommand)]
    Trace(TraceVerb),
    /// Find the settings that serve a workload best on a mount, with their gains and error bars
    Tune(Tune),
    /// Explain configuration keys, check a file
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Write the manual pages of all verbs into a directory
    #[command(hide = true)]
    Man(Man),
    /// Print the completions of a shell: bash, zsh, fish, elvish or powershell
    Completions(Completions),
    /// List the metrics that processes serve with 'metrics.listen'
    Metrics(Metrics),
    /// Set the layout of a new file or the default of a directory
    #[command(disable_help_flag = true)]
    Setstripe(Rest),
    /// Give files other objects: another stripe count or size, other OSTs
    #[command(disable_help_flag = true)]
    Migrate(Rest),
    /// Show layouts
    #[command(disable_help_flag = true)]
    Getstripe(Rest),
    /// Show space target by target
    #[command(disable_help_flag = true)]
    Df(Rest),
    /// Show the FIDs of paths
    #[command(name = "path2fid", disable_help_flag = true)]
    Path2fid(Rest),
    /// Show the paths of FIDs
    #[command(name = "fid2path", disable_help_flag = true)]
    Fid2path(Rest),
    /// Remove files by their FIDs
    #[command(name = "rmfid", disable_help_flag = true)]
    Rmfid(Rest),
    /// List object storage targets
    #[command(disable_help_flag = true)]
    Osts(Rest),
    /// List metadata targets
    #[command(disable_help_flag = true)]
    Mdts(Rest),
    /// Tell whether servers answer
    #[command(disable_help_flag = true)]
    Check(Rest),
    /// Show file system name and instance of mounts
    #[command(disable_help_flag = true)]
    Getname(Rest),
    /// Ask a server by its address whether it is there
    #[command(disable_help_flag = true)]
    Ping(Rest),
    /// Tell the servers how much files matter to their caches
    #[command(disable_help_flag = true)]
    Fadvise(Rest),
    /// Have the servers fetch bytes of files, or let them go
    #[command(disable_help_flag = true)]
    Ladvise(Rest),
    /// Show what is advised about files, and what came of it
    Advice(Advice),
    /// Find files by name, size, age and layout
    #[command(disable_help_flag = true)]
    Find(Rest),
    /// Pools.
    #[command(flatten)]
    Pool(PoolVerb),
    /// Show what a user, a group or a project has and may have
    #[command(disable_help_flag = true)]
    Quota(Rest),
    /// Show and set which project files and directories count for
    #[command(disable_help_flag = true)]
    Project(Rest),
    /// Set how much a user, a group or a project may have
    #[command(disable_help_flag = true)]
    Setquota(Rest),
    /// The changelog.
    #[command(flatten)]
    Changelog(ChangelogVerb),
    /// Read parameters of a mount and its servers
    #[command(name = "get_param", disable_help_flag = true)]
    GetParam(Rest),
    /// Set parameters of a mount and its servers
    #[command(name = "set_param", disable_help_flag = true)]
    SetParam(Rest),
    /// List parameters of a mount and its servers
    #[command(name = "list_param", disable_help_flag = true)]
    ListParam(Rest),
    /// Simulate servers, disks and clients
    Sim(Sim),
    /// Write one page with every claim of the papers: expected, simulated, measured on real processes
    Report(sim::cli::ReportArgs),
}

/// The verbs of pools.
#[derive(Subcommand, Debug)]
pub enum PoolVerb {
    /// Make a pool of object storage targets
    #[command(name = "pool_new", disable_help_flag = true)]
    New(Rest),
    /// Put object storage targets into a pool
    #[command(name = "pool_add", disable_help_flag = true)]
    Add(Rest),
    /// Take object storage targets out of a pool
    #[command(name = "pool_remove", alias = "pool_del", disable_help_flag = true)]
    Remove(Rest),
    /// Destroy a pool without targets
    #[command(name = "pool_destroy", disable_help_flag = true)]
    Destroy(Rest),
    /// List pools, or the targets of one
    #[command(name = "pool_list", disable_help_flag = true)]
    List(Rest),
}

impl PoolVerb {
    /// Its name and its arguments.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &[OsString]) {
        let (name, rest) = match self {
            PoolVerb::New(rest) => ("pool_new", rest),
            PoolVerb::Add(rest) => ("pool_add", rest),
            PoolVerb::Remove(rest) => ("pool_remove", rest),
            PoolVerb::Destroy(rest) => ("pool_destroy", rest),
            PoolVerb::List(rest) => ("pool_list", rest),
        };
        (name, &rest.arguments)
    }
}

/// The verbs of the changelog.
#[derive(Subcommand, Debug)]
pub enum ChangelogVerb {
    /// Show what happened to names and files, record by record
    #[command(name = "changelog", disable_help_flag = true)]
    Show(Rest),
    /// Say how far a user of the changelog has come
    #[command(name = "changelog_clear", disable_help_flag = true)]
    Clear(Rest),
    /// Have records written for a new user of the changelog
    #[command(name = "changelog_register", disable_help_flag = true)]
    Register(Rest),
    /// End a user of the changelog
    #[command(name = "changelog_deregister", disable_help_flag = true)]
    Deregister(Rest),
}

impl ChangelogVerb {
    /// Its name and its arguments.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &[OsString]) {
        let (name, rest) = match self {
            ChangelogVerb::Show(rest) => ("changelog", rest),
            ChangelogVerb::Clear(rest) => ("changelog_clear", rest),
            ChangelogVerb::Register(rest) => ("changelog_register", rest),
            ChangelogVerb::Deregister(rest) => ("changelog_deregister", rest),
        };
        (name, &rest.arguments)
    }
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub struct Man {
    /// Where they go; it exists
    pub dir: PathBuf,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Arguments of `metrics`.
#[derive(Args, Debug)]
pub struct Metrics {
    /// As the reference page
    #[arg(long)]
    pub markdown: bool,
}

/// Arguments of `sim`.
#[derive(Args, Debug)]
#[command(about = "Simulate servers, disks and up to a million clients, deterministically")]
pub struct Sim {
    /// What to do.
    #[command(subcommand)]
    pub verb: SimVerb,
}

/// The verbs of `stria sim`.
#[derive(Subcommand, Debug)]
pub enum SimVerb {
    /// Of the simulator.
    #[command(flatten)]
    Simulator(sim::cli::Verb),
    /// Run kernels over mounts of simulated clusters, everything drawn from the seed, and say which runs hang or see what they must not
    Kernels(Kernels),
}

/// Arguments of `tune`.
#[derive(Args, Debug)]
pub struct Tune {
    /// The mount
    pub mount: Option<PathBuf>,
    /// Workload, as TOML; default: large files, each of one process, and one that processes share
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
    /// Time in all
    #[arg(long, value_name = "M", default_value_t = 10.0)]
    pub minutes: f64,
    /// Directory on the mount: measured in, and its default layout is meant; default: the mount's root
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Most bytes that a run of a workload writes; default: 1G, at most half of what the fullest OST has free
    #[arg(long, value_parser = size_of_runs)]
    pub size: Option<u64>,
    /// Search these settings only, comma-separated, like stripe_count,rpcs_in_flight
    #[arg(long, value_name = "SETTING,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Also try, and with --apply set, parameters of the servers: they act on everybody's requests
    #[arg(long)]
    pub servers: bool,
    /// Clients that are simulated for settings of the servers
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub clients: u64,
    /// What the OSTs' stores lie on, for the simulation: a profile of store.profile and its keys, like 'hdd seek_ms=9'
    #[arg(long, value_name = "PROFILE")]
    pub device: Option<String>,
    /// Print one JSON object with every run
    #[arg(long)]
    pub json: bool,
    /// Set what is recommended, when the check at the end confirms it
    #[arg(long)]
    pub apply: bool,
    /// Where --apply keeps the old values; default: stria-tune-PID.json here
    #[arg(long, value_name = "FILE", requires = "apply")]
    pub save: Option<PathBuf>,
    /// Put back the old values that --apply kept in FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "minutes", "dir", "size", "only", "servers", "device", "apply"])]
    pub revert: Option<PathBuf>,
}

/// A size that runs can have.
fn size_of_runs(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 1 << 20;
    let bytes = types::parse_size(text)?;
    if (LEAST..=1 << 44).contains(&bytes) { Ok(bytes) } else { Err("write a size from 1M to 16T".into()) }
}

/// Arguments of `sim kernels`.
#[derive(Args, Debug)]
pub struct Kernels {
    /// Seeds to run, each in every class
    #[arg(long, default_value_t = 20)]
    pub seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    /// Begin no run after so many minutes
    #[arg(long)]
    pub minutes: Option<f64>,
    /// Run these classes only
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub class: Vec<String>,
    /// List the classes of runs and the bugs that can be planted
    #[arg(long)]
    pub list: bool,
    /// Threads; 0: one per core
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
    /// Plant a bug (or `all`, one after the other) and say how many runs it takes to find it
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub planted: Vec<String>,
    /// Print where panics happen
    #[arg(long)]
    pub verbose_panics: bool,
}

/// Arguments that the verb reads itself.
#[derive(Args, Debug)]
pub struct Rest {
    /// Options and operands; --help explains them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, num_args = 0.., value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// How daemons are told what to do.
#[derive(Args, Debug, Clone, Default)]
pub struct Settings {
    /// TOML file with settings ('stria config explain' lists them)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Override one setting; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// The verbs of `trace`.
#[derive(Subcommand, Debug)]
pub enum TraceVerb {
    /// Write what the servers and this mount remember of the requests of late into a file
    Record(TraceRecord),
    /// Show a trace: how long requests waited and were served, by OST, kind and client; sizes; how sequential it was
    Show(TraceShow),
    /// Show the slowest requests of a trace, and who went before each while it waited
    Slow(TraceSlow),
    /// Write a trace as CSV or JSON
    Export(TraceExport),
    /// Make a trace of a table in CSV, or of what darshan-dxt-parser or blkparse printed
    Import(TraceImport),
}

/// Arguments of `trace record`.
#[derive(Args, Debug)]
pub struct TraceRecord {
    /// A mount of the file system, or anything in it
    #[arg(required_unless_present = "dir", conflicts_with = "dir")]
    pub mount: Option<PathBuf>,
    /// Directory of a cluster that is mounted on this host
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// What happens from now on, so many seconds long; default: what is remembered
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Only these OSTs, without metadata target and client; may be repeated
    #[arg(long, value_name = "N")]
    pub ost: Vec<u16>,
}

/// Arguments of `why`.
#[derive(Args, Debug)]
pub struct Why {
    /// A file or directory; a job's name; or a request as TARGET:CLIENT:XID, which is how this command prints it
    #[arg(value_name = "FILE|JOB|RPC-ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub what: String,
    /// A mount of the file system, or anything in it; default: the one that FILE lies on, or the only one of this host
    #[arg(conflicts_with = "trace")]
    pub mount: Option<PathBuf>,
    /// A trace instead of what servers remember now, for a job or a request
    #[arg(long, value_name = "TRACE")]
    pub trace: Option<PathBuf>,
    /// How many of the slowest requests
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub top: u16,
    /// As one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `trace show`.
#[derive(Args, Debug)]
pub struct TraceShow {
    /// The trace
    pub file: PathBuf,
    /// Clients to show, those that moved the most bytes
    #[arg(long, default_value_t = 10)]
    pub clients: usize,
}

/// Arguments of `trace slow`.
#[derive(Args, Debug)]
pub struct TraceSlow {
    /// The trace
    pub file: PathBuf,
    /// How many
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub top: u32,
}

/// Arguments of `trace import`.
#[derive(Args, Debug)]
pub struct TraceImport {
    /// The table, with the columns of 'trace export'; or the other program's output
    pub file: PathBuf,
    /// What the file is: a table in CSV, output of darshan-dxt-parser, or of blkparse in its default format
    #[arg(long, value_enum, default_value_t = TraceFormat::Csv)]
    pub format: TraceFormat,
    /// The trace to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// What is known of the targets, such as nrs.policy=fifo; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// What a trace is made of.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceFormat {
    /// A table
    Csv,
    /// Output of darshan-dxt-parser
    Dxt,
    /// Output of blkparse
    Blkparse,
}

/// Arguments of `trace export`.
#[derive(Args, Debug)]
pub struct TraceExport {
    /// The trace
    pub file: PathBuf,
    /// One request a line, a head line first; the default
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// The file to write; default: standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `up`.
#[derive(Args, Debug)]
pub struct Up {
    /// Directory of the cluster; made if missing
    #[arg(long)]
    pub dir: PathBuf,
    /// Mount point; may be repeated: every mount is a client of its own
    #[arg(long, value_name = "MNT", required = true)]
    pub mount: Vec<PathBuf>,
    /// Object storage targets of a new cluster; default: 4. Of an existing one: those that it has ('mkfs' adds more)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub osts: Option<u16>,
    /// Leave an OST out: its files answer EIO, new files go elsewhere; may be repeated
    #[arg(long, value_name = "N")]
    pub without_ost: Vec<u16>,
    /// Run every role as a process of its own, over TCP
    #[arg(long)]
    pub processes: bool,
    /// Return when the mount is ready, and go on in the background
    #[arg(long)]
    pub background: bool,
    /// Mount options, comma-separated
    #[arg(short = 'o', value_name = "OPTS", default_value = "")]
    pub options: String,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub struct Demo {
    /// Size of the large striped file
    #[arg(long, default_value = "1G", value_parser = types::parse_size)]
    pub large: u64,
    /// Most bytes of crates that are copied
    #[arg(long, default_value = "300M", value_parser = types::parse_size)]
    pub crates: u64,
    /// Object storage targets
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub osts: u16,
    /// Where the cluster lives meanwhile; default: shared memory when it has 4 GiB, else target/
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Arguments of `torture`.
#[derive(Args, Debug)]
pub struct Torture {
    /// A new or an empty directory; removed afterwards unless something was lost
    pub dir: PathBuf,
    /// How long things go wrong
    #[arg(long, default_value_t = 2.0)]
    pub minutes: f64,
    /// Draws strikes and work; default: a fresh one, which is printed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Object storage targets
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub osts: u16,
    /// What goes wrong, comma-separated; default: everything that this machine allows
    #[arg(long, value_enum, value_delimiter = ',')]
    pub faults: Vec<crate::torture::Class>,
    /// Keep the directory
    #[arg(long)]
    pub keep: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Arguments of `mkfs`.
#[derive(Args, Debug)]
pub struct Mkfs {
    /// Directory of the cluster; made if missing
    #[arg(long)]
    pub dir: PathBuf,
    /// Object storage targets that it shall have; default: those that DIR has, 4 in a new one. A larger number adds targets
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub osts: Option<u16>,
    /// Make a new store for an OST whose own is lost, with everything in it
    #[arg(long, value_name = "N", conflicts_with = "osts")]
    pub replace: Option<u16>,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Arguments of `mds`.
#[derive(Args, Debug)]
pub struct Mds {
    /// Directory of the cluster
    #[arg(long)]
    pub dir: PathBuf,
    /// Address and port; default: where it listened last, else net.listen
    #[arg(long)]
    pub listen: Option<String>,
    /// An OST that nobody serves for now: its files answer EIO, new files go elsewhere; may be repeated
    #[arg(long, value_name = "N")]
    pub without_ost: Vec<u16>,
    /// Wait, as long as it takes, until no other server has the metadata store, which is in a database; then serve it
    #[arg(long)]
    pub standby: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Arguments of `oss`.
#[derive(Args, Debug)]
pub struct Oss {
    /// Directory of the cluster
    #[arg(long)]
    pub dir: PathBuf,
    /// Targets, like 0-2,5; 'all': those whose stores are in DIR
    #[arg(long = "ost", value_name = "LIST")]
    pub ost: String,
    /// Address of the metadata server, those of a server and its standby with a comma between; default: the one running in DIR
    #[arg(long)]
    pub mds: Option<String>,
    /// Address and port; default: where it listened last, else net.listen
    #[arg(long)]
    pub listen: Option<String>,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// The verbs of `credential`.
#[derive(Subcommand, Debug)]
pub enum CredentialVerb {
    /// Make a credential: the file that a client host mounts with, as with keys/client.key
    Issue(CredentialIssue),
    /// List the credentials that were issued, with their limits
    List(CredentialList),
    /// End a credential for good: its sessions end at once, with their locks
    Revoke(CredentialRevoke),
}

/// The cluster whose credentials are meant.
#[derive(Args, Debug)]
pub struct CredentialOf {
    /// Directory of the cluster, with the administrator's key
    #[arg(long)]
    pub dir: PathBuf,
    /// Address of the metadata server; default: the one running in DIR
    #[arg(long, value_name = "ADDRESS")]
    pub mds: Option<String>,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Who acts as another user at the servers.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Squashed {
    /// Root
    Root,
    /// Everybody
    All,
}

/// Arguments of `credential issue`.
#[derive(Args, Debug)]
pub struct CredentialIssue {
    /// Its name: letters, digits, '.', '_' and '-'
    pub name: String,
    /// The cluster.
    #[command(flatten)]
    pub of: CredentialOf,
    /// Its holder changes nothing
    #[arg(long)]
    pub read_only: bool,
    /// Directory that is its holder's root, from the file system's root on; it follows the directory when that is renamed
    #[arg(long, value_name = "PATH")]
    pub subtree: Option<String>,
    /// Users of the client and the users of the servers that they are; comma-separated. Others are those of --squash-to
    #[arg(long, value_name = "CLIENT:SERVER:COUNT,..", value_delimiter = ',', value_parser = crate::credential::id_range)]
    pub uid: Vec<wire::credential::IdRange>,
    /// Groups, likewise
    #[arg(long, value_name = "CLIENT:SERVER:COUNT,..", value_delimiter = ',', value_parser = crate::credential::id_range)]
    pub gid: Vec<wire::credential::IdRange>,
    /// Who acts as the user and group of --squash-to
    #[arg(long, value_enum)]
    pub squash: Option<Squashed>,
    /// User and group at the servers of who is squashed or has none there
    #[arg(long, value_name = "UID:GID", default_value = "65534:65534", value_parser = crate::credential::ids)]
    pub squash_to: (u32, u32),
    /// When it ends: a duration like 90d or 12h, or a time like 2027-01-31
    #[arg(long, value_name = "WHEN")]
    pub expires: Option<String>,
    /// The file to write; default: DIR/keys/NAME.credential
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `credential list`.
#[derive(Args, Debug)]
pub struct CredentialList {
    /// The cluster.
    #[command(flatten)]
    pub of: CredentialOf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `credential revoke`.
#[derive(Args, Debug)]
pub struct CredentialRevoke {
    /// Its name; client.key: the key of all clients
    pub name: String,
    /// The cluster.
    #[command(flatten)]
    pub of: CredentialOf,
}

/// Arguments of `mount`.
#[derive(Args, Debug)]
pub struct Mount {
    /// Address of the metadata server; those of a server and its standby with a comma between
    #[arg(long, required_unless_present = "dir")]
    pub mds: Option<String>,
    /// Directory of a cluster that runs on this host, instead of --mds
    #[arg(long, conflicts_with = "mds")]
    pub dir: Option<PathBuf>,
    /// Mount point
    pub mount: PathBuf,
    /// Mount options, comma-separated
    #[arg(short = 'o', value_name = "OPTS", default_value = "")]
    pub options: String,
    /// Return when the mount is ready, and go on in the background
    #[arg(long)]
    pub background: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Arguments of `umount`.
#[derive(Args, Debug)]
pub struct Umount {
    /// Mount point
    pub mount: PathBuf,
    /// Detach at once, even if programs use it
    #[arg(short, long)]
    pub lazy: bool,
    /// Wait for no server: what is not written out is given up, and told (exit code 5, EIO)
    #[arg(short, long, conflicts_with = "lazy")]
    pub force: bool,
}

/// Arguments of `stop`.
#[derive(Args, Debug)]
pub struct Stop {
    /// Directory of the cluster
    #[arg(long)]
    pub dir: PathBuf,
}

/// Arguments of `sync`.
#[derive(Args, Debug)]
pub struct Sync {
    /// A path on a mount; default: all mounts of this host
    pub path: Option<PathBuf>,
}

/// Arguments of `abort-recovery`.
#[derive(Args, Debug)]
pub struct AbortRecovery {
    /// A path on a mount of the cluster; default: all mounts of this host
    pub path: Option<PathBuf>,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct Status {
    /// A path on a mount; default: all mounts
    pub path: Option<PathBuf>,
    /// Directory of a cluster: its processes
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Print one JSON object per mount
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `top`.
#[derive(Args, Debug)]
pub struct Top {
    /// A mount of the file system, or anything in it; default: the mount we are in, else the only one
    #[arg(conflicts_with = "dir")]
    pub mount: Option<PathBuf>,
    /// Directory of a cluster that is mounted on this host
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Print what happened within one interval as text, and end
    #[arg(long)]
    pub once: bool,
    /// Print a line with a JSON object for each interval
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `web`.
#[derive(Args, Debug)]
pub struct Web {
    /// A mount of the file system, anything in it, or the directory of a cluster that is mounted on this host; default: the mount we are in, else the only one
    #[arg(value_name = "MOUNT|DIR")]
    pub path: Option<PathBuf>,
    /// Address and port; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7980")]
    pub listen: String,
    /// Ask browsers for the token in FILE, which is made if it is missing; needed where other hosts reach the address
    #[arg(long, value_name = "FILE")]
    pub login: Option<PathBuf>,
    /// A further name under which browsers reach it, as through a proxy; may be repeated
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    pub name: Vec<String>,
    /// Show only: nobody can switch a policy on the page
    #[arg(long)]
    pub read_only: bool,
}

/// What browsers send as the name of a host, without a port.
fn host_name(text: &str) -> Result<String, String> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    match !text.is_empty() && text.bytes().all(legal) {
        true => Ok(text.into()),
        false => Err("write a host's name, like scratch.example.org".into()),
    }
}

/// Seconds between two looks.
fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds.ok_or_else(|| "write seconds from 0.1 to 3600".into())
}

/// Arguments of `advice`.
#[derive(Args, Debug)]
pub struct Advice {
    /// Files, or directories: what new files in them get
    #[arg(required = true)]
    pub path: Vec<PathBuf>,
    /// Print one JSON object per path
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `fsck`.
#[derive(Args, Debug)]
pub struct Fsck {
    /// Directory of the cluster
    #[arg(long)]
    pub dir: PathBuf,
    /// Also read all data and check it against its checksums
    #[arg(long)]
    pub data: bool,
    /// Put right what is wrong, and move what has no place any more to lost+found
    #[arg(long)]
    pub repair: bool,
}

/// Arguments of `scrub`.
#[derive(Args, Debug)]
pub struct Scrub {
    /// Directory of the cluster, which is mounted on this host
    #[arg(long)]
    pub dir: PathBuf,
    /// MiB that each target reads in a second
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub rate: u64,
    /// Only this OST; may be repeated. Default: all of them, and the metadata
    #[arg(long, value_name = "N")]
    pub ost: Vec<u16>,
    /// Return at once; 'stria status' shows how far it is
    #[arg(long)]
    pub background: bool,
    /// End what is under way
    #[arg(long, conflicts_with_all = ["background", "rate"])]
    pub stop: bool,
}

/// The verbs of `mdt`.
#[derive(Subcommand, Debug)]
pub enum MdtVerb {
    /// Write everything in the metadata store into a new file, also while the cluster runs
    Backup(MdtFile),
    /// Make the metadata store of a stopped cluster, which has none any more, of a backup
    Restore(MdtRefill),
    /// Write the metadata store of a stopped cluster into a new file, to move it to another engine
    Export(MdtFile),
    /// Make the metadata store of a stopped cluster of an export, in DIR or in the database that 'mdt.store' names
    Import(MdtRefill),
    /// Take a metadata store in a database as it is, although it lacks changes that were acknowledged: they are lost
    Accept(MdtAccept),
}

/// Arguments of `mdt accept`.
#[derive(Args, Debug)]
pub struct MdtAccept {
    /// Directory of the cluster, or of its metadata server
    #[arg(long)]
    pub dir: PathBuf,
}

/// Arguments of `mdt restore` and `mdt import`.
#[derive(Args, Debug)]
pub struct MdtRefill {
    /// Directory of the cluster
    #[arg(long)]
    pub dir: PathBuf,
    /// The backup or export
    pub file: PathBuf,
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// Arguments of `mdt backup` and `mdt export`.
#[derive(Args, Debug)]
pub struct MdtFile {
    /// Directory of the cluster
    #[arg(long)]
    pub dir: PathBuf,
    /// The file to write
    pub file: PathBuf,
}

/// The verbs of `config`.
#[derive(Subcommand, Debug)]
pub enum ConfigVerb {
    /// Explain the keys, or those whose names contain PART
    Explain {
        /// Part of a key
        #[arg(default_value = "")]
        part: String,
        /// Print the reference page
        #[arg(long)]
        markdown: bool,
        /// Settings.
        #[command(flatten)]
        settings: Settings,
    },
    /// Check a file
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print all settings as a file
    Show {
        /// Settings.
        #[command(flatten)]
        settings: Settings,
    },
}
