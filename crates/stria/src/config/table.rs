//! Keys that belong to no node: of the cluster, the process, the mount, the stores. Those of nodes stand beside what uses them
//! (`client::Keys`, `oss::Keys`, `mds::Keys`).
use types::GIB;
use types::params::{Kind, bytes, number};

types::keys! {
    /// What belongs to no node.
    struct Own {
        /// File with the secret that opens the cluster (at least 16 bytes), readable by its owner only. Empty: the key that
        /// mkfs and up make in the cluster's directory, DIR/keys/admin.key.
        key_file: String = "cluster.key_file", Kind::Text, "", Cluster, Restart;
        /// Name of a new file system: 1 to 8 letters, digits, '-' or '_'.
        fsname: String = "cluster.fsname", Kind::Text, "stria", Cluster, Restart;
        /// Address and port that servers listen on; port 0 takes a free one.
        listen: String = "net.listen", Kind::Text, "127.0.0.1:0", Process, Restart;
        /// Which connections are encrypted (TLS 1.3): those to and from addresses that are not loopback (auto); all over TCP (tls); none.
        /// A server turns away who does not encrypt where this says so.
        net_security: String = "net.security", Kind::Choice(super::securities), "auto", Process, Restart;
        /// The network card that this process's TCP connections share, for experiments: bandwidth of each direction and latency
        /// are held down to its own; none: as fast as they go. Roles of one process speak without it.
        net_profile: String = "net.profile", Kind::Choice(super::net_profiles), "none", Process, Restart;
        /// How idle CPUs of the machine sleep while requests flow: as they like (deep); such that they wake within 2 us
        /// (shallow); not at all (polling), which costs power, or the host's time, until 20 ms after the last request;
        /// polling in a virtual machine, deep elsewhere (auto). Root's processes only: it needs /dev/cpu_dma_latency.
        cpu_idle: String = "cpu.idle", Kind::Choice(super::idle_depths), "auto", Process, Restart;
        /// Memory that this process may have, by which sizes go that nobody set: client.cache_bytes, oss.cache_bytes, oss.trace_bytes, mds.trace_bytes,
        /// mds.locks_max, client.inodes_max, page frames of transfers, caches of databases. 0: what the machine has, its control groups or `ulimit -v` allow,
        /// which no value goes beyond. Servers that `up --processes` starts share it.
        memory_bytes_max: u64 = "memory.bytes_max", bytes(0, 1 << 60), "0", Process, Restart;
        /// Threads that move and check bytes for the mounts of a process, so that the one that decides is not held up: copies to
        /// and from the kernel, receiving and sending, checksums of transfers of 64 KiB and more. 0: it does so itself. -1: half
        /// as many as there are CPUs, 8 at most, where there are four CPUs or more; else 0.
        client_movers: i64 = "client.movers", Kind::Signed { min: -1, max: 64, unit: "threads" }, "-1", Process, Restart;
        /// Threads that serve the OSTs of one process. 1: the one that serves everything else; more: as many of their own, at most
        /// one for each OST, each with its part of oss.cache_bytes. 0: one for each OST up to the number of CPUs, where there
        /// are four or more; else 1.
        oss_shards: u64 = "oss.shards", number(0, 1024, "threads"), "0", Process, Restart;
        /// Mount options as with -o, comma-separated; -o is added to them.
        mount_options: String = "mount.options", Kind::Text, "", Process, Restart;
        /// How requests reach the daemon.
        mount_transport: String = "mount.transport", Kind::Choice(super::transports), "auto", Process, Restart;
        /// What the kernel may keep beside the client's cache: nothing; pages of files that are opened again, and listings;
        /// from the first open on those of files up to a 512th of the memory, too; of all files. Never, where policies of
        /// the client's cache and readahead are studied.
        mount_kernel_cache: String = "mount.kernel_cache", Kind::Choice(super::kernel_caching), "fitting", Process, Restart;
        /// What the kernel does with names that it was told: keeps them until another mount changes one that it has (kept); asks for each name of
        /// a path each time (asked), which programs that open and stat many files feel. Asked, where anything is mounted below the mount
        /// point, or the mount is a lower directory of overlayfs (docs/install.md).
        mount_kernel_names: String = "mount.kernel_names", Kind::Choice(super::kernel_names), "kept", Process, Restart;
        /// Users of the mount, root too, act as this uid:gid on the servers. Empty: as themselves.
        mount_squash_all: String = "mount.squash_all", Kind::Text, "", Process, Restart;
        /// Root acts as this uid:gid on the servers. Empty: as root.
        mount_squash_root: String = "mount.squash_root", Kind::Text, "", Process, Restart;
        /// Stripe size of new files where no directory says more: a multiple of 64K.
        layout_stripe_size: u64 = "layout.default_stripe_size", bytes(64 << 10, 0xFFFF_0000), "4M", Cluster, Restart;
        /// Stripes of new files where no directory says more; -1 means all OSTs.
        layout_stripe_count: i64 = "layout.default_stripe_count", Kind::Signed { min: -1, max: 2000, unit: "stripes" }, "1", Cluster, Restart;
        /// Where OSTs keep bytes: files in DIR, this process's memory (gone at exit), nowhere (a checkable pattern), or files behind a device's timing.
        store_kind: String = "store.kind", Kind::Choice(super::store_kinds), "file", Process, Restart;
        /// The device that store.kind = "emulated" behaves like.
        store_profile: String = "store.profile", Kind::Choice(super::device_profiles), "paper001", Process, Restart;
        /// How that device differs from its profile: `seek_ms`, `mb_per_s`, `request_us`, of arrays `disks` and `chunk_kb`, as KEY=VALUE, parted by blanks (docs/reference/devices.md).
        store_profile_keys: String = "store.profile_keys", Kind::Text, "", Process, Restart;
        /// In which order that device's queue is served; `noop` is the order of arrival.
        store_elevator: String = "store.elevator", Kind::Choice(super::elevators), "noop", Process, Restart;
        /// Size that each new OST claims; 0 takes what its file system has; for memory stores 0 means 1G, for null stores 16G.
        store_capacity_bytes: u64 = "store.capacity_bytes", bytes(0, 1 << 60), "0", Process, Restart;
        /// Bypass the kernel's page cache for OST data.
        store_direct: bool = "store.direct", Kind::Switch, "true", Process, Restart;
        /// Directory on a faster device in which each OST keeps copies of what is advised or read again and again, under its name. Empty: no fast tier.
        store_fast_dir: String = "store.fast.dir", Kind::Text, "", Process, Restart;
        /// Bytes that each OST's fast tier takes there, at least 16M.
        store_fast_bytes: u64 = "store.fast.size", bytes(0, 64 * 1024 * GIB), "0", Process, Restart;
        /// The device that the fast tier behaves like, for experiments; none: the one that it is on.
        store_fast_profile: String = "store.fast.profile", Kind::Choice(super::fast_profiles), "none", Process, Restart;
        /// What is copied to the fast tier although nobody advised it (docs/reference/advice.md).
        store_fast_admission: String = "store.fast.admission", Kind::Choice(super::fast_admissions), "second_touch", Process, Live("obdfilter.*.fast_admission");
        /// Where a new metadata store is: postgres://USER@HOST[:PORT]/DATABASE, without the password, or with several servers of one
        /// database, comma-separated; empty: in a file of the cluster's directory. It stays there (docs/metadata-store.md).
        mdt_store: String = "mdt.store", Kind::Text, "", Cluster, Restart;
        /// File with the password of that database, as PostgreSQL's own programs read it (host:port:database:user:password), which its
        /// owner alone can read. Empty: PGPASSFILE of the environment, else ~/.pgpass, else no password.
        mdt_passfile: String = "mdt.passfile", Kind::Text, "", Process, Restart;
        /// Address and port where this process serves its metrics (docs/reference/metrics.md), like 127.0.0.1:9100; port 0 takes a
        /// free one. Empty: nowhere. Servers that `up --processes` starts take the ports that follow.
        metrics_listen: String = "metrics.listen", Kind::Text, "", Process, Restart;
        /// Other hosts may reach the address of metrics.listen, which asks nobody who they are.
        metrics_allow_remote: bool = "metrics.allow_remote", Kind::Switch, "false", Process, Restart;
        /// How long a restarted server waits for its clients before it goes on without them.
        recovery_window_s: u64 = "recovery.window_s", number(1, 3600, "s"), "30", Cluster, Restart;
        /// A client unheard of for this long is evicted.
        recovery_client_timeout_s: u64 = "recovery.client_timeout_s", number(20, 3600, "s"), "60", Cluster, Restart;
    }
}
