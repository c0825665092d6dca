//! A metadata server whose store is a database.
use super::*;

/// Longer than a recovery waits for anybody: nine windows behind the first.
const AWAY: Duration = Duration::from_secs(400);

#[test]
fn a_database_that_is_away_amid_a_recovery_costs_nobody_a_session_who_is_there() {
    let config = ClusterConfig { database: Some(Duration::from_millis(10)), ..ClusterConfig::default() };
    with(3, FramePool::new(256 * MIB), config, async |cluster, a, _| {
        let file = create(&a, "f").await?;
        a.data().write(&file, 0, &[7; 5000]).await?;
        a.data().fsync(&file, false).await?;
        create(&a, "not committed").await?;
        // Somebody does not come back, and is waited for.
        cluster.kill(NodeId::Client(1), true);
        cluster.kill(NodeId::Mds, false);
        cluster.start(NodeId::Mds).await.unwrap();
        let host = cluster.mds.host();
        cluster.cut_off_database(host, true);
        cluster.sim.sleep(AWAY).await;
        cluster.cut_off_database(host, false);
        cluster.sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.evictions(0), 0, "it was there all the time");
        assert!(cluster.is_in_service(NodeId::Mds));
        a.lookup(&cred(), Fid::ROOT, b"not committed").await?;
        a.data().write(&file, 5000, &[8; 5000]).await?;
        a.data().fsync(&file, false).await
    });
}
