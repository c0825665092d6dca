use sim::light::*; use sim::hw::*; use nrs::NrsConfig;
fn main(){
 let a:Vec<String>=std::env::args().collect();
 let get=|k:&str,d:&str|a.iter().find_map(|x|x.strip_prefix(&format!("{k}=")).map(String::from)).unwrap_or(d.into());
 let n=|k:&str,d:f64|get(k,&d.to_string()).parse::<f64>().unwrap();
 let mut nrs=NrsConfig::default(); nrs.quantum_requests=n("q",8.0) as u32;
 for kv in a.iter().filter_map(|x|x.strip_prefix("nrs.")){let (k,v)=kv.split_once('=').unwrap(); nrs.set(k,v).unwrap();}
 let urgent= if n("urgent",0.0)>0.0 {Some(Urgent{clients:n("urgent",0.0) as u32,max_service_ns:5_000_000_000,think_ns:100_000_000,stagger_s:10,until_ns:90_000_000_000})}else{None};
 let c=LightConfig{seed:n("seed",1.0) as u64,clients:n("clients",8000.0) as u32,oss_count:n("oss",144.0) as u32,stripe_count:1,file_bytes:32<<20,transfer_bytes:n("ts",1048576.0) as u64,
 operation:if get("op","w")=="w"{Operation::Write}else{Operation::Read},rpcs_in_flight:n("rif",8.0) as u32,credits:Credits::Constant,start_skew_ns:(n("skew",5.0)*1e3) as u64,start_spread_ns:(n("spread",0.0)*1e9) as u64,
 produce_rate:n("produce",1e9),placement:match &get("place","block")[..]{"block"=>Placement::Block,"rr"=>Placement::RoundRobin,_=>Placement::Random},urgent,nrs_policy:get("pol","fifo"),nrs,dispatch_window:n("win",16.0) as u32,allocation_ns:(40_000,200_000),latency_ns:26_000,nic_rate:1e9,loss:0.0,resend_ns:1_000_000_000,
 disk:DiskProfile::named(&get("disk","paper001")).unwrap(),elevator:ElevatorConfig{kind:ElevatorKind::named(&get("elv","paper001")).unwrap(),depth:n("depth",128.0) as u32,..Default::default()},alloc:AllocKind::named(&get("alloc","mballoc")).unwrap(),down:vec![],timeline:n("tl",0.0)>0.0,partition:n("part",1.0)>0.0};
 let t=std::time::Instant::now(); let o=run(&c,&mut|_|{}); let w=t.elapsed().as_secs_f64();
 let g=|k:&str|o.metrics.get(k).unwrap_or(-1.0);
 println!("{:?} bw {:.2} seeks {:.1} req/s {:.1} mean {:.2} busy {:.3} | ≤64k {:.2} 128k {:.2} 256k {:.2} 512k {:.2} 1m {:.3} 2m {:.3} 4m {:.3} | p50 {:.2} p99 {:.2} max {:.2} qmax {} @ {:.1} mk {:.1}| urg p50 {:.2} p99 {:.2} max {:.2} exp {:.1}@{:.1} | ev {} ({:.2}/rpc) {:.2}s {:.1}M/s pend {} hash {:x}",
 get("pol","fifo"),g("bandwidth_gb_per_s"),g("seeks_per_s_per_oss"),g("disk_requests_per_s_per_oss"),g("disk_request_mean_mib"),g("disk_busy_share"),g("disk_request_share.64k"),g("disk_request_share.128k"),g("disk_request_share.256k"),g("disk_request_share.512k"),g("disk_request_share.1m"),g("disk_request_share.2m"),g("disk_request_share.4m"),g("response_time_p50_s.bulk"),g("response_time_p99_s.bulk"),g("response_time_max_s.bulk"),g("queue_max"),g("queue_max_at_s"),g("makespan_s"),g("response_time_p50_s.urgent"),g("response_time_p99_s.urgent"),g("response_time_max_s.urgent"),g("expiry_max_s"),g("expiry_max_at_s"),o.events,o.events as f64/(o.stats.store.bytes as f64/c.transfer_bytes as f64),w,o.events as f64/w/1e6,o.pending_max,o.hash);
 if n("tl",0.0)>0.0 { for k in ["response_time_max_s.bulk","expiry_max_s"]{ let v=o.metrics.curve(k).unwrap(); println!("{k}: {:?}",v.iter().filter(|p|[10.,20.,30.,43.,66.,86.,98.,99.].contains(&p.0)).collect::<Vec<_>>());}}
}
