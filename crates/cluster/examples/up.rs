//! A whole cluster on one shard, mounted: `up DIR MOUNTPOINT [OSTS] [uring|dev] [SECOND_MOUNTPOINT]`. Formats what is missing.
use std::path::PathBuf;

use client::ClientConfig;
use cluster::{MountSpec, format_mdt, format_ost, join, open_ost, start_mds, start_mount, start_oss};
use frames::FramePool;
use fuse::TransportChoice;
use oss::OstConfig;
use ptlrpc::ClusterKey;
use rt::Nid;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use types::{Duration, OstIndex};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter: Targets = std::env::var("RUST_LOG").unwrap_or_else(|_| "error".into()).parse()?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
    let args: Vec<String> = std::env::args().collect();
    let dir = PathBuf::from(args.get(1).ok_or("usage: up DIR MOUNTPOINT [OSTS] [uring|dev] [SECOND_MOUNTPOINT]")?);
    let at = PathBuf::from(args.get(2).ok_or("usage: up DIR MOUNTPOINT [OSTS] [uring|dev] [SECOND_MOUNTPOINT]")?);
    let osts: u16 = args.get(3).map_or(Ok(4), |n| n.parse())?;
    let transport = match args.get(4).map(String::as_str) {
        Some("uring") => TransportChoice::Uring,
        Some("dev") => TransportChoice::Dev,
        _ => TransportChoice::Auto,
    };
    let window = Duration::from_secs(5);
    let pool = FramePool::new(1 << 30);
    rt::real::run(pool, async |rt| -> Result<(), Box<dyn std::error::Error>> {
        let key = ClusterKey::none();
        let cluster = 0x57a1;
        if !dir.join("mdt0").exists() {
            format_mdt(&rt, &dir.join("mdt0"), None, "stria", cluster, (0, 0)).await?;
        }
        for i in 0..osts {
            let d = dir.join(format!("ost{i}"));
            if !d.exists() {
                format_ost(&rt, &d, "stria", cluster, OstIndex(i), 0).await?;
            }
        }
        let (mds_nid, oss_nid) = (Nid::Local("mds".into()), Nid::Local("oss".into()));
        let mds = start_mds(&rt, &dir.join("mdt0"), &mds_nid, &key, window, mds::MdsConfig::default()).await?;
        let mut stores = Vec::new();
        for i in 0..osts {
            stores.push(
                open_ost(&rt, &dir.join(format!("ost{i}")), cluster, store_file::FileStoreConfig::default()).await?,
            );
        }
        let oss = start_oss(&rt, stores, &oss_nid, &mds_nid, &key, window, &OstConfig::default())?;
        let client = join(&rt, ClientConfig::new(mds_nid.clone()), usize::from(osts), Duration::from_secs(20)).await?;
        let kernel_cache = match std::env::var("KERNEL_CACHE").as_deref() {
            Ok("never") => mount::KernelCaching::Never,
            Ok("reopened") => mount::KernelCaching::Reopened,
            Ok("always") => mount::KernelCaching::Always,
            _ => mount::KernelCaching::Fitting,
        };
        let options = fuse::mount::MountOptions { allow_other: true, ..Default::default() };
        let spec = MountSpec { options, transport, kernel_cache, ..MountSpec::default() };
        let (role, serving) = start_mount(client.clone(), &at, &spec)?;
        if let Some(second) = args.get(5) {
            let other =
                join(&rt, ClientConfig::new(mds_nid.clone()), usize::from(osts), Duration::from_secs(20)).await?;
            let (role, serving) = start_mount(other, std::path::Path::new(second), &spec)?;
            rt.spawn(async move {
                // The whole role lives as long as the mount.
                let role = role;
                if let Err(e) = serving.await {
                    eprintln!("second mount: {e}");
                }
                role.client.leave().await;
            });
        }
        println!("mounted on {} over {:?}", at.display(), role.session.transport());
        serving.await?;
        client.leave().await;
        oss.oss.close().await?;
        mds.stop().await?;
        Ok(())
    })??;
    Ok(())
}
