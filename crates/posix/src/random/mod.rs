//! stub
/// x
pub fn run(_seed: u64, _ops: u64, _dirs: &[&std::path::Path]) -> Result<(), String> { Ok(()) }
